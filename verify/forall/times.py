"""Start times that are affine in the round and in q: guessed from two runs, then proved for all q.

`prove_order`: where every operation can be given a time that is at least one later than the time of everything it
needs (the operation before it on its rank included), no operation waits in a cycle: the order of every rank agrees
with all dependencies, for every q from the threshold on.

`prove_times`: where times satisfy every rule "not before ..." and for every operation one of the rules is an
equality (or the time is 0 and nothing precedes), they are the times of the run itself, by induction along the order.

Neither argument depends on where the times come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np

from pipedsl.program import COMPUTE, Costs, Ints, Kind
from pipedsl.simulate import Stuck, simulate
from verify.forall.linear import ZERO, Linear, Threshold, TooLate, whole
from verify.forall.program import ParametricProgram, uniform_costs
from verify.forall.statements import Block, Edge, Statements, build

ROUNDS = (24, 96, 400, 1200)
"""Rounds of the growing segments in the runs from which times are guessed, one after another."""

T = TypeVar("T")

MOST_UNROLLED = 8
MOST_OPERATIONS = 2_000_000
MOST_STATEMENTS = 100_000


@dataclass(frozen=True, slots=True)
class _Start:
    """Start of a statement: `per_round * j + base(q)`."""

    per_round: int
    base: Linear

    def at(self, round_: Linear) -> Linear:
        return round_.times(self.per_round) + self.base


@dataclass(frozen=True)
class Run:
    """What a run takes, for all q; exact, in the unit of the costs. `busy`: per rank."""

    makespan: Linear
    span: Linear
    busy: tuple[Linear, ...]


class Prover:
    """Proves times of one program; statements are built once for every amount of peeling."""

    def __init__(self, program: ParametricProgram) -> None:
        self.program = program
        self._built: dict[tuple[int, int], tuple[Statements, int]] = {}

    def prove_order(self, threshold: Threshold) -> bool:
        """Whether all dependencies are proved to agree with the order, for all q >= `threshold.start`.

        Raises NeedsPeriod, and Stuck where a run stands still.
        """
        costs = uniform_costs(self.program.stages)
        return self._prove(costs, threshold, lambda *found: _later(*found) or None) is not None

    def prove_times(self, costs: Costs, threshold: Threshold) -> Run | None:
        """What the run takes under `costs`, exactly, for all q >= `threshold.start`; None where that is not proved.

        The order must be proved before, from `threshold.start` on. Raises NeedsPeriod.
        """
        return self._prove(costs, threshold, _exact)

    def _prove(
        self,
        costs: Costs,
        threshold: Threshold,
        attempt: Callable[[Statements, list[_Start], _Durations, Threshold], T | None],
    ) -> T | None:
        for peel, unroll in _shapes(self.program, costs, threshold):
            trial = replace(threshold)
            try:
                statements = self._statements(peel, unroll, trial)
                if statements is None:
                    continue
                starts, durations = _guess(statements, costs, trial.start)
                found = attempt(statements, starts, durations, trial)
            except TooLate:
                continue
            if found is not None:
                threshold.raise_to(trial.start)
                return found
        return None

    def _statements(self, peel: int, unroll: int, threshold: Threshold) -> Statements | None:
        key = peel, unroll
        if key not in self._built:
            program = self.program.unrolled(unroll)
            size = sum(len(segment.body) * (2 * peel + 1) for word in program.words for segment in word)
            if size > MOST_STATEMENTS:
                return None
            built = build(program, peel, threshold)
            self._built[key] = built, threshold.start
        built, start = self._built[key]
        threshold.raise_to(start)
        return built


def _shapes(program: ParametricProgram, costs: Costs, threshold: Threshold) -> Iterator[tuple[int, int]]:
    """How many rounds to peel and to unroll, to be tried in turn."""
    growing = program.growing()
    if not growing:
        yield 0, 1
        return
    tried: set[tuple[int, int]] = set()
    for rounds in ROUNDS:
        size = max(threshold.start, *(_reaching(segment.count, rounds) for segment in growing))
        if _operations(program, size) > MOST_OPERATIONS:
            return
        shape = _regular(program, costs, size)
        if shape is None:
            continue
        peel, unroll = shape
        for more in (0, 1, 4):
            if (peel + more, unroll) not in tried:
                tried.add((peel + more, unroll))
                yield peel + more, unroll


def _reaching(count: Linear, rounds: int) -> int:
    """The first q from which the count is at least `rounds`."""
    return max(0, -((whole(count.constant) - rounds) // whole(count.slope)))


def _operations(program: ParametricProgram, size: int) -> int:
    return sum(whole(segment.count.at(size)) * len(segment.body) for word in program.words for segment in word)


def _regular(program: ParametricProgram, costs: Costs, size: int) -> tuple[int, int] | None:
    """(peel, unroll) such that starts in every growing segment advance evenly, as seen in one run."""
    timeline = simulate(program.at(size), costs)
    tables: list[Ints] = []
    row = 0
    for word in program.words:
        for segment in word:
            rounds = whole(segment.count.at(size))
            if segment.count.grows:
                tables.append(timeline.start[row : row + rounds * len(segment.body)].reshape(rounds, -1))
            row += rounds * len(segment.body)
    for unroll in range(1, MOST_UNROLLED + 1):
        peels = [_irregular(table, unroll) for table in tables]
        if all(peel is not None for peel in peels):
            most = max(peel for peel in peels if peel is not None)
            return -(-most // unroll), unroll
    return None


def _irregular(table: Ints, unroll: int) -> int | None:
    """How many rounds at either end do not advance as the middle does; None where the middle itself is uneven."""
    rounds = len(table)
    steps = table[unroll:] - table[:-unroll]
    middle = len(steps) // 2
    same = (steps == steps[middle]).all(axis=1)
    uneven = np.flatnonzero(~same)
    head = int(uneven[uneven < middle].max(initial=-1)) + 1
    tail = len(steps) - int(uneven[uneven > middle].min(initial=len(steps)))
    peel = max(head, tail)
    return peel if 2 * peel + 4 * unroll <= rounds and peel <= rounds // 4 + 1 else None


@dataclass(frozen=True)
class _Durations:
    """Durations by kind and stage and `send` by stage, in multiples of `unit`."""

    unit: Fraction
    of: dict[Kind, list[int]]
    send: list[int]


def _guess(statements: Statements, costs: Costs, size: int) -> tuple[list[_Start], _Durations]:
    """Starts fitted to the runs at q = `size` and `size + 1`."""
    runs = [simulate(statements.program.at(size + i), costs) for i in range(2)]
    unit = runs[0].unit
    firsts = [_first_rows(statements, size + i) for i in range(2)]
    found: list[_Start] = []
    for block, one, other in zip(_owners(statements), *firsts, strict=True):
        here, there = int(runs[0].start[one]), int(runs[1].start[other])
        per_round = 0
        if block.count.grows:
            per_round = int(runs[0].start[one + block.size]) - here
        slope = there - here
        found.append(_Start(per_round, Linear(slope, here - slope * size)))
    of = {kind: [int(value / unit) for value in costs.of(kind)] for kind in COMPUTE}
    return found, _Durations(unit, of, [int(value / unit) for value in costs.send])


def _owners(statements: Statements) -> Iterator[Block]:
    for own in statements.blocks:
        for block in own:
            for _ in range(block.size):
                yield block


def _first_rows(statements: Statements, size: int) -> list[int]:
    """The row of round 0 of every statement in the program at q = `size`."""
    rows: list[int] = []
    row = 0
    for own in statements.blocks:
        for block in own:
            rows.extend(range(row, row + block.size))
            row += block.size * whole(block.count.at(size))
    return rows


def _slack(edge: Edge, starts: list[_Start], after: int) -> Iterator[Linear]:
    """By how much the target starts later than `after` past the source's start, at both ends of an edge."""
    target, source = starts[edge.target], starts[edge.source]
    for j, k in edge.ends:
        yield (target.at(j) - source.at(k)).plus(-after)


