"""When every operation starts and ends, exactly, and what follows from it: makespan, bubble, spans.

An operation starts when the one before it on its rank has ended and what it needs has arrived: from another rank that
takes the sending stage's `send`, on the same rank nothing. SEND and RECV operations take no time of their own. The
REDUCEs of the copies of a stage start when the last of their ranks gets there, and end together. Times are integers in
a common unit, so nothing is rounded: row `i` starts at `timeline.start[i] * timeline.unit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from pipedsl.calls import Calls
from pipedsl.dependencies import arrives_late, cells, dependencies
from pipedsl.occupancy import activations_held, memory_used
from pipedsl.program import WORK, Costs, Ints, Kind, Program
from pipedsl.reductions import meetings

_INT64_MAX = 2**63 - 1


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
    first computation to the end of the last one, or of a REDUCE; `span_bubble` = 1 - max(busy) / span.
    `peak_activations` counts microbatches (a fraction where I releases a part); `memory` is in the unit of
    `Program.memory`.
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
    """Run the program under `costs` (its own by default). Raises `Stuck`; linear in the number of operations."""
    firsts = program.offsets[:-1].tolist()
    lasts = program.offsets[1:].tolist()
    if cells(program) > len(program):  # some F is missing, and the tables below would be larger than the program
        raise Stuck(tuple(first for first, last in zip(firsts, lasts, strict=True) if first < last))
    needs = dependencies(program)
    unit, durations, sends = _scale(program, costs or program.costs)
    kinds = program.kind.tolist()
    stages = program.stage.tolist()
    duration = [durations[kind][stage] if kind in durations else 0 for kind, stage in zip(kinds, stages, strict=True)]
    upstream = np.where(arrives_late(program, needs.upstream), needs.upstream, -1).tolist()
    met = meetings(program)
    for row in np.flatnonzero(program.kind == Kind.REDUCE).tolist():
        stage = int(met.stage[row])
        if stage < 0:
            duration[row] = 0
        elif len(met.rows[stage]) > 1:
            upstream[row] = -2 - stage
    out_of_order = _first_out_of_order(program, needs.local, needs.upstream, needs.posted)
    stops = [last if bad < 0 else bad for last, bad in zip(lasts, out_of_order, strict=True)]

    count = len(program)
    start, end, sequence = [0] * count, [-1] * count, []
    waiting: dict[int, list[int]] = {}  # row -> ranks that wait for it
    gathered: dict[int, list[int]] = {}  # REDUCE of a stage -> ranks that stand at it
    cursor, clock = firsts[:], [0] * program.ranks
    ready = list(range(program.ranks - 1, -1, -1))
    while ready:
        rank = ready.pop()
        row, stop, time = cursor[rank], stops[rank], clock[rank]
        while row < stop:
            source = upstream[row]
            if source >= 0:
                arrival = end[source]
                if arrival < 0:
                    waiting.setdefault(source, []).append(rank)
                    break
                arrival += sends[stages[source]]
                if arrival > time:
                    time = arrival
            elif source < -1:
                rows, there = met.rows[-2 - source], gathered.setdefault(source, [])
                there.append(rank)
                if len(there) < len(rows):
                    break
                time = max(time, *(clock[other] for other in there[:-1]))
                for each in rows:
                    start[each], end[each] = time, time + duration[each]
                sequence += rows
                time += duration[row]
                for other in there[:-1]:
                    cursor[other], clock[other] = cursor[other] + 1, time
                ready += there[:-1]
                row += 1
                continue
            start[row] = time
            time += duration[row]
            end[row] = time
            sequence.append(row)
            if row in waiting:
                ready.extend(waiting.pop(row))
            row += 1
        cursor[rank], clock[rank] = row, time
    if len(sequence) < count:
        raise Stuck(tuple(row for row, last in zip(cursor, lasts, strict=True) if row < last))
    dtype = np.int64 if max(clock, default=0) <= _INT64_MAX else object
    return Timeline(np.array(start, dtype), np.array(end, dtype), unit, np.array(sequence, np.int64))


def _scale(program: Program, costs: Costs) -> tuple[Fraction, dict[int, list[int]], list[int]]:
    """The unit of time, durations per kind and stage, and `send` per stage, in that unit."""
    by_kind = {int(kind): costs.of(kind) for kind in WORK}
    values = [value for row in by_kind.values() for value in row]
    common = lcm(*{value.denominator for value in (*values, *costs.send)})
    scaled = {kind: [int(value * common) for value in row] for kind, row in by_kind.items()}
    return Fraction(1, common), scaled, [int(value * common) for value in costs.send]


def _first_out_of_order(program: Program, *needs: Ints) -> list[int]:
    """For every rank its first row that comes before a row of the same rank that it needs, or -1."""
    rank = program.rank_of()
    rows = np.arange(len(program))
    bad = np.zeros(len(program), bool)
    for need in needs:
        bad |= (need > rows) & (rank[need] == rank)
    found = [-1] * program.ranks
    at = np.flatnonzero(bad)
    if not len(at):
        return found
    ranks, first = np.unique(rank[at], return_index=True)
    for index, row in zip(ranks.tolist(), at[first].tolist(), strict=True):
        found[index] = row
    return found


def measure(
    program: Program, timeline: Timeline, calls: Calls | None = None, *, known: Metrics | None = None
) -> Metrics:
    """The metrics of a run. With `calls`, send and receive buffers count in `memory`.

    `known`: those of the same program and calls under other costs, whose peaks are the same.
    """
    busy, spans = [], []
    works = np.isin(program.kind, WORK)
    for rank in range(program.ranks):
        rows = slice(int(program.offsets[rank]), int(program.offsets[rank + 1]))
        start, end = timeline.start[rows][works[rows]], timeline.end[rows][works[rows]]
        busy.append(int((end - start).sum()) * timeline.unit)
        spans.append(int(end[-1] - start[0]) * timeline.unit if len(end) else Fraction(0))
    makespan = timeline.makespan
    span = max(spans, default=Fraction(0))
    return Metrics(
        makespan=makespan,
        bubble=1 - sum(busy) / (program.ranks * makespan) if makespan else Fraction(0),
        span=span,
        span_bubble=1 - max(busy) / span if span else Fraction(0),
        busy=tuple(busy),
        peak_activations=known.peak_activations if known else activations_held(program).peaks(),
        memory=known.memory if known else memory_used(program, calls).peaks(),
    )
