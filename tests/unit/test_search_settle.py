"""Orders seen from their end, and settled there and back."""

from __future__ import annotations

from dataclasses import fields

from problems import EQUAL, linear, vee
from small_problems import small_problem

from verify.search import Objective, judge, model_of
from verify.search.greedy import Habit, list_schedule
from verify.search.kernel import unroll
from verify.search.mirror import mirrored, turned
from verify.search.model import Model, fits, run
from verify.search.settle import settle
from verify.search.steady import steady_states

FOREVER = float("inf")


def any_orders(model: Model) -> list[list[int]] | None:
    return list_schedule(model, (Habit(),) * model.problem.ranks)


def test_the_mirror_of_the_mirror_is_the_model() -> None:
    for seed in range(60):
        model = model_of(small_problem(seed)[1])
        other = mirrored(model)
        if model.problem.fences:
            assert other is None
            continue
        assert other is not None
        again = mirrored(other)
        assert again is not None
        for field in fields(Model):
            assert getattr(again, field.name) == getattr(model, field.name), f"seed {seed}: {field.name}"


def test_from_the_end_orders_take_as_long_and_hold_as_much() -> None:
    seen = 0
    for seed in range(200):
        model = model_of(small_problem(seed)[1].with_objective(Objective.MAKESPAN))
        other, rows = mirrored(model), any_orders(model)
        if other is None or rows is None:
            continue
        seen += 1
        back = turned(model, rows)
        assert turned(model, back) == rows
        there, here = run(model, rows), run(other, back)
        assert there is not None
        assert here is not None
        assert there.value == here.value, f"seed {seed}"
        assert held(model, rows) == held(other, back), f"seed {seed}"
    assert seen > 100


def held(model: Model, rows: list[list[int]]) -> list[int]:
    """The most that every rank holds while something runs."""
    peaks = []
    for order in rows:
        now = most = 0
        for row in order:
            now += model.take[row]
            most = max(most, now)
            now -= model.give[row]
        peaks.append(most)
    return peaks


def test_settled_orders_are_answers_and_no_worse() -> None:
    better = 0
    for seed in range(200):
        problem = small_problem(seed)[1]
        model = model_of(problem)
        rows = any_orders(model)
        if rows is None:
            continue
        found, _ = settle(model, rows, FOREVER)
        assert fits(model, found)
        before = judge(problem, model.orders(rows)).value(problem.objective)
        after = judge(problem, model.orders(found)).value(problem.objective)
        assert after <= before, f"seed {seed}"
        better += after < before
    assert better


def test_nothing_is_done_when_the_time_is_over() -> None:
    model = model_of(linear(4, 8, EQUAL, 3))
    rows = any_orders(model)
    assert rows is not None
    assert settle(model, rows, 0.0) == (rows, 0)


def test_more_memory_than_a_short_pattern_takes_is_used() -> None:
    """Between V-Half's memory (9) and ZB-V's (16) at 16 ranks, longer patterns are better once they settled.

    Those that are best before come to 113 or more. V-Half itself takes 116.5 for 32 microbatches.
    """
    model = model_of(vee(16, 32, EQUAL, 12))
    states, _ = steady_states(model)
    assert states[0].estimate * model.problem.time_unit <= 110
    rows, _ = settle(model, unroll(model, states[0].pattern), FOREVER)
    assert fits(model, rows)
    assert judge(model.problem, model.orders(rows)).makespan <= 112
