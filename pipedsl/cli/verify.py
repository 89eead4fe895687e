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
from pipedsl.library import UsageError
from pipedsl.render.document import report_document
from pipedsl.render.style import Colour, line
from verify.buffers import BATCH_LIMIT

if TYPE_CHECKING:
    from pipedsl.profile import Profile


def _quantifier(ctx: click.Context, option: click.Parameter, text: str | None) -> range | None:
    if text is None:
        return None
    from pipedsl.cli.for_all import parse_quantifier

    return parse_quantifier(text)


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
@click.option(
    "--for-all",
    "for_all",
    metavar="m | p=A..B,m",
    callback=_quantifier,
    help="Prove it for every m (with -D p=...), or for every m and every p from A to B.",
)
@click.option(
    "--batch-limit",
    type=click.IntRange(1),
    default=BATCH_LIMIT,
    show_default=True,
    help="Operations that one batch may have, in a file of calls.",
)
@click.option(
    "--certificate",
    metavar="PATH",
    help="Write evidence that verify/checker.py accepts without pipedsl; to standard output where PATH is `-`.",
)
@click.option("--fix", is_flag=True, help="Write the file anew with its messages in an order that is safe.")
@click.option(
    "-o",
    "output",
    metavar="PATH",
    help="What --fix writes, `-` for standard output; by default NAME.mended.sched beside FILE.",
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
    for_all: range | None,
    batch_limit: int,
    certificate: str | None,
    fix: bool,
    output: str | None,
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Prove that a schedule is complete, free of deadlock, within its memory, and keeps what it claims.

    Exit status: 0 verified, 1 rejected, 2 wrong usage, 3 unknown.
    """
    if output is not None and not fix:
        raise click.UsageError("-o names what --fix writes; there is no --fix")
    if output is not None:
        from pipedsl.cli.evidence import check_mended_name

        check_mended_name(file, output)
    if for_all is not None:
        if certificate or fix or profile or form not in ("text", "json"):
            raise click.UsageError("--for-all goes with -D, --format text or json, and limits alone")
        from pipedsl.cli import for_all as every_m

        every_m.run(file, params, for_all, form == "json", color, limits)
    piped = [name for name, path in (("-o", output), ("--certificate", certificate)) if path == "-"]
    piped += [f"--format {form}"] if piped and form != "text" else []
    if len(piped) > 1:
        raise UsageError(f"{' and '.join(piped)} both want standard output")
    result = check_file(file, params, transports, limits, profile, batch_limit)
    status = exit_status(result.report)
    found = () if advice is False else advise(result, thorough=advice is True, limits=limits)
    try:
        if form == "text":
            err = bool(piped)  # leaves standard output to what was asked for there
            print_result(result, file, color, err)
            if found:
                print_lines([line()], color, err)
                print_diagnostics(found, color, err)
        else:
            _write(result, found, form, file, status)
    finally:  # written also where nobody reads the report to its end
        if certificate is not None:
            from pipedsl.cli.evidence import write_certificate

            click.echo(write_certificate(result, certificate), err=True)
        if fix:
            from pipedsl.cli.evidence import write_mended

            click.echo(write_mended(result, file, output), err=True)
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
