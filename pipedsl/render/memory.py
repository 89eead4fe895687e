"""Memory over time as text, in the columns of the timeline: one row a rank, as high as the share of the largest.

    rank 0 |▂▄▆█████████▆▄▂  | peak 4 at time 3, cap 4

A column shows the most that the rank holds in its time, `!` where that is over the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pipedsl.calls import Calls
from pipedsl.moments import call_times
from pipedsl.occupancy import CONSTANT, Occupancy, Part, memory_used
from pipedsl.program import Ints, Program
from pipedsl.render.numbers import number, size
from pipedsl.render.style import Line, line
from pipedsl.render.timeline import Grid, row_head, with_cut
from pipedsl.simulate import Timeline

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
OVER = "!"


@dataclass(frozen=True, eq=False)
class MemoryOverTime:
    """What every rank holds when. `start`, `end`: of the rows of `used`, in units of the timeline.

    `calls`: those that the rows are of; None where they are the program's.
    """

    calls: Calls | None
    used: Occupancy
    start: Ints
    end: Ints

    def steps(self, rank: int) -> tuple[Ints, Ints]:
        """Times, growing, and what is held from each on without the constant part, in multiples of `used.unit`."""
        rows = slice(int(self.used.offsets[rank]), int(self.used.offsets[rank + 1]))
        times = np.stack((self.start[rows], self.end[rows]), axis=1).ravel()
        return times, np.stack((self.used.during[rows], self.used.after[rows]), axis=1).ravel()


def memory_over_time(program: Program, timeline: Timeline, calls: Calls | None) -> MemoryOverTime:
    """With `calls`, their buffers count too."""
    times = (timeline.start, timeline.end) if calls is None else call_times(calls, timeline)
    return MemoryOverTime(calls, memory_used(program, calls), *times)


def parts_over_time(program: Program, held: MemoryOverTime) -> dict[Part, MemoryOverTime]:
    """The same for each part that changes over time and is ever anything."""
    found = {}
    for part in Part:
        used = memory_used(program, held.calls, (part,))
        if part not in CONSTANT and (used.during.any() or used.after.any()):
            found[part] = replace(held, used=used)
    return found


def memory_lines(
    program: Program, timeline: Timeline, held: MemoryOverTime, grid: Grid, glyphs: str = BLOCKS
) -> list[Line]:
    """A line for each rank under one that says how high a full column is. `glyphs`: from nothing to full."""
    caps, peaks = program.memory.cap, held.used.peaks()
    top = max([Fraction(0), *peaks, *(cap for cap in caps if cap is not None)])
    over = any(cap is not None and peak > cap for cap, peak in zip(caps, peaks, strict=True))
    full = _shown(top, program)
    lines = [line(("dim", f"memory; a full column is {full}{f', {OVER} is over the cap' if over else ''}"))]
    for rank, cap in enumerate(caps):
        pieces = [_glyph(value, top, cap, glyphs) for value in _columns(held, rank, grid)]
        picture = (("dim", row_head(program, rank)), *with_cut(pieces, grid), ("dim", "|"))
        lines.append(line(*picture, _facts(program, timeline, held, rank)))
    return lines


def facts_width(program: Program, timeline: Timeline, held: MemoryOverTime) -> int:
    """The columns that the numbers take at the right of the rows of `memory_lines`."""
    return max(len(_facts(program, timeline, held, rank)) for rank in range(program.ranks))


def _facts(program: Program, timeline: Timeline, held: MemoryOverTime, rank: int) -> str:
    """` peak 4 at time 3, cap 4`."""
    peak, cap = held.used.peak(rank), program.memory.cap[rank]
    times = held.end if peak.at_end else held.start
    when = f" at time {number(int(times[peak.row]) * timeline.unit)}" if peak.row >= 0 else ""
    return f" peak {_shown(peak.size, program)}{when}{'' if cap is None else f', cap {_shown(cap, program)}'}"


def _shown(value: Fraction, program: Program) -> str:
    return size(value) if program.memory.in_bytes else number(value)


def _glyph(value: Fraction, top: Fraction, cap: Fraction | None, glyphs: str) -> tuple[str, str]:
    if cap is not None and value > cap:
        return ("error", OVER)
    steps = len(glyphs) - 1
    return ("forward", glyphs[min(-(-value * steps // top), steps) if top else 0])


def _columns(held: MemoryOverTime, rank: int, grid: Grid) -> Iterator[Fraction]:
    """The most that a rank holds in each column that is shown, its constant part included."""
    base, unit = held.used.base[rank], held.used.unit
    times, values = held.steps(rank)
    shown = list(grid.shown())
    left = np.searchsorted(times, _ceilings(shown, grid.step), "left").tolist()
    right = np.searchsorted(times, _ceilings([column + 1 for column in shown], grid.step), "left").tolist()
    for column, first, last in zip(shown, left, right, strict=True):
        if column == grid.columns - 1:
            last = len(times)
        # Without a change right at the column's left edge, what was held before is held there.
        if first and not (first < len(times) and times[first] == column * grid.step):
            first -= 1
        yield base + (int(values[first:last].max()) * unit if last > first else 0)


def _ceilings(columns: list[int], step: Fraction) -> Ints:
    found = [-(-column * step.numerator // step.denominator) for column in columns]
    return np.array(found, np.int64 if max(found, default=0) < 1 << 62 else object)