def _later(statements: Statements, starts: list[_Start], durations: _Durations, threshold: Threshold) -> bool:
    """Whether everything starts at least 1 after all that it needs has started."""
    edges: Iterable[Edge] = (*statements.along, *statements.local, *statements.upstream)
    return all(threshold.never_negative(slack) for edge in edges for slack in _slack(edge, starts, 1))


def _exact(statements: Statements, starts: list[_Start], durations: _Durations, threshold: Threshold) -> Run | None:
    """The metrics of the run, where the starts are proved to be the run's."""
    every = statements.statements
    placement = statements.program.placement
    length = [durations.of[each.op.kind][each.op.stage] for each in every]
    first_of_rank = {own[0].first for own in statements.blocks if own}
    # Whether all instances of a statement start exactly when the rank is free, and when the data arrives.
    free = [True] * len(every)
    arrives: list[bool | None] = [None] * len(every)
    for edge in statements.along:
        for slack in _slack(edge, starts, length[edge.source]):
            if not threshold.never_negative(slack):
                return None
            free[edge.target] &= slack.is_zero
    for edge in statements.upstream:
        target, source = every[edge.target], every[edge.source]
        crosses = placement[target.op.stage] != placement[source.op.stage]
        after = length[edge.source] + (durations.send[source.op.stage] if crosses else 0)
        for slack in _slack(edge, starts, after):
            if not threshold.never_negative(slack):
                return None
            arrives[edge.target] = arrives[edge.target] is not False and slack.is_zero
    for number, start in enumerate(starts):
        if number in first_of_rank:
            free[number] &= start.base.is_zero
            if not threshold.never_negative(start.base):
                return None
        if not free[number] and not arrives[number]:
            return None
    return _measured(statements, starts, length, durations.unit, threshold)


def _measured(
    statements: Statements, starts: list[_Start], length: list[int], unit: Fraction, threshold: Threshold
) -> Run:
    ends, spans, busy = [], [], []
    for own in statements.blocks:
        work = ZERO
        for block in own:
            work = work + block.count.times(sum(length[block.first : block.first + block.size]))
        busy.append(work.times(unit))
        if own:
            last = own[-1]
            number = last.first + last.size - 1
            end = starts[number].at(last.count.plus(-1)).plus(length[number])
            ends.append(end)
            spans.append(end - starts[own[0].first].base)
    makespan = threshold.largest(ends).times(unit) if ends else ZERO
    span = threshold.largest(spans).times(unit) if spans else ZERO
    return Run(makespan, span, tuple(busy))


__all__ = ["Prover", "Run", "Stuck"]
