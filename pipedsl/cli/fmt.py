"""`pipedsl fmt`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import click

from pipedsl.cli.common import color_option, finish, limit_options, print_diagnostics, print_lines, write
from pipedsl.cli.status import FAILED, REJECTED
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.files import write_atomically
from pipedsl.format import format_schedule
from pipedsl.library import SHIPPED_PREFIX, UsageError, find_text
from pipedsl.parser import parse, read_source
from pipedsl.render.style import Colour, Line, line, visible

Mode = Literal["write", "check", "diff"]


@click.command("fmt", short_help="Format schedules.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Write nothing; say which files would change.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@color_option
@limit_options
def command(files: tuple[str, ...], check: bool, diff: bool, color: Colour, limits: Limits) -> None:
    """Bring schedules into the one canonical form; `-` reads standard input and writes standard output.

    A file with a syntax error is left as it is. Exit status: 1 when a file has an error, or with --check or --diff
    when one would change; 2 when a file cannot be read or written.
    """
    mode: Mode = "diff" if diff else "check" if check else "write"
    status = 0
    for file in files:
        try:
            status = max(status, _format_file(file, mode, color, limits))
        except DiagnosticError as error:
            print_diagnostics(error.diagnostics, color, err=True)
            status = max(status, REJECTED)
        except (UsageError, OSError) as error:
            # One unreadable file does not keep the others from being formatted.
            if isinstance(error, BrokenPipeError):
                raise
            what = str(error) if isinstance(error, UsageError) else f"cannot write {file}: {error.strerror}"
            click.echo(f"error: {visible(what)}", err=True)
            status = FAILED
    finish(status)


def _format_file(file: str, mode: Mode, color: Colour, limits: Limits) -> int:
    name, data = find_text(file, limits)
    if name.startswith(SHIPPED_PREFIX):
        raise UsageError(f"no such file: {file} (fmt does not touch shipped schedules; give a path)")
    old = read_source(name, data, limits)
    new = format_schedule(parse(old, limits))
    changed = new.encode() != data
    if mode == "write" and file == "-":
        write(new)
    elif mode == "write" and changed:
        write_atomically(file, new)
        click.echo(f"formatted {visible(name)}", err=True)
    elif mode == "check" and changed:
        print_lines([line(f"would format {visible(name)}")], color)
    elif mode == "diff" and changed:
        print_lines(_difference(old.text, new, name), color)
    return REJECTED if changed and mode != "write" else 0


def _difference(old: str, new: str, name: str) -> Iterator[Line]:
    from difflib import unified_diff

    styles = {"+": "good", "-": "error", "@": "gutter"}
    lines = unified_diff(old.split("\n"), new.split("\n"), visible(name), f"{visible(name)} (formatted)", lineterm="")
    for text in lines:
        yield line((styles.get(text[:1], ""), text if text.isprintable() else visible(text)))
