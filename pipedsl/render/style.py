"""Lines of styled text, with and without colour. Plain escape sequences: loading a library costs more than this."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TextIO

Colour = Literal["auto", "always", "never"]

SEQUENCES = {
    "": "",
    "error": "1;31",
    "warning": "1;33",
    "advice": "1;36",
    "good": "1;32",
    "bold": "1",
    "dim": "2",
    "gutter": "1;34",
    "second": "34",
    "forward": "34",
    "backward": "32",
    "input": "36",
    "weight": "35",
    "reduce": "33",
}

# Of these, the ones that are not shown as they are could hide or reorder the text around them.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class Line:
    """One line of output: (style, text) pieces; a style is a key of `SEQUENCES`."""

    pieces: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


def line(*pieces: str | tuple[str, str]) -> Line:
    """A line of pieces; a bare string is unstyled."""
    return Line(tuple(("", piece) if isinstance(piece, str) else piece for piece in pieces))


def paint(lines: Iterable[Line], colour: bool) -> str:
    """The lines as one string, each ended by a newline and without space at its end."""
    if not colour:
        return "".join(f"{each.text.rstrip()}\n" for each in lines)
    return "".join("".join(_painted(*piece) for piece in each.pieces) + "\n" for each in lines)


def _painted(style: str, text: str) -> str:
    sequence = SEQUENCES[style]
    return f"\x1b[{sequence}m{text}\x1b[0m" if sequence and text else text


def wants_colour(stream: TextIO, when: Colour = "auto") -> bool:
    """Whether to colour what goes to `stream`; `auto` honours NO_COLOR (no-color.org) and dumb terminals."""
    if when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def visible(text: str) -> str:
    """`text` with characters that have no shape of their own written as escapes (`\\x1b`, `\\u202e`)."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN:
        return char
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def width(text: str) -> int:
    """Columns of a terminal that `text` (without control characters) takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cells(text: str, tab: int = 4) -> tuple[str, list[int]]:
    """`text` as it is shown, and the column (from 0) where each of its characters starts, and where it ends.

    Tabs become spaces up to the next multiple of `tab`.
    """
    shown: list[str] = []
    columns = [0]
    for char in text:
        piece = " " * (tab - columns[-1] % tab) if char == "\t" else visible(char)
        shown.append(piece)
        columns.append(columns[-1] + width(piece))
    return "".join(shown), columns
