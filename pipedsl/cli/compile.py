"""`pipedsl compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipedsl.cli.checking import check_file, exit_status, print_result
from pipedsl.cli.common import (
    color_option,
    define_option,
    file_argument,
    finish,
    limit_options,
    profile_option,
    transport_option,
    write_output,
)
from pipedsl.diagnostics import Limits
from pipedsl.library import UsageError
from pipedsl.render.style import Colour
from verify import Verdict

if TYPE_CHECKING:
    from pipedsl.profile import Profile


@click.command("compile", short_help="Write a verified schedule as a Python file that needs torch alone.")
@file_argument
@define_option
@click.option("-o", "output", metavar="PATH", required=True, help="The Python file to write; `-` for standard output.")
@profile_option
@transport_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    output: str,
    profile: Profile | None,
    transports: tuple[str, ...],
    color: Colour,
    limits: Limits,
) -> None:
    """Verify a schedule, then write the executor that runs exactly its calls.

    Nothing is written unless the schedule is verified, and the executor itself safe too, on every transport asked for.
    The file says of all transports whether it is safe there, and refuses to run on others. Exit status as of `verify`.
    """
    if file.endswith(".json"):
        raise UsageError(f"{file} holds calls alone, without the computations that a compiled file runs")
    from pipedsl.emit import NOTHING_TO_RUN_ON, emit_result, runnable

    if not runnable(transports):
        raise UsageError(NOTHING_TO_RUN_ON)
    result = check_file(file, params, transports, limits, profile)
    if result.verdict is Verdict.VERIFIED:
        write_output(output, emit_result(result))
    print_result(result, file, color, err=output == "-")
    finish(exit_status(result.report))
