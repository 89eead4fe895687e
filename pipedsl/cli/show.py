"""`pipedsl show`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

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
    profile_option,
    transport_option,
)
from pipedsl.diagnostics import Limits
from pipedsl.files import write_atomically
from pipedsl.render.style import Colour, Line, line

if TYPE_CHECKING:
    from pipedsl.profile import Profile

# Columns where the output is no terminal and COLUMNS does not say.
DEFAULT_COLUMNS = 100


@click.command("show", short_help="Draw the timeline of a schedule.")
@file_argument
@define_option
@click.option("-o", "output", metavar="PATH", help="Draw a picture instead: .svg, .png or .pdf.")
@click.option("--width", type=click.IntRange(0), help="Columns to use; 0 for all there are. By default the terminal's.")
@click.option("--memory", is_flag=True, help="Draw under it what every rank holds in memory when.")
@profile_option
@transport_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    output: str | None,
    width: int | None,
    memory: bool,
    profile: Profile | None,
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
    result = check_file(file, params, transports, limits, profile)
    if output is not None:
        _write_picture(result, name_of(result, file), output, memory)
    else:
        _print_timeline(result, width, memory, color)
    print_result(result, file, color)
    finish(exit_status(result.report))


def _print_timeline(result: Result, width: int | None, memory: bool, color: Colour) -> None:
    program, timeline = result.program, result.timeline
    if program is None or timeline is None:
        return
    from pipedsl.render.timeline import grid_of, legend_line, timeline_lines

    columns = (_columns() if width is None else width) or None
    under: list[Line] = []
    if memory:
        from pipedsl.render.memory import ASCII, BLOCKS, facts_width, memory_lines, memory_over_time

        held = memory_over_time(program, timeline, result.calls)
        glyphs = BLOCKS if _can_write(BLOCKS) else ASCII
        if columns is not None:  # the numbers at the right take their room from the picture
            columns = max(columns - facts_width(program, timeline, held), 1)
        under = memory_lines(program, timeline, held, grid_of(program, timeline, columns), glyphs)
    lines = timeline_lines(program, timeline, columns)
    print_lines([*lines, line(("dim", legend_line(program).text)), *under, line()], color)


def _can_write(text: str) -> bool:
    """Whether standard output has signs for all of `text`."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _columns() -> int:
    fallback = DEFAULT_COLUMNS
    if sys.stdout is None or not sys.stdout.isatty():
        given = os.environ.get("COLUMNS", "")
        return int(given) if given.isdecimal() and 0 < int(given) < 100_000 else fallback
    return shutil.get_terminal_size((fallback, 24)).columns


def _write_picture(result: Result, name: str, output: str, memory: bool) -> None:
    if result.program is None or result.timeline is None:
        return
    from pipedsl.render.figure import check_suffix, draw
    from pipedsl.render.summary import captions, title

    heading = title(name, result.params)
    lines, held = captions(result.report, result.program), None
    if memory:
        from pipedsl.render.memory import memory_over_time

        held = memory_over_time(result.program, result.timeline, result.calls)
    picture = draw(result.program, result.timeline, heading, lines, check_suffix(output), held)
    write_atomically(output, picture)
