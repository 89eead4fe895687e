"""The timeline as text: one row a rank, one column a unit of time.

    rank 0 |012...aa.bb.cc|

`F` is the last digit of its microbatch, `B` and `I` a small letter, `W` a capital one, REDUCE a plus, idle time a dot.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import gcd
from operator import itemgetter

import numpy as np

from pipedsl.program import Ints, Kind, Program
from pipedsl.render.style import Line, line
from pipedsl.simulate import Timeline

GLYPHS = {Kind.F: string.digits, Kind.B: string.ascii_lowercase, Kind.I: string.ascii_lowercase}
GLYPHS |= {Kind.W: string.ascii_uppercase, Kind.REDUCE: "+"}
STYLES = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input", Kind.W: "weight", Kind.REDUCE: "reduce"}
CUT = " ... "

# The shortest operation is drawn no wider than this; a finer unit of time would only stretch the picture.
WIDEST_SHORTEST = 4


@dataclass(frozen=True)
class Grid:
    """Columns of the picture: column k shows the middle of [k, k + 1) times `step`, in units of the timeline."""

    step: Fraction
    columns: int
    head: int
    tail: int

    @property
    def cut(self) -> int:
        return self.columns - self.head - self.tail

    def shown(self) -> range | list[int]:
        return (
            range(self.columns) if not self.cut else [*range(self.head), *range(self.columns - self.tail, self.columns)]
        )


def grid_of(program: Program, timeline: Timeline, columns: int | None = None) -> Grid:
    """The columns of the picture in at most `columns` columns of a terminal, the heads of the rows included.

    What does not fit is left out in the middle, in the same columns of every rank.
    """
    room = None if columns is None else max(columns - len(row_head(program, 0)) - 1, 2 + len(CUT))
    return _grid(timeline, room)


def row_head(program: Program, rank: int) -> str:
    return f"rank {rank:>{len(str(program.ranks - 1))}} |"


def timeline_lines(program: Program, timeline: Timeline, columns: int | None = None) -> list[Line]:
    """The timeline in at most `columns` columns of a terminal; all of it when None."""
    grid = grid_of(program, timeline, columns)
    lines = []
    short = 0
    for rank in range(program.ranks):
        pieces, hidden = _row(program, timeline, program.rows(rank), grid)
        short += hidden
        lines.append(line(("dim", row_head(program, rank)), *pieces, ("dim", "|")))
    lines += [line(("dim", note)) for note in _notes(grid, timeline, short)]
    return lines


def legend_line(program: Program) -> Line:
    """What the glyphs of this program mean."""
    what = {
        Kind.F: "0-9 F (forward)",
        Kind.B: "a-z B (backward)",
        Kind.I: "a-z I (backward of the input)",
        Kind.W: "A-Z W (backward of the weights)",
        Kind.REDUCE: "+ REDUCE",
    }
    used = set(np.unique(program.kind).tolist())
    pieces: list[str | tuple[str, str]] = []
    for kind, text in what.items():
        if kind in used:
            pieces += [(STYLES[kind], text), ", "]
    copies = ", counted through the replicas" if program.placement.shape[0] > 1 else ""
    return line(*pieces, f". idle; the glyph is the microbatch{copies}")


def _grid(timeline: Timeline, room: int | None) -> Grid:
    """One column per greatest common divisor of all times, or coarser where that would only stretch the picture."""
    start, end = timeline.start, timeline.end
    last = int(end.max()) if len(end) else 0
    duration = end - start
    lasting = duration[duration > 0]
    if not last or not len(lasting):
        return Grid(Fraction(1), 0, 0, 0)
    step = Fraction(gcd(_gcd(start), _gcd(end)))
    shortest = int(lasting.min())
    if shortest > WIDEST_SHORTEST * step:
        step = Fraction(shortest, 2)
    # A few very short operations must not stretch the rest out of sight.
    usual = int(np.sort(lasting)[len(lasting) // 2])
    if usual > 2 * WIDEST_SHORTEST * step:
        step = Fraction(usual, 2 * WIDEST_SHORTEST)
    count = -(-last // step)
    if room is None or count <= room:
        return Grid(step, count, count, 0)
    head = (room - len(CUT) + 1) // 2
    return Grid(step, count, head, room - len(CUT) - head)


def _gcd(values: Ints) -> int:
    return int(np.gcd.reduce(values))


def _row(program: Program, timeline: Timeline, rows: range, grid: Grid) -> tuple[list[tuple[str, str]], int]:
    """The styled pieces of one rank, and how many of its operations are too short to be seen."""
    start, end = timeline.start[rows.start : rows.stop], timeline.end[rows.start : rows.stop]
    lasting = np.flatnonzero(end > start)
    # All times in units of half a column's denominator, so that the middle of column k is the integer (2k + 1) * half.
    start, end = (times[lasting] * (2 * grid.step.denominator) for times in (start, end))
    half = grid.step.numerator
    shown = grid.shown()
    middles = _ints([(2 * column + 1) * half for column in shown])
    covering = np.searchsorted(start, middles, side="right") - 1
    pieces = []
    for middle, index in zip(middles.tolist(), covering.tolist(), strict=True):
        if index < 0 or middle >= end[index]:
            pieces.append(("dim", "."))
            continue
        row = rows.start + int(lasting[index])
        kind = Kind(program.kind[row])
        glyphs = GLYPHS[kind]
        number = int(program.replica[row]) * program.microbatches + int(program.microbatch[row])
        pieces.append((STYLES[kind], glyphs[number % len(glyphs)]))
    first = (start + half - 1) // (2 * half)  # the first column whose middle is not before the start
    unseen = int(np.count_nonzero((2 * first + 1) * half >= end))
    return with_cut(pieces, grid), unseen


def _ints(values: list[int]) -> Ints:
    array: Ints = np.array(values, dtype=np.int64 if max(values, default=0) < 1 << 62 else object)
    return array


def with_cut(pieces: list[tuple[str, str]], grid: Grid) -> list[tuple[str, str]]:
    """Neighbours of one style joined, and the mark where columns are left out."""
    if not grid.cut:
        return _joined(pieces)
    return [*_joined(pieces[: grid.head]), ("dim", CUT), *_joined(pieces[grid.head :])]


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(style, "".join(text for _, text in group)) for style, group in groupby(pieces, itemgetter(0))]


def _notes(grid: Grid, timeline: Timeline, short: int) -> Iterator[str]:
    unit = grid.step * timeline.unit
    if unit != 1 and grid.columns:
        yield f"one column is {_time(unit)}"
    if grid.cut:
        since, until = grid.head * unit, (grid.columns - grid.tail) * unit
        yield f"{CUT.strip()} leaves out time {_time(since)} to {_time(until)} of {_time(grid.columns * unit)}"
    if short:
        yield f"{short} operation{' is' if short == 1 else 's are'} too short to be seen"


def _time(value: Fraction) -> str:
    return str(value) if value.denominator <= 1000 else f"{float(value):.6g}"
