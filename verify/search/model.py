"""A problem as flat lists of integers, one entry an operation: what the searches run on.

Operations are numbered rank by rank and strand by strand, so those of a strand are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipedsl.program import Kind
from verify.search.problem import Objective, Operation, Orders, Problem

NONE = -1


@dataclass(frozen=True, eq=False)
class Model:
    """All per operation, unless said otherwise.

    `take` at its start and `give` at its end: sizes. `local`: the operation of its own rank that it needs: of the same
    stage and microbatch (I and B need F, W needs I), or what a fence says, which implies that; `upstream`: the
    neighbouring stage's, whose data arrive `lag` after its end; -1 for none. `feeds`: whose `upstream` it is.
    `closing`: how long after its end everything (its rank, for spans) ends at least.
    `strands[r]`: (first, past the last) of each strand of rank r. `room[r]`: the cap, or None.
    """

    problem: Problem
    operations: tuple[Operation, ...]
    rank: list[int]
    kind: list[int]
    duration: list[int]
    take: list[int]
    give: list[int]
    local: list[int]
    upstream: list[int]
    lag: list[int]
    feeds: list[int]
    closing: list[int]
    strand: list[int]
    strands: tuple[tuple[tuple[int, int], ...], ...]
    room: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.operations)

    @cached_property
    def horizon(self) -> int:
        """No order is longer: always some operation runs or some message is on its way, until the last has ended."""
        return sum(self.duration) + sum(self.lag) + self.problem.longest_close

    def orders(self, rows: Sequence[Sequence[int]]) -> Orders:
        return tuple(tuple(self.operations[row] for row in rank) for rank in rows)

    def rows(self, orders: Orders) -> list[list[int]]:
        number = {operation: row for row, operation in enumerate(self.operations)}
        return [[number[operation] for operation in rank] for rank in orders]


def model_of(problem: Problem) -> Model:
    """The lists. Raises ValueError where the strands are not every computation of the problem once."""
    operations = tuple(operation for rank in problem.strands for strand in rank for operation in strand)
    number = {operation: row for row, operation in enumerate(operations)}
    _check_complete(problem, operations)
    rank: list[int] = []
    strand: list[int] = []
    bounds: list[list[tuple[int, int]]] = []
    row = 0
    for r, strands in enumerate(problem.strands):
        bounds.append([])
        for k, items in enumerate(strands):
            rank += [r] * len(items)
            strand += [k] * len(items)
            bounds[-1].append((row, row + len(items)))
            row += len(items)
    local, upstream, lag, feeds = [], [], [], [NONE] * len(operations)
    take, give = [], []
    depth = problem.depth
    for row, (kind, stage, i) in enumerate(operations):
        whole, held = problem.activation[stage], problem.held_by_w[stage]
        take.append(whole if kind == Kind.F else 0)
        give.append({Kind.F: 0, Kind.B: whole, Kind.I: whole - held, Kind.W: held}[kind])
        local.append(_local(number, kind, stage, i))
        source = NONE
        if kind == Kind.F and stage % depth:
            source = number[Operation(Kind.F, stage - 1, i)]
        elif kind in (Kind.B, Kind.I) and (stage + 1) % depth:
            source = _backward(number, stage + 1, i)
        upstream.append(source)
        if source >= 0:
            feeds[source] = row
            other = operations[source].stage
            lag.append(0 if problem.placement[other] == problem.placement[stage] else problem.send[other])
        else:
            lag.append(0)
    for before, after in problem.fences:
        local[number[after]] = number[before]
    return Model(
        problem=problem,
        operations=operations,
        rank=rank,
        kind=[int(operation.kind) for operation in operations],
        duration=[problem.duration[operation.kind][operation.stage] for operation in operations],
        take=take,
        give=give,
        local=local,
        upstream=upstream,
        lag=lag,
        feeds=feeds,
        closing=[problem.closing[operation.stage] for operation in operations],
        strand=strand,
        strands=tuple(tuple(pairs) for pairs in bounds),
        room=problem.cap,
    )


def _backward(number: dict[Operation, int], stage: int, i: int) -> int:
    found = number.get(Operation(Kind.I, stage, i))
    return number[Operation(Kind.B, stage, i)] if found is None else found


def _local(number: dict[Operation, int], kind: Kind, stage: int, i: int) -> int:
    if kind in (Kind.B, Kind.I):
        return number[Operation(Kind.F, stage, i)]
    return number[Operation(Kind.I, stage, i)] if kind == Kind.W else NONE


def _check_complete(problem: Problem, operations: Sequence[Operation]) -> None:
    given = set(operations)
    if len(given) < len(operations):
        raise ValueError("an operation is in two places")
    expected = 0
    for stage in range(problem.stages):
        for i in range(problem.microbatches):
            whole = Operation(Kind.B, stage, i) in given
            needed = (Kind.F, Kind.B) if whole else (Kind.F, Kind.I, Kind.W)
            expected += len(needed)
            if not all(Operation(kind, stage, i) in given for kind in needed):
                raise ValueError(f"stage {stage} does not run forward and backward of microbatch {i}")
    if expected != len(operations):
        raise ValueError("there are operations that no stage or microbatch has")
    for rank, strands in enumerate(problem.strands):
        for strand in strands:
            if any(problem.placement[operation.stage] != rank for operation in strand):
                raise ValueError(f"rank {rank} does not hold the stage of one of its operations")


@dataclass(frozen=True, eq=False)
class Run:
    """What orders lead to: when every operation starts, when each rank's first does, and when the rank has ended with
    all that follows it; and the objective. All in units of time."""

    start: list[int]
    first: list[int]
    last: list[int]
    value: int


def run(model: Model, rows: Sequence[Sequence[int]]) -> Run | None:
    """Every operation as early as its rank's order and what it needs allow; None where the orders cannot end."""
    duration, upstream, lag, local = model.duration, model.upstream, model.lag, model.local
    count = len(model)
    start = [0] * count
    end = [-1] * count
    ranks = len(rows)
    cursor, clock = [0] * ranks, [0] * ranks
    waiting: dict[int, int] = {}
    ready = list(range(ranks - 1, -1, -1))
    done = 0
    while ready:
        r = ready.pop()
        order, time, at = rows[r], clock[r], cursor[r]
        stop = len(order)
        while at < stop:
            row = order[at]
            source = upstream[row]
            if source >= 0:
                arrival = end[source]
                if arrival < 0:
                    waiting[source] = r
                    break
                arrival += lag[row]
                if arrival > time:
                    time = arrival
            source = local[row]
            if source >= 0 and end[source] < 0:
                return None
            start[row] = time
            time += duration[row]
            end[row] = time
            if row in waiting:
                other = waiting.pop(row)
                if other != r:
                    ready.append(other)
            at += 1
        done += at - cursor[r]
        cursor[r], clock[r] = at, time
    if done < count:
        return None
    first = [start[order[0]] if order else 0 for order in rows]
    if model.problem.longest_close:
        clock = [_closed(model, end, r, order, first[r]) for r, order in enumerate(rows)]
    value = _value(model, first, clock)
    return Run(start, first, clock, value)


def _closed(model: Model, end: Sequence[int], r: int, order: Sequence[int], first: int) -> int:
    """When a rank has ended, with what follows its operations."""
    if not order:
        return 0
    busy = sum(model.duration[row] for row in order) + model.problem.beside[r]
    return max(first + busy, max(end[row] + model.closing[row] for row in order))


def _value(model: Model, first: Sequence[int], last: Sequence[int]) -> int:
    if model.problem.objective is Objective.MAKESPAN:
        return max(last, default=0)
    return max((b - a for a, b in zip(first, last, strict=True)), default=0)


def fits(model: Model, rows: Sequence[Sequence[int]]) -> bool:
    """Whether every rank keeps to its cap."""
    take, give = model.take, model.give
    for order, room in zip(rows, model.room, strict=True):
        if room is None:
            continue
        for row in order:
            room -= take[row]
            if room < 0:
                return False
            room += give[row]
    return True
