"""`pipedsl list`."""

from __future__ import annotations

import click

from pipedsl.api import load
from pipedsl.check import openings
from pipedsl.cli.common import color_option, format_option, print_json, print_lines
from pipedsl.format import format_expression
from pipedsl.library import shipped
from pipedsl.render.style import Colour, line
from pipedsl.syntax import Schedule


@click.command("list", short_help="List the shipped schedules.")
@format_option
@color_option
def command(form: str, color: Colour) -> None:
    """List the shipped schedules with their parameters and where they come from; search problems are marked."""
    schedules = {name: load(name) for name in shipped()}
    if form == "json":
        entries = [
            {
                "name": name,
                "parameters": _parameters(schedule),
                "doc": schedule.header.doc,
                "search": bool(openings(schedule)),
            }
            for name, schedule in schedules.items()
        ]
        print_json({"version": 1, "schedules": entries})
        return
    rows = [
        (name, ", ".join(_parameters(schedule)), _mark(schedule) + _first(schedule.header.doc))
        for name, schedule in schedules.items()
    ]
    names, parameters = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    print_lines(
        (line(("bold", f"{name:<{names}}"), f"  {given:<{parameters}}  ", doc) for name, given, doc in rows), color
    )


def _parameters(schedule: Schedule) -> list[str]:
    return [
        each.name if each.default is None else f"{each.name} = {format_expression(each.default)}"
        for each in schedule.header.parameters
    ]


def _mark(schedule: Schedule) -> str:
    return "(for `pipedsl search`) " if openings(schedule) else ""


def _first(doc: str) -> str:
    return doc.strip().split("\n")[0]
