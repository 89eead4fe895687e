"""Moves of one operation within its rank: what a program would be with it, and which ones could shorten it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from operator import add

import numpy as np

from pipedsl.dependencies import Dependencies, arrives_late, dependencies
from pipedsl.program import COMPUTE, Ints, Kind, Program
from pipedsl.simulate import Stuck, Timeline, simulate

SIMULATION = 500
"""What one simulation costs beside its operations, in operations."""


@dataclass(frozen=True)
class Move:
    """`row` takes the place of `place`, a row of the same rank; the rows between them shift by one."""

    row: int
    place: int


@dataclass
class Budget:
    """How much simulating may still cost, in operations."""

    left: int

    def allows(self, program: Program) -> bool:
        """Whether it has room for a simulation of the program."""
        return len(program) + SIMULATION <= self.left

    def take(self, program: Program) -> bool:
        """The same, and takes its cost if so."""
        allowed = self.allows(program)
        if allowed:
            self.left -= len(program) + SIMULATION
        return allowed


def moved(program: Program, move: Move) -> Program:
    """The program after a move."""
    order: Ints = np.arange(len(program))
    first, last = min(move.row, move.place), max(move.row, move.place)
    order[first : last + 1] = np.roll(order[first : last + 1], 1 if move.place < move.row else -1)
    names = ("kind", "stage", "microbatch", "replica", "span")
    return replace(program, **{name: getattr(program, name)[order] for name in names})


def simulate_move(program: Program, move: Move) -> tuple[Program, Timeline] | None:
    """The program after a move and its timeline; None where the new order is impossible."""
    changed = moved(program, move)
    try:
        return changed, simulate(changed)
    except Stuck:
        return None


def at_its_shortest(program: Program, timeline: Timeline) -> bool:
    """Whether no order of these operations could have a smaller makespan, by a bound that is quick to compute.

    A rank cannot start before its first activation is there, works all its operations off one after another, and what
    it ends last has still to be followed down to the first stage.
    """
    costs, kinds = program.costs, set(program.kind.tolist())
    if not len(program):
        return True
    split = Kind.I in kinds
    halves = zip(costs.backward, costs.backward_input, strict=True)
    back = [min(b, i) if split and Kind.B in kinds else i if split else b for b, i in halves]
    duration = [costs.of(kind) for kind in COMPUTE]
    arrive = _below(costs.forward, costs.send, program.placement)
    follow = _below(back, costs.send[1:], program.placement)
    bound = Fraction(0)
    for rank in range(program.ranks):
        rows = slice(int(program.offsets[rank]), int(program.offsets[rank + 1]))
        pairs = Counter(zip(program.kind[rows].tolist(), program.stage[rows].tolist(), strict=True))
        load = sum(count * duration[kind][stage] for (kind, stage), count in pairs.items() if kind <= Kind.W)
        chunks = program.chunks(rank)
        heads, tails = ([path[replica][stage] for replica, stage in chunks] for path in (arrive, follow))
        if heads:
            bound = max(bound, min(heads) + load + (0 if split else min(tails)))
    return timeline.makespan <= bound


def _below(durations: Sequence[Fraction], sends: Sequence[Fraction], placement: Ints) -> list[list[Fraction]]:
    """For every replica and stage: how long a microbatch is in the stages below, and between ranks there."""
    found = []
    for copy in placement.tolist():
        hops = [send if a != b else Fraction(0) for send, a, b in zip(sends, copy, copy[1:], strict=False)]
        found.append(list(accumulate(map(add, durations, hops), initial=Fraction(0))))
    return found


def shortening_moves(program: Program, timeline: Timeline) -> Iterator[Move]:
    """Moves that might shorten the program, those of early operations first.

    A longest chain of operations that wait for nothing but each other stays as long as it is unless one of its members
    moves, so only these are tried: to where they could start at once, and past their neighbours.
    """
    needs = dependencies(program)
    late = arrives_late(program, needs.upstream)
    for row in _longest_chain(program, timeline, needs, late):
        low, high = _range(program, needs, row)
        ready = _ready(program, timeline, needs, row, bool(late[row]))
        places = []
        if low < row:
            at_once = low + int(np.searchsorted(timeline.start[low:row], ready, "left"))
            places += [at_once, max(at_once - 1, low), row - 1]
        if row < high:
            places += [row + 1, high]
        for place in dict.fromkeys(places):
            if place != row:
                yield Move(row, place)


def _longest_chain(program: Program, timeline: Timeline, needs: Dependencies, late: Ints) -> list[int]:
    """Rows of one chain from time 0 to the end, each starting when the one before lets it."""
    send = np.array([int(cost / timeline.unit) for cost in program.costs.send], timeline.start.dtype)
    first = set(program.offsets[:-1].tolist())
    row = int(np.argmax(timeline.end))
    chain = [row]
    while timeline.start[row] > 0:
        before = row - 1
        if row in first or timeline.end[before] != timeline.start[row]:
            before = int(needs.upstream[row])
            if not late[row] or timeline.end[before] + send[program.stage[before]] != timeline.start[row]:
                break
        chain.append(before)
        row = before
    return chain[::-1]


def _range(program: Program, needs: Dependencies, row: int) -> tuple[int, int]:
    """The first and last place that a row can take without passing what it needs, or its own kind and stage.

    Those keep their order, so that counted operations stay the same microbatches.
    """
    rank = int(np.searchsorted(program.offsets, row, "right")) - 1
    first, end = int(program.offsets[rank]), int(program.offsets[rank + 1])
    same = (
        (program.kind[first:end] == program.kind[row])
        & (program.stage[first:end] == program.stage[row])
        & (program.replica[first:end] == program.replica[row])
    )
    stops = first + np.flatnonzero(same)
    own = [int(need) for need in (needs.local[row], needs.upstream[row]) if first <= need < end]
    users = first + np.flatnonzero((needs.local[first:end] == row) | (needs.upstream[first:end] == row))
    low = max([first - 1, *own, *stops[stops < row].tolist()]) + 1
    high = min([end, *users.tolist(), *stops[stops > row].tolist()]) - 1
    return low, high


def _ready(program: Program, timeline: Timeline, needs: Dependencies, row: int, late: bool) -> int:
    """When all that a row needs is there, in units of the timeline."""
    ready, source = 0, int(needs.upstream[row])
    if source >= 0:
        send = int(program.costs.send[int(program.stage[source])] / timeline.unit) if late else 0
        ready = int(timeline.end[source]) + send
    if needs.local[row] >= 0:
        ready = max(ready, int(timeline.end[int(needs.local[row])]))
    return ready


def relieving_moves(program: Program, needs: Dependencies, rank: int, peak_row: int) -> Iterator[Move]:
    """Moves of one operation that might lower a rank's peak, which is reached at `peak_row`.

    A W that runs only after the peak is moved before it; the F that makes the peak is moved after the next release.
    """
    rows = program.rows(rank)
    later = np.arange(peak_row + 1, rows.stop)
    weights = later[(program.kind[later] == Kind.W) & (needs.local[later] < peak_row)]
    for row in weights[:1].tolist():
        low, _ = _range(program, needs, row)
        if low <= peak_row:
            yield Move(row, peak_row)
    if program.kind[peak_row] == Kind.F:
        release = later[np.isin(program.kind[later], (Kind.B, Kind.I, Kind.W))]
        _, high = _range(program, needs, peak_row)
        if len(release) and release[0] <= high:
            yield Move(peak_row, int(release[0]))
