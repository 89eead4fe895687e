"""`pipedsl expand`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from pipedsl.api import Result, load, load_csv
from pipedsl.cli.checking import check_file, exit_status
from pipedsl.cli.common import (
    cap_option,
    color_option,
    define_option,
    file_argument,
    finish,
    limit_options,
    print_diagnostics,
    profile_option,
    write,
)
from pipedsl.diagnostics import Limits
from pipedsl.expand import expand
from pipedsl.library import UsageError
from pipedsl.program import Program
from pipedsl.render.expansion import calls_json, calls_text, program_json, program_text
from pipedsl.render.style import Colour

if TYPE_CHECKING:
    from pipedsl.profile import Profile


@click.command("expand", short_help="Write out every rank's operations or calls.")
@file_argument
@define_option
@click.option("--calls", "lowered", is_flag=True, help="The calls, with their communication, instead.")
@click.option(
    "--problem", is_flag=True, help="What `search` is to solve instead, as JSON: for verify/bound_checker.py."
)
@click.option("--placement", metavar="NAME", help="With --problem: of what `place ?` leaves open, `linear` or another.")
@cap_option
@profile_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="Form of the output. `csv`: as torch.distributed.pipelining reads it.",
)
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    lowered: bool,
    problem: bool,
    placement: str | None,
    cap: Fraction | None,
    profile: Profile | None,
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Write out every rank's operations, or with --calls the communication that runs them.

    Operations need not be complete or in a possible order to be written out; calls do. Neither is a proof: that is
    `verify`. docs/formats.md describes the forms.
    """
    if not problem and (placement is not None or cap is not None):
        raise UsageError("--placement and --cap go with --problem: operations have no order without a search")
    if problem:
        if lowered or form == "csv":
            raise UsageError("--problem goes without --calls and --format csv")
        pieces: Iterable[str] = [_problem(file, params, placement, cap, limits, profile)]
    elif lowered:
        pieces = _calls(check_file(file, params, ("buffered",), limits, profile), form, color)
    else:
        pieces = _operations(_program(file, params, limits, profile), form)
    for piece in pieces:
        write(piece)


def _problem(
    file: str,
    params: dict[str, int],
    placement: str | None,
    cap: Fraction | None,
    limits: Limits,
    profile: Profile | None,
) -> str:
    from pipedsl.search_problem import tasks
    from verify.search.problem_json import problem_json

    found = tasks(load(file, limits), params, cap, limits, profile)
    names = [task.placement for task in found]
    if placement is None and len(found) > 1:
        raise UsageError(f"--placement says which of {', '.join(map(str, names))}")
    if placement is not None and placement not in names:
        known = ", ".join(name for name in names if name is not None)
        raise UsageError(f"the schedule leaves no placement {placement!r} open{f': {known}' if known else ''}")
    task = next(task for task in found if placement in (None, task.placement))
    return json.dumps(problem_json(task.problem)) + "\n"


def _program(file: str, params: dict[str, int], limits: Limits, profile: Profile | None) -> Program:
    program = load_csv(file, limits) if file.endswith(".csv") else expand(load(file, limits), params, limits)
    if profile is None:
        return program
    from pipedsl.profile import apply_profile  # says nothing of the operations, but must fit

    return apply_profile(profile, program)


def _operations(program: Program, form: str) -> Iterable[str]:
    if form == "csv":
        from pipedsl.torch_csv import write_csv

        return [write_csv(program)]
    return program_json(program) if form == "json" else program_text(program)


def _calls(result: Result, form: str, color: Colour) -> Iterable[str]:
    program, calls = result.program, result.calls
    if calls is None:
        print_diagnostics(result.diagnostics, color, err=True)
        finish(exit_status(result.report))
    if form == "json":
        return calls_json(calls)
    if program is None:
        raise UsageError("calls without a program can be written as JSON alone: --format json")
    if form == "csv":
        from pipedsl.torch_csv import write_csv

        return [write_csv(program, calls)]
    return calls_text(calls, program)
