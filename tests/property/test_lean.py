"""Less memory at the same value, against the optima of every smaller limit, found by trying every order."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from brute import optimum
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.search import (
    Budget,
    Infeasible,
    NothingFound,
    Objective,
    Problem,
    make_problem,
    solve,
    uniform_costs,
)
from verify.search.exact import Answer, Decision
from verify.search.lean import leaner

pytest.importorskip("z3")

TIMES = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2)])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    p = draw(st.integers(1, 2))
    m = draw(st.integers(1, 3 if p == 1 else 2))
    costs = uniform_costs(p, draw(TIMES), draw(TIMES), draw(TIMES), draw(st.sampled_from([0, 1])))
    sizes = [Fraction(draw(st.integers(1, 3))) for _ in range(p)]
    return make_problem(
        placement=range(p),
        microbatches=m,
        costs=costs,
        cap=draw(st.sampled_from([None, 3, 5])),
        activation=sizes,
        held_by_w=[size * draw(st.sampled_from([1, Fraction(1, 2), 0])) for size in sizes],
        objective=draw(st.sampled_from(list(Objective))),
    )


@settings(max_examples=60, deadline=None)
@given(problems(), st.lists(st.integers(0, 2), min_size=2, max_size=2))
def test_the_same_value_with_the_least_memory(problem: Problem, extra: list[int]) -> None:
    fixed = [Fraction(each) for each in extra[: problem.ranks]]
    try:
        first = solve(problem, budget=Budget(1))
    except (Infeasible, NothingFound):
        return
    found = leaner(first, fixed, Budget(2))
    after, before = found.solution.judgement.memory, first.judgement.memory
    assert found.solution.value == first.value
    assert found.solution.bound == first.bound
    top = max(a + b for a, b in zip(after, fixed, strict=True))
    assert top <= max(a + b for a, b in zip(before, fixed, strict=True))
    if not found.least:
        return
    smaller = top - problem.size_unit
    caps = [smaller - each for each in fixed]
    if min(caps) >= 0:
        own = [None if cap is None else cap * problem.size_unit for cap in problem.cap]
        limits = [cap if has is None else min(has, cap) for has, cap in zip(own, caps, strict=True)]
        best = optimum(problem.with_cap(limits))
        assert best is None or best > first.value


def test_a_schedule_without_a_cap_needs_that_of_1f1b() -> None:
    """Without a cap the first answer holds all microbatches; as good a one holds p, and fewer on later ranks."""
    problem = make_problem(placement=range(4), microbatches=8, costs=uniform_costs(4, 1, 1, 1), split=False)
    first = solve(problem, budget=Budget(1))
    assert (first.value, max(first.judgement.memory)) == (33, 8)
    found = leaner(first, [Fraction(0)] * 4, Budget(2))
    assert found.least
    assert found.solution.judgement.memory[0] == 4
    assert found.solution.judgement.memory[3] == 1
    assert found.solution.judgement.makespan == 33


def test_zero_span_bubble_needs_twice_the_ranks_less_one() -> None:
    """Qi et al. 2024 (arXiv 2401.10241), ZB-H2: 2 p - 1 activations leave no bubble in the span."""
    problem = make_problem(
        placement=range(4), microbatches=12, costs=uniform_costs(4, 1, 1, 1), objective=Objective.SPAN
    )
    first = solve(problem, budget=Budget(1))
    assert (first.value, max(first.judgement.memory)) == (36, 12)
    found = leaner(first, [Fraction(0)] * 4, Budget(2))
    assert (found.least, max(found.solution.judgement.memory)) == (True, 7)


def test_a_budget_of_nothing_changes_nothing() -> None:
    problem = make_problem(placement=range(3), microbatches=6, costs=uniform_costs(3, 1, 1, 1))
    first = solve(problem, budget=Budget(1))
    found = leaner(first, [Fraction(0)] * 3, Budget(0))
    assert found.solution.orders == first.orders
    assert not found.least


def test_a_budget_that_is_used_up_asks_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work left would be no limit to z3."""
    asked: list[float] = []

    def decide(*_: object, work: float, **__: object) -> Decision:
        asked.append(work)
        return Decision(Answer.UNKNOWN, None, work)

    monkeypatch.setattr("verify.search.standing.decider", lambda _: decide)
    problem = make_problem(placement=range(4), microbatches=8, costs=uniform_costs(4, 1, 1, 1), cap=2)
    for work in (0.02, 0.3, 1.0):
        for goal in (None, Fraction(40)):
            with suppress(NothingFound, Infeasible):
                solve(problem, budget=Budget(work), goal=goal)
    assert asked
    assert min(asked) > 0
