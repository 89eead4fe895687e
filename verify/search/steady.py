"""Orders from steady states: the order of F and I comes from a pattern, W goes where there is time.

Patterns are compared on few microbatches first; the best are unrolled, and habits place their W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic

from pipedsl.program import Kind
from verify.search.fill import FILLING
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
SETTLED = 16  # patterns of all periods that are compared once they settled, at most
SETTLING = 6_000_000  # operations that these comparisons may run, about
LONGER = 5  # periods above the load of a rank that are tried
WORSE = 1.05  # what patterns may come to before they settle, of the best


@dataclass(frozen=True, eq=False)
class Steady:
    """A pattern, and `estimate`: about what it comes to for all microbatches, in units of time."""

    pattern: Pattern
    estimate: float

    @property
    def under_way(self) -> float:
        """Microbatches that are begun and not ended, in the steady state."""
        return self.pattern.length / self.pattern.period


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
    if not models:
        return [], 0
    size = sum(map(len, models))
    kept = max(6, min(KEPT, COMPARED // size))
    used = 0
    found = []
    for period in range(shortest, shortest + LONGER):
        for pattern in islice(patterns(model, layout, period, TRIES), kept):
            if monotonic() > stop:
                break
            used += size
            estimate = _estimate(models, pattern, problem.microbatches)
            if estimate is not None:
                found.append(Steady(pattern, estimate))
    best = []
    for steady in _promising(found, max(4, min(SETTLED, SETTLING // (3 * FILLING * size)))):
        if monotonic() > stop:
            break
        value, turns = _settled(models[-1], steady.pattern, stop)
        used += FILLING * turns * len(models[-1])
        before = run(models[-1], unroll(models[-1], steady.pattern))
        if before is not None:
            best.append(Steady(steady.pattern, steady.estimate + value - before.value))
    return sorted(best, key=_order), used


def _promising(found: list[Steady], many: int) -> list[Steady]:
    """Of the patterns that are not much worse than the best, the best and those of most microbatches, by turns.

    What is long leaves more to choose from where there is time to fill, so it gains more when it settles. Patterns
    that are alike in both are often the same one with chunks exchanged: one of them is enough.
    """
    alike: dict[tuple[float, float], Steady] = {}
    for steady in sorted(found, key=_order):
        if not alike or steady.estimate <= WORSE * min(alike)[0]:
            alike.setdefault((steady.estimate, steady.under_way), steady)
    best = list(alike.values())
    longest = sorted(best, key=lambda steady: (-steady.under_way, steady.estimate))
    chosen = dict.fromkeys(steady for pair in zip(longest, best, strict=True) for steady in pair)
    return list(chosen)[:many]


def _order(steady: Steady) -> tuple[float, int, int]:
    return steady.estimate, steady.pattern.period, steady.pattern.length


def _settled(model: Model, pattern: Pattern, stop: float) -> tuple[int, int]:
    """What a pattern comes to, its W where there is time; and how often idle time was filled."""
    rows, turns = settle(model, unroll(model, pattern), stop)
    sketch = _sketch(model, rows)
    placed = list_schedule(sketch, (Habit(),) * model.problem.ranks)
    both = [rows] if placed is None else [rows, _translated(model, sketch, placed)]
    return min(found.value for found in (run(model, one) for one in both) if found is not None), turns


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


def _estimate(models: list[Model], pattern: Pattern, microbatches: int) -> float | None:
    """What two short runs come to, drawn on to all microbatches. None where the orders do not fit."""
    values = []
    for model in models:
        rows = unroll(model, pattern)
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
