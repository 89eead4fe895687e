"""The best order of one rank while the others run as they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from problems import EQUAL, linear
from small_problems import small_problem

from verify.search import judge, model_of
from verify.search.greedy import Habit, list_schedule
from verify.search.model import Model, fits, run
from verify.search.settle import settle
from verify.search.squeeze import MOST_STEPS, best_order, squeeze

FOREVER = float("inf")
MOST = 3_000  # orders of a rank that are compared one by one


def any_orders(model: Model) -> list[list[int]] | None:
    return list_schedule(model, (Habit(),) * model.problem.ranks)


def value(model: Model, rows: list[list[int]]) -> int:
    found = run(model, rows)
    assert found is not None
    return found.value


def many(pairs: tuple[tuple[int, int], ...]) -> int:
    """How many interleavings there are."""
    total, ways = 0, 1
    for first, last in pairs:
        for n in range(1, last - first + 1):
            total += 1
            ways = ways * total // n
    return ways


def interleavings(parts: list[list[int]]) -> Iterator[list[int]]:
    if not any(parts):
        yield []
    for k, part in enumerate(parts):
        if part:
            for rest in interleavings([*parts[:k], part[1:], *parts[k + 1 :]]):
                yield [part[0], *rest]


def earliest_end(model: Model, rows: list[list[int]], r: int, orders: list[list[int]]) -> int | None:
    """Of the orders of a rank with which nothing starts later elsewhere, by running all of the pipeline."""
    before = run(model, rows)
    assert before is not None
    ends = []
    for order in orders:
        changed = [*rows[:r], order, *rows[r + 1 :]]
        after = run(model, changed)
        if after is None or not fits(model, changed):
            continue
        elsewhere = (row for q, other in enumerate(rows) if q != r for row in other)
        if all(after.start[row] <= before.start[row] for row in elsewhere):
            ends.append(after.last[r])
    return min(ends, default=None)


def test_no_order_of_a_rank_ends_earlier_and_delays_nobody() -> None:
    compared = better = 0
    for seed in range(300):
        model = model_of(small_problem(seed)[1])
        rows = any_orders(model)
        found = None if rows is None else run(model, rows)
        if rows is None or found is None:
            continue
        for r, pairs in enumerate(model.strands):
            order, _ = best_order(model, found, r)
            if order is None or many(pairs) > MOST:
                continue
            least = earliest_end(model, rows, r, list(interleavings([list(range(a, b)) for a, b in pairs])))
            after = run(model, [*rows[:r], order, *rows[r + 1 :]])
            assert least is not None
            assert after is not None
            assert after.last[r] == least, f"seed {seed}, rank {r}"
            compared += 1
            better += least < found.last[r]
    assert compared > 100
    assert better


def test_squeezed_orders_are_answers_and_no_worse() -> None:
    better = 0
    for seed in range(200):
        problem = small_problem(seed)[1]
        model = model_of(problem)
        rows = any_orders(model)
        if rows is None:
            continue
        found, _ = squeeze(model, rows, 0, FOREVER)
        assert fits(model, found)
        before = judge(problem, model.orders(rows)).value(problem.objective)
        after = judge(problem, model.orders(found)).value(problem.objective)
        assert after <= before, f"seed {seed}"
        better += after < before
    assert better


def test_gaps_that_nothing_is_short_enough_to_fill_are_closed() -> None:
    costs = {"F": "1", "I": "1", "W": "0.7", "send": "0.1"}
    problem = linear(8, 24, costs, 16, "0.5", "span")
    model = model_of(problem)
    rows = any_orders(model)
    assert rows is not None
    filled, _ = settle(model, rows, FOREVER)
    assert value(model, filled) * problem.time_unit > 72
    found, _ = squeeze(model, filled, 0, FOREVER)
    assert fits(model, found)
    assert judge(problem, model.orders(found)).value(problem.objective) <= Fraction("69.2")


def test_nothing_is_done_when_the_time_is_over_or_the_goal_is_met() -> None:
    model = model_of(linear(4, 8, EQUAL, 3))
    rows = any_orders(model)
    assert rows is not None
    assert squeeze(model, rows, 0, 0.0) == (rows, 0)
    assert squeeze(model, rows, value(model, rows), FOREVER) == (rows, 0)


def test_it_ends_in_time_and_before_it_takes_too_many_steps() -> None:
    """Strands of one operation each have more states than there is room for: no order is better than one too late."""
    model = model_of(linear(2, 30, EQUAL, cap=4))
    single = tuple(
        tuple((operation,) for strand in strands for operation in strand) for strands in model.problem.strands
    )
    model = model_of(replace(model.problem, strands=single))
    rows = any_orders(model)
    assert rows is not None
    found = run(model, rows)
    assert found is not None
    order, steps = best_order(model, found, 0, FOREVER)
    assert order is None
    assert MOST_STEPS < steps <= MOST_STEPS + len(single[0])
    assert best_order(model, found, 0, 0.0)[1] < MOST_STEPS / 10
