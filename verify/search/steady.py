"""Orders from steady states: the order of F and I comes from a pattern, W goes where there is time.

Patterns are compared on few microbatches first; the best are unrolled, and habits place their W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic

from pipedsl.program import Kind
from verify.search.fill import FILLING, fill
from verify.search.greedy import Habit, list_schedule
from verify.search.kernel import Pattern, layout_of, patterns, unroll
from verify.search.model import Model, fits, model_of, run
from verify.search.problem import Operation
from verify.search.settle import settle
from verify.search.shorter import shorter
from verify.search.tune import tune

TRIES = 600_000  # operations of patterns that are placed for one period
KEPT = 200  # patterns of one period that are compared, at most
COMPARED = 600_000  # operations that all comparisons of one period together may run, about
FILLED = 4  # patterns of one period that are compared with their idle time filled
LONGER = 5  # periods above the load of a rank that are tried


@dataclass(frozen=True, eq=False)
class Steady:
    """A pattern, and `estimate`: about what it comes to for all microbatches, in units of time."""

    pattern: Pattern
    estimate: float


def steady_states(model: Model, stop: float = float("inf")) -> tuple[list[Steady], int]:
    """Patterns that keep to the caps, the best first by what a short run of them says; and how many operations ran."""
    layout = layout_of(model)
    if layout is None:
        return [], 0
    problem = model.problem
    shortest = problem.stages // problem.ranks * sum(layout.slots)
    small = min(problem.microbatches, 2 * problem.ranks)
    half = max(1, small // 2)
    problems = [shorter(problem, m) for m in sorted({half, small})]
    models = [model_of(one) for one in problems if one is not None]
    size = sum(map(len, models))
    kept = max(6, min(KEPT, COMPARED // size))
    used = 0
    chosen: list[Steady] = []
    filled = max(2, min(FILLED, 5 * COMPARED // (FILLING * size)))
    for period in range(shortest, shortest + LONGER):
        found = []
        for pattern in islice(patterns(model, layout, period, TRIES), kept):
            if monotonic() > stop:
                break
            used += size
            estimate = _estimate(models, pattern, problem.microbatches, unroll)
            if estimate is not None:
                found.append(Steady(pattern, estimate))
        chosen += sorted(found, key=_order)[:filled]
    best = []
    for steady in sorted(chosen, key=_order):
        if monotonic() > stop:
            break
        used += FILLING * size
        estimate = _estimate(models, steady.pattern, problem.microbatches, _filled)
        if estimate is not None:
            best.append(Steady(steady.pattern, estimate))
    return sorted(best, key=_order), used


def _order(steady: Steady) -> tuple[float, int, int]:
    return steady.estimate, steady.pattern.period, steady.pattern.length


def _filled(model: Model, pattern: Pattern) -> list[list[int]]:
    """With idle time filled, or W where there is time, whichever is better."""
    rows = fill(model, unroll(model, pattern))
    sketch = _sketch(model, rows)
    placed = list_schedule(sketch, (Habit(),) * model.problem.ranks)
    if placed is None:
        return rows
    placed = _translated(model, sketch, placed)
    one, other = run(model, rows), run(model, placed)
    return placed if one is not None and other is not None and other.value < one.value else rows


def place_weights(
    model: Model,
    steady: Steady,
    goal: int,
    tries: int,
    seed: int,
    stop: float,
    notice: Callable[[list[list[int]]], None],
) -> int:
    """The pattern's order of F and I, with W placed by habits. Answers how many schedules that cost."""
    rows, turns = settle(model, unroll(model, steady.pattern), stop)
    notice(rows)
    sketch = _sketch(model, rows)
    found = tune(sketch, goal, tries, seed, stop)
    if found is None:
        return tries + FILLING * turns
    rows, more = settle(model, _translated(model, sketch, found.rows), stop)
    notice(rows)
    return found.tried + FILLING * (turns + more)


def _sketch(model: Model, rows: list[list[int]]) -> Model:
    """The problem with the order of F and I fixed, and W open."""
    return model_of(replace(model.problem, strands=tuple(_merged(model, order) for order in rows)))


def _translated(model: Model, sketch: Model, rows: list[list[int]]) -> list[list[int]]:
    number = {operation: row for row, operation in enumerate(model.operations)}
    return [[number[sketch.operations[row]] for row in order] for order in rows]


def _merged(model: Model, order: list[int]) -> tuple[tuple[Operation, ...], ...]:
    """F and I of a rank as one strand, and its W in another: as they come."""
    first = tuple(model.operations[row] for row in order if model.kind[row] != Kind.W)
    weights = tuple(model.operations[row] for row in order if model.kind[row] == Kind.W)
    return tuple(strand for strand in (first, weights) if strand)


def _estimate(
    models: list[Model], pattern: Pattern, microbatches: int, orders: Callable[[Model, Pattern], list[list[int]]]
) -> float | None:
    """What two short runs come to, drawn on to all microbatches. None where the orders do not fit."""
    values = []
    for model in models:
        rows = orders(model, pattern)
        found = run(model, rows)
        if found is None or not fits(model, rows):
            return None
        values.append((model.problem.microbatches, found.value))
    (m, value), *more = reversed(values)
    if not more or m == microbatches:
        return float(value)
    slope = (value - more[0][1]) / (m - more[0][0])
    return value + slope * (microbatches - m)


__all__ = ["Steady", "place_weights", "steady_states"]
