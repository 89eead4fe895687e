"""`pipedsl show`."""

from __future__ import annotations

import os
import shutil
import sys

import click

from pipedsl.api import Result
from pipedsl.cli.checking import check_file, exit_status, name_of, print_result
from pipedsl.cli.common import (
    color_option,
    define_option,
    file_argument,
    finish,
    limit_options,
    print_lines,
    transport_option,
)
from pipedsl.diagnostics import Limits
from pipedsl.files import write_atomically
from pipedsl.render.style import Colour, line

# Columns where the output is no terminal and COLUMNS does not say.
DEFAULT_COLUMNS = 100


@click.command("show", short_help="Draw the timeline of a schedule.")
@file_argument
@define_option
@click.option("-o", "output", metavar="PATH", help="Draw a picture instead: .svg, .png or .pdf.")
@click.option("--width", type=click.IntRange(0), help="Columns to use; 0 for all there are. By default the terminal's.")
@transport_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    output: str | None,
    width: int | None,
    transports: tuple[str, ...],
    color: Colour,
    limits: Limits,
) -> None:
    """Draw which rank does what when, with bubble, makespan, peaks and the verdict under it.

    A digit is the forward of a microbatch, a small letter its backward, a capital letter the backward of the
    weights, a dot idle time. Exit status as of `verify`.
    """
    if output is not None:
        from pipedsl.render.figure import check_suffix

        check_suffix(output)
    result = check_file(file, params, transports, limits)
    if output is not None:
        _write_picture(result, name_of(result, file), output)
    else:
        _print_timeline(result, width, color)
    print_result(result, file, color)
    finish(exit_status(result.report))


def _print_timeline(result: Result, width: int | None, color: Colour) -> None:
    if result.program is None or result.timeline is None:
        return
    from pipedsl.render.timeline import legend_line, timeline_lines

    columns = _columns() if width is None else width
    lines = timeline_lines(result.program, result.timeline, columns or None)
    print_lines([*lines, line(("dim", legend_line(result.program).text)), line()], color)


def _columns() -> int:
    fallback = DEFAULT_COLUMNS
    if sys.stdout is None or not sys.stdout.isatty():
        given = os.environ.get("COLUMNS", "")
        return int(given) if given.isdecimal() and 0 < int(given) < 100_000 else fallback
    return shutil.get_terminal_size((fallback, 24)).columns


def _write_picture(result: Result, name: str, output: str) -> None:
    if result.program is None or result.timeline is None:
        return
    from pipedsl.render.figure import check_suffix, draw
    from pipedsl.render.summary import captions, title

    heading = title(name, result.params)
    picture = draw(
        result.program, result.timeline, heading, captions(result.report, result.program), check_suffix(output)
    )
    write_atomically(output, picture)
