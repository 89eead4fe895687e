"""`pipedsl explain`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pipedsl.cli.common import color_option, print_lines
from pipedsl.codes import CODES, explanation
from pipedsl.library import UsageError
from pipedsl.render.style import Colour, Line, line


@click.command("explain", short_help="Explain a code, like PD301.")
@click.argument("code", required=False)
@color_option
def command(code: str | None, color: Colour) -> None:
    """Explain what a code means, with a failing and a mended example; without CODE, list them all."""
    if code is None:
        print_lines((line(("bold", known), f"  {title}") for known, title in CODES.items()), color)
        return
    name = code.strip().upper()
    if name not in CODES:
        raise UsageError(f"there is no code {code}{_suggestion(name)} (`pipedsl explain` lists them all)")
    print_lines(_lines(name), color)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name if name.startswith("PD") else f"PD{name}", CODES, n=1)
    return f"; did you mean {close[0]}, {CODES[close[0]]}?" if close else ""


def _lines(code: str) -> Iterator[Line]:
    """The explanation with its examples set in instead of fenced."""
    found = explanation(code)
    yield line(("error", found.code), ("bold", f": {found.title}"))
    yield line()
    fenced = False
    for text in found.text.rstrip().split("\n"):
        if text.startswith("```"):
            fenced = not fenced
            if fenced:
                yield line(("dim", _caption(text)))
                yield line()
            continue
        yield line(f"    {text}" if fenced and text else text)


def _caption(fence: str) -> str:
    """```` ```sched fails -D p=2 ```` as words."""
    _, _, info = fence.removeprefix("```").partition(" ")
    role, _, arguments = info.partition(" ")
    what = {"fails": "This fails", "advised": "This gets the advice", "verified": "This is verified"}.get(
        role, "Example"
    )
    return f"{what} with {arguments}:" if arguments else f"{what}:"
