"""What the commands share: their options, reading and checking a file, printing findings."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pipedsl.diagnostics import Diagnostic, Limits
from pipedsl.render.report import diagnostics_lines
from pipedsl.render.style import Colour, Line, paint, wants_colour

if TYPE_CHECKING:
    from pipedsl.profile import Profile

LIMIT_HELP = {
    "operations": "operations that a program may expand to",
    "steps": "loop rounds and function calls while expanding",
    "nesting": "depth of brackets, blocks and expressions",
    "tokens": "words and signs in a file",
    "source_bytes": "size of a file",
    "bits": "size of a number in bits",
}
# Trees are walked recursively, so their depth cannot be free.
MOST_NESTING = 200


def _definitions(ctx: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    params: dict[str, int] = {}
    for text in values:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not of the form name=value, like -D p=4")
        try:
            number = int(value)
        except ValueError:
            raise click.BadParameter(f"the value of {name} must be an integer, not {value[:40]!r}") from None
        if params.get(name, number) != number:
            raise click.BadParameter(f"{name} is given twice, as {params[name]} and as {number}")
        params[name] = number
    return params


file_argument = click.argument("file", metavar="FILE")
define_option = click.option(
    "-D",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_definitions,
    help="Set a parameter of the schedule; may be repeated.",
)
color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the output; `auto`: on a terminal, unless NO_COLOR is set.",
)
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the output.",
)

verify_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "concise"]),
    default="text",
    show_default=True,
    help="Form of the output. `github`: workflow commands; `concise`: a line for each finding.",
)


def _profile(ctx: click.Context, option: click.Parameter, path: str | None) -> Profile | None:
    if path is None:
        return None
    from pipedsl.profile import load_profile

    return load_profile(path)


profile_option = click.option(
    "--profile",
    "profile",
    metavar="FILE",
    callback=_profile,
    help="Measured durations and sizes (JSON) in place of the schedule's.",
)


_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30}|/\d{1,30})?)\s*(|KiB|MiB|GiB|TiB)")


def _size(ctx: click.Context, option: click.Parameter, text: str | None) -> Fraction | None:
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[1].partition("/")[2].strip("0") == "" and "/" in match[1]):
        raise click.BadParameter(f"{text!r} is not a size like 4, 3.5, 7/2 or 80GiB")
    return Fraction(match[1]) * _UNITS[match[2]]


cap_option = click.option(
    "--cap", metavar="SIZE", callback=_size, help="What each rank may hold, in place of the file's `cap`."
)


def _transports(ctx: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    from verify import TRANSPORTS

    for name in values:
        if name not in TRANSPORTS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(TRANSPORTS)}")
    return tuple(name for name in TRANSPORTS if name in values) or TRANSPORTS


transport_option = click.option(
    "--transport",
    "transports",
    metavar="NAME",
    multiple=True,
    callback=_transports,
    help="Transport that must be safe; may be repeated. By default all: buffered, gloo, nccl-lazy, nccl-eager, "
    "nccl-lazy-warm, nccl-eager-warm.",
)


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """One `--limit-...` option for each field of `Limits`; the command gets them as `limits`."""

    @wraps(command)
    def gather(*args: Any, **options: Any) -> None:
        limits = Limits(**{field.name: options.pop(f"limit_{field.name}") for field in fields(Limits)})
        command(*args, limits=limits, **options)

    decorated: Callable[..., None] = gather
    for field in reversed(fields(Limits)):
        most = MOST_NESTING if field.name == "nesting" else None
        decorated = click.option(
            f"--limit-{field.name.replace('_', '-')}",
            type=click.IntRange(1, most),
            default=field.default,
            show_default=True,
            help=f"Limit: {LIMIT_HELP[field.name]}.",
        )(decorated)
    return decorated


def finish(status: int) -> NoReturn:
    """End the command with this exit status."""
    raise click.exceptions.Exit(status)


def write(text: str, err: bool = False) -> None:
    """To standard output, or standard error, as it is. OSError where the former is closed: this was asked for."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        stream.write(text)
    elif not err:
        raise OSError(errno.EBADF, "standard output is closed")


def write_output(path: str, text: str) -> None:
    """To the file `path`, or standard output where it is `-`. Raises OSError."""
    if path == "-":
        write(text)
        return
    from pipedsl.files import write_atomically  # and tempfile, which takes its time to load

    write_atomically(path, text)


def print_lines(lines: Iterable[Line], color: Colour = "auto", err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        stream.write(paint(lines, wants_colour(stream, color)))


def print_diagnostics(diagnostics: Iterable[Diagnostic], color: Colour = "auto", err: bool = False) -> None:
    print_lines(diagnostics_lines(diagnostics), color, err)


def print_json(document: Mapping[str, Any], err: bool = False) -> None:
    write(json.dumps(document, indent=2) + "\n", err)
