"""Orders judged apart from the search that found them: as a Program, by the structure checks and the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pipedsl.diagnostics import Source, Span
from pipedsl.program import Costs, Kind, Memory, Program
from pipedsl.simulate import Metrics, Timeline, measure
from verify.search.problem import Objective, Operation, Orders, Problem
from verify.structure import check_structure


class Invalid(Exception):
    """The orders are not an answer to the problem; the text says why."""


@dataclass(frozen=True)
class Judgement:
    """In the file's units: both measures, whichever is minimised, and what every rank holds at most.

    With what follows the operations as the problem has it, `closing` and `beside`, which may be less than what does.
    """

    makespan: Fraction
    span: Fraction
    memory: tuple[Fraction, ...]

    def value(self, objective: Objective) -> Fraction:
        return self.makespan if objective is Objective.MAKESPAN else self.span


def program_of(problem: Problem, orders: Orders) -> Program:
    """The Program that runs these orders, without what they hold: in replicas a stage may hold more than in others."""
    rows = [operation for rank in orders for operation in rank]
    columns = np.array(rows, np.int64).reshape(-1, 3)
    replica, stage = np.divmod(columns[:, 1], max(1, problem.depth))

    def times(values: tuple[int, ...]) -> tuple[Fraction, ...]:
        return tuple(value * problem.time_unit for value in values[: problem.depth])

    nothing = (Fraction(0),) * problem.depth
    source = Source("search", "")
    return Program(
        name="search",
        params={"p": problem.ranks, "m": problem.microbatches},
        ranks=problem.ranks,
        stages=problem.depth,
        microbatches=problem.microbatches,
        placement=np.array(problem.placement, np.int32).reshape(problem.replicas, -1),
        offsets=np.cumsum([0, *(len(rank) for rank in orders)]),
        kind=columns[:, 0].astype(np.int8),
        stage=stage.astype(np.int32),
        microbatch=columns[:, 2].astype(np.int32),
        replica=replica.astype(np.int32),
        span=np.zeros(len(rows), np.int64),
        spans=(Span(source, 0, 0),),
        costs=Costs(
            times(problem.duration[Kind.F]),
            times(problem.duration[Kind.B]),
            times(problem.duration[Kind.I]),
            times(problem.duration[Kind.W]),
            times(problem.send),
        ),
        memory=Memory(
            activation=nothing,
            held_by_w=nothing,
            weights=nothing,
            gradients=nothing,
            output=nothing,
            cap=(None,) * problem.ranks,
        ),
    )


def judge(problem: Problem, orders: Orders) -> Judgement:
    """What the orders cost. Raises `Invalid` unless they interleave the problem's strands, end, and fit."""
    _check_strands(problem, orders)
    program = program_of(problem, orders)
    found, timeline = check_structure(program)
    if timeline is None or found:
        raise Invalid(found[0].message if found else "the orders do not end")
    makespan, span = _measures(problem, program, timeline, measure(program, timeline))
    most = [peak(problem, order)[0] for order in orders]
    unit = problem.size_unit
    for rank, (held, cap) in enumerate(zip(most, problem.cap, strict=True)):
        if cap is not None and held > cap:
            raise Invalid(f"rank {rank} holds {held * unit} and its cap is {cap * unit}")
    return Judgement(makespan, span, tuple(held * unit for held in most))


def _measures(problem: Problem, program: Program, timeline: Timeline, metrics: Metrics) -> tuple[Fraction, Fraction]:
    """Makespan and span, with what follows the operations."""
    makespan, span = metrics.makespan, metrics.span
    if not problem.longest_close:
        return makespan, span
    for rank in range(program.ranks):
        rows = program.rows(rank)
        if not len(rows):
            continue
        first = timeline.start_of(rows.start)
        ends = [first + metrics.busy[rank] + problem.beside[rank] * problem.time_unit]
        of = slice(rows.start, rows.stop)
        for place in (place for place, holder in enumerate(problem.placement) if holder == rank):
            replica, stage = divmod(place, problem.depth)
            own = timeline.end[of][(program.stage[of] == stage) & (program.replica[of] == replica)]
            ends += [int(own.max()) * timeline.unit + problem.closing[place] * problem.time_unit] if len(own) else []
        makespan, span = max(makespan, *ends), max(span, max(ends) - first)
    return makespan, span


def peak(problem: Problem, order: Sequence[Operation]) -> tuple[int, int]:
    """The most that a rank's operations hold, in the problem's unit, and the first of them with which it is held; 0, -1
    where nothing ever is."""
    held, most, at = 0, 0, -1
    for row, (kind, stage, _) in enumerate(order):
        whole, kept = problem.activation[stage], problem.held_by_w[stage]
        held += {Kind.F: whole, Kind.B: -whole, Kind.I: kept - whole, Kind.W: -kept}[kind]
        if held > most:
            most, at = held, row
    return most, at


def _check_strands(problem: Problem, orders: Orders) -> None:
    if len(orders) != problem.ranks:
        raise Invalid(f"there are orders for {len(orders)} ranks and not for {problem.ranks}")
    for rank, (order, strands) in enumerate(zip(orders, problem.strands, strict=True)):
        place = {operation: (k, at) for k, strand in enumerate(strands) for at, operation in enumerate(strand)}
        next_of = [0] * len(strands)
        for operation in order:
            if operation not in place:
                raise Invalid(f"rank {rank} does not run {operation.kind.name} of stage {operation.stage}")
            k, at = place[operation]
            if at != next_of[k]:
                raise Invalid(f"rank {rank} runs operation {at} of strand {k} out of turn")
            next_of[k] += 1
        if any(count < len(strand) for count, strand in zip(next_of, strands, strict=True)):
            raise Invalid(f"rank {rank} leaves operations out")
    number = {operation: at for order in orders for at, operation in enumerate(order)}
    for before, after in problem.fences:
        if number[before] > number[after]:
            raise Invalid(f"{after.kind.name} of stage {after.stage} does not wait for what stands before it")
