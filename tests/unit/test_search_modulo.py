"""Periods of few microbatches: as short as none of another kind, and orders of any number of microbatches."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from random import Random

import pytest

from pipedsl.program import Costs, Kind
from verify.search import Problem, make_problem, model_of
from verify.search.model import Model, fits, run
from verify.search.modulo import MOST_CHOICES, Kernel, Periods, few_microbatches

FOREVER = float("inf")


def uneven(speed: list[int], cap: int | None, microbatches: int, weight: int = 1, send: int = 1) -> Problem:
    times = tuple(map(Fraction, speed))
    weights = tuple(weight * v for v in times)
    whole = tuple(a + b for a, b in zip(times, weights, strict=True))
    costs = Costs(times, whole, times, weights, (Fraction(send),) * len(speed))
    return make_problem(placement=range(len(speed)), microbatches=microbatches, costs=costs, cap=cap)


def shortest(problem: Problem, count: int, longest: int, work: float = 20) -> Kernel | None:
    few = few_microbatches(model_of(problem), count)
    assert few is not None
    return Periods(few, work, FOREVER, 0).shortest(longest)


def holds(kernel: Kernel, cap: int | None, periods: int = 6) -> bool:
    """Whether the starts hold for ever, by what every pair of operations of several periods needs."""
    few, count = kernel.few, kernel.few.problem.microbatches
    when = {
        (kind, stage, i + n * count): kernel.start[row] + n * kernel.period
        for row, (kind, stage, i) in enumerate(few.operations)
        for n in range(periods)
    }
    problem = few.problem
    took = {at: problem.duration[at[0]][at[1]] for at in when}
    for kind, stage, i in when:
        if kind == Kind.F and stage:
            needed = [(Kind.F, stage - 1, i, problem.send[stage - 1])]
        elif kind == Kind.I:
            needed = [(Kind.F, stage, i, 0)]
            if stage + 1 < problem.stages:
                needed.append((Kind.I, stage + 1, i, problem.send[stage + 1]))
        else:
            needed = [(Kind.I, stage, i, 0)] if kind == Kind.W else []
        if kind == Kind.F and cap is not None and i >= cap:
            needed.append((Kind.W, stage, i - cap, 0))
        if any(when[kind, stage, i] < when[at] + took[at] + lag for *at_, lag in needed for at in [tuple(at_)]):
            return False
    for stage in range(problem.stages):
        line = sorted((when[at], when[at] + took[at]) for at in when if at[1] == stage)
        if any(end > begin for (_, end), (begin, _) in pairwise(line)):
            return False
    return True


@pytest.mark.parametrize(("count", "period"), [(1, 52), (2, 88), (3, 138), (4, 176)])
def test_more_microbatches_a_period_may_be_quicker(count: int, period: int) -> None:
    """Eight ranks of different speed with room for five: two take 44 each, one alone 52. A second formulation, with
    the places of operations as integers, says the same."""
    costs = Costs(
        tuple(map(Fraction, (9, 12, 14, 14, 14, 8, 10, 8))),
        tuple(map(Fraction, (17, 23, 27, 27, 24, 13, 19, 13))),
        tuple(map(Fraction, (9, 12, 14, 14, 14, 8, 10, 8))),
        tuple(map(Fraction, (8, 11, 13, 13, 10, 5, 9, 5))),
        (Fraction(1),) * 8,
    )
    problem = make_problem(placement=range(8), microbatches=32, costs=costs, cap=5)
    kernel = shortest(problem, count, 60 * count)
    assert kernel is not None
    assert kernel.period == period
    assert holds(kernel, 5)
    assert shortest(problem, count, period - 1) is None


def brute_force(few: Model, period: int, cap: int | None) -> bool:
    """Whether any starts of one microbatch hold, one by one. To wait longer than a period for its turn helps F alone,
    as that keeps less in memory; two periods are enough under these caps."""
    order = sorted(range(len(few)), key=lambda row: (_depth(few, row), row))

    def place(n: int, start: list[int]) -> bool:
        if n == len(order):
            return holds(Kernel(few, period, start), cap)
        row = order[n]
        soon = [start[a] + few.duration[a] + lag for a, lag in _needs(few, row)]
        for at in range(max(soon, default=0), max(soon, default=0) + _longest(few, row, period)):
            meets = any(
                few.rank[other] == few.rank[row]
                and not (
                    (at - start[other]) % period >= few.duration[other]
                    and (start[other] - at) % period >= few.duration[row]
                )
                for other in order[:n]
            )
            if not meets and place(n + 1, [*start[:row], at, *start[row + 1 :]]):
                return True
        return False

    return place(0, [0] * len(few))


def _longest(few: Model, row: int, period: int) -> int:
    if not _needs(few, row):
        return 1
    return 2 * period if few.kind[row] == Kind.F else period


def _needs(few: Model, row: int) -> list[tuple[int, int]]:
    near = [(few.local[row], 0)] if few.local[row] >= 0 else []
    return near + ([(few.upstream[row], few.lag[row])] if few.upstream[row] >= 0 else [])


def _depth(few: Model, row: int) -> int:
    return 1 + max((_depth(few, other) for other, _ in _needs(few, row)), default=-1)


@pytest.mark.parametrize(("speed", "cap"), [*product([[1, 2], [2, 1], [2, 2], [1, 1]], [1, 2, 3])])
def test_no_shorter_period_of_one_microbatch_exists(speed: list[int], cap: int) -> None:
    problem = uneven(speed, cap, 4)
    kernel = shortest(problem, 1, 40)
    assert kernel is not None
    assert holds(kernel, cap)
    few = few_microbatches(model_of(problem), 1)
    assert few is not None
    assert not any(brute_force(few, period, cap) for period in range(3 * max(speed), kernel.period))
    assert brute_force(few, kernel.period, cap)


def test_unrolled_periods_are_orders_that_fit_and_take_no_longer_than_the_periods() -> None:
    draw = Random(7)
    for _ in range(20):
        p = draw.randint(2, 4)
        cap = draw.choice([None, *range(1, p + 2)])
        count = draw.randint(1, 3)
        problem = uneven([draw.randint(1, 4) for _ in range(p)], cap, draw.randint(6, 11), draw.randint(1, 2))
        model = model_of(problem)
        kernel = shortest(problem, count, model.horizon)
        assert kernel is not None
        assert holds(kernel, cap)
        for skipped in range(count):
            rows = kernel.unroll(model, skipped)
            found = run(model, rows)
            assert found is not None
            assert fits(model, rows)
            ends = [
                kernel.start[row % len(kernel.few)] + kernel.few.duration[row % len(kernel.few)]
                for row in range(len(kernel.few))
            ]
            periods = (problem.microbatches + skipped - 1) // count
            assert found.value <= max(ends) - min(kernel.start) + periods * kernel.period


def test_what_it_is_not_for() -> None:
    assert few_microbatches(model_of(uneven([1, 1], 2, 8)), 2) is not None
    v = make_problem(placement=[0, 1, 1, 0], microbatches=8, costs=_even(4), cap=None)
    assert few_microbatches(model_of(v), 1) is None  # two stages on a rank
    none = uneven([1, 1], 2, 8, weight=0)
    assert few_microbatches(model_of(none), 1) is None  # W takes no time
    deep = uneven([1] * 64, 64, 128)
    assert few_microbatches(model_of(deep), 1) is not None
    assert few_microbatches(model_of(deep), 4) is None  # more than MOST_CHOICES
    assert 64 * 3 * 64 <= MOST_CHOICES < 64 * 3 * 4 * 64


def test_no_work_means_no_answer() -> None:
    few = few_microbatches(model_of(uneven([3, 2, 4, 3], 3, 16)), 2)
    assert few is not None
    asked = Periods(few, 1e-6, FOREVER, 0)
    assert asked.shortest(100) is None
    assert asked.used < 1


def _even(stages: int) -> Costs:
    one = (Fraction(1),) * stages
    return Costs(one, tuple(2 * v for v in one), one, one, tuple(Fraction(0) for _ in one))
