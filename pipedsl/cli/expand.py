"""`pipedsl expand`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from pipedsl.api import Result, load, load_csv
from pipedsl.cli.checking import check_file, exit_status
from pipedsl.cli.common import (
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
    profile: Profile | None,
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Write out every rank's operations, or with --calls the communication that runs them.

    Operations need not be complete or in a possible order to be written out; calls do. Neither is a proof: that is
    `verify`. docs/formats.md describes the forms.
    """
    if lowered:
        pieces = _calls(check_file(file, params, ("buffered",), limits, profile), form, color)
    else:
        pieces = _operations(_program(file, params, limits, profile), form)
    for piece in pieces:
        write(piece)


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
