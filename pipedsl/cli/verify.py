"""`pipedsl verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipedsl.api import Result, advise
from pipedsl.cli.checking import check_file, exit_status, name_of, print_result
from pipedsl.cli.common import (
    color_option,
    define_option,
    file_argument,
    finish,
    limit_options,
    print_diagnostics,
    print_json,
    print_lines,
    profile_option,
    transport_option,
    verify_format_option,
    write,
)
from pipedsl.diagnostics import Diagnostic, Limits
from pipedsl.render.document import report_document
from pipedsl.render.style import Colour, line

if TYPE_CHECKING:
    from pipedsl.profile import Profile


@click.command("verify", short_help="Prove a schedule, or show what is wrong with it.")
@file_argument
@define_option
@profile_option
@transport_option
@click.option(
    "--advice/--no-advice",
    default=None,
    help="Look for what could be better for up to some ten seconds, or do not look. By default a quick look.",
)
@verify_format_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    profile: Profile | None,
    transports: tuple[str, ...],
    advice: bool | None,
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Prove that a schedule is complete, free of deadlock, within its memory, and keeps what it claims.

    Exit status: 0 verified, 1 rejected, 2 wrong usage, 3 unknown.
    """
    result = check_file(file, params, transports, limits, profile)
    status = exit_status(result.report)
    found = () if advice is False else advise(result, thorough=advice is True, limits=limits)
    if form == "text":
        print_result(result, file, color)
        if found:
            print_lines([line()], color)
            print_diagnostics(found, color)
    else:
        _write(result, found, form, file, status)
    finish(status)


def _write(result: Result, advice: tuple[Diagnostic, ...], form: str, file: str, status: int) -> None:
    """The report in a form for programs."""
    found = (*result.diagnostics, *advice)
    if form == "json":
        name = name_of(result, file)
        print_json(report_document(name, result.params, result.report, result.memory_at_peak, advice))
    elif form == "sarif":
        from pipedsl.render.sarif import sarif_document

        print_json(sarif_document(found, file, status))
    else:
        from pipedsl.render.annotations import concise_lines, github_lines

        for text in (github_lines if form == "github" else concise_lines)(found, file):
            write(text)
