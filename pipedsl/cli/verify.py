"""`pipedsl verify`."""

from __future__ import annotations

import click

from pipedsl.cli.checking import check_file, exit_status, name_of, print_result
from pipedsl.cli.common import (
    color_option,
    define_option,
    file_argument,
    finish,
    format_option,
    limit_options,
    print_json,
    transport_option,
)
from pipedsl.diagnostics import Limits
from pipedsl.render.document import report_document
from pipedsl.render.style import Colour


@click.command("verify", short_help="Prove a schedule, or show what is wrong with it.")
@file_argument
@define_option
@transport_option
@format_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    transports: tuple[str, ...],
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Prove that a schedule is complete, free of deadlock, within its memory, and keeps what it claims.

    Exit status: 0 verified, 1 rejected, 2 wrong usage, 3 unknown.
    """
    result = check_file(file, params, transports, limits)
    if form == "json":
        print_json(report_document(name_of(result, file), result.params, result.report))
    else:
        print_result(result, file, color)
    finish(exit_status(result.report))
