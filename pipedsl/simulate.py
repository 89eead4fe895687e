"""When every operation starts and ends, exactly, and what follows from it: makespan, bubble, spans, peaks.

Times are integers in a common unit, so nothing is rounded: the time of a row is `timeline.start[row] * timeline.unit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipedsl.calls import Calls
from pipedsl.program import Costs, Ints, Program


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every row of a Program, in multiples of `unit`.

    `start`, `end`: (operations,), int64, or Python integers (dtype object) where int64 would overflow.
    `sequence`: (operations,), the rows in an order that every dependency agrees with.
    """

    start: Ints
    end: Ints
    unit: Fraction
    sequence: Ints

    def start_of(self, row: int) -> Fraction:
        return int(self.start[row]) * self.unit

    def end_of(self, row: int) -> Fraction:
        return int(self.end[row]) * self.unit

    @property
    def makespan(self) -> Fraction:
        return int(self.end.max()) * self.unit if len(self.end) else Fraction(0)


@dataclass(frozen=True)
class Metrics:
    """What a schedule costs; exact. `busy`, `peak_activations` and `memory` are per rank.

    `bubble` = 1 - sum(busy) / (p * makespan). `span` is the largest, over ranks, of the time from the start of the
    first to the end of the last computation; `span_bubble` = 1 - max(busy) / span. `peak_activations` counts
    microbatches (a fraction where I releases a part); `memory` is in the unit of `Program.memory`.
    """

    makespan: Fraction
    bubble: Fraction
    span: Fraction
    span_bubble: Fraction
    busy: tuple[Fraction, ...]
    peak_activations: tuple[Fraction, ...]
    memory: tuple[Fraction, ...]


class Stuck(Exception):
    """The order of the operations contradicts their dependencies, or one they need is missing.

    `rows`: for every rank that cannot go on, the row that it stands at.
    """

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows
        super().__init__(f"{len(rows)} ranks cannot go on")


def simulate(program: Program, costs: Costs | None = None) -> Timeline:
    """Run the program under `costs` (its own by default). Raises `Stuck`."""
    raise NotImplementedError


def measure(program: Program, timeline: Timeline, calls: Calls | None = None) -> Metrics:
    """The metrics of a run. With `calls`, send and receive buffers count in `memory`."""
    raise NotImplementedError
