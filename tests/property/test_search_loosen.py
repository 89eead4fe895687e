"""Stretches of good orders left open: what is asked about one is decided right, and what comes of it is no worse."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from every_order import all_there_are
from problems import uneven

from verify.search import Budget, Objective, make_problem, model_of, solve, uniform_costs
from verify.search.exact import Answer, Decision, decide, orders_by_start
from verify.search.loosen import _stretch, loosen
from verify.search.model import Model, fits, run
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible
from verify.search.solve import _Search, _start_anew
from verify.search.standing import Standing, ask
from verify.search.tune import tune
from verify.search.windows import narrow


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_loosened_orders_fit_and_are_no_worse(seed: int) -> None:
    problem = uneven(seed, 4, 12)
    begin = solve(problem, budget=Budget(0.02), seed=seed)
    found = []
    for _ in range(2):
        search = _Search(problem, Budget(10), seed, None, None, None, None)
        rows = search.model.rows(begin.orders)
        search.take(rows, "start")
        loosen(search, 1, partial(_start_anew, search))
        assert search.rows is not None
        ran = run(search.model, search.rows)
        assert ran is not None
        assert fits(search.model, search.rows)
        assert search.low <= ran.value == search.value <= int(begin.value / problem.time_unit)
        found.append(search.rows)
    assert found[0] == found[1]


@pytest.mark.parametrize("held", [Fraction(0), Fraction(1, 2), Fraction(1)])
@pytest.mark.parametrize("cap", [Fraction(1), Fraction(3, 2), Fraction(2), None])
def test_a_stretch_is_decided_as_every_order_with_the_same_ends_says(cap: Fraction | None, held: Fraction) -> None:
    """Of all orders there are; the best of those that are the same before and after the stretch."""
    problem = make_problem(
        placement=range(2),
        microbatches=3,
        costs=uniform_costs(2, "3", "4", "2", "1"),
        cap=cap,
        held_by_w=held,
    )
    model, draw = model_of(problem), random.Random(f"{cap} {held}")
    runs = all_there_are(problem)
    every = [(orders_by_start(model, each.start), each.value) for each in runs]
    shorter = 0
    for _ in range(25):
        rows, value = draw.choice(every)
        begin = draw.randrange(value)
        end = begin + draw.randrange(value)
        stretch = _stretch(model, rows, begin, end)
        assert stretch.narrowed.early or stretch.narrowed.late or end - begin >= value - 3
        fixed = {*stretch.narrowed.early, *stretch.narrowed.late}
        best = min(
            each
            for others, each in every
            if all(
                (a in fixed and a == b) or (a not in fixed and b not in fixed)
                for one, other in zip(rows, others, strict=True)
                for a, b in zip(one, other, strict=True)
            )
        )
        asked = partial(decide, model, extra=stretch.kept, narrowed=stretch.narrowed)
        found = asked(limit=best)
        assert found.answer is Answer.FOUND
        assert found.rows is not None
        ran = run(model, found.rows)
        assert ran is not None
        assert ran.value == best
        assert fits(model, found.rows)
        assert asked(limit=best - 1).answer is Answer.REFUTED
        shorter += best < value
    assert shorter > 3 or len(runs) < 20


@pytest.mark.parametrize("seed", range(12))
def test_known_starts_change_no_answer(seed: int) -> None:
    """The whole asked about with the same pairs in order, of larger problems, some with times that differ by stage."""
    draw = random.Random(seed)
    problem = uneven(seed, 4, 6)
    model = model_of(problem)
    begin = solve(problem, budget=Budget(0.02), seed=seed)
    rows, value = model.rows(begin.orders), int(begin.value / problem.time_unit)
    answers = []
    for _ in range(4):
        at = draw.randrange(value)
        stretch = _stretch(model, rows, at, at + value // 3)
        for less in (0, 1, 4, 9):
            whole, part = (
                decide(model, value - less, extra=stretch.kept, narrowed=narrowed)
                for narrowed in (NOTHING, stretch.narrowed)
            )
            assert whole.answer is part.answer, f"seed {seed}: {less} less"
            answers.append(part.answer)
            if part.rows is not None:
                ran = run(model, part.rows)
                assert ran is not None
                assert ran.value <= value - less
                assert fits(model, part.rows)
    assert {Answer.FOUND, Answer.REFUTED} <= set(answers)


def test_no_walk_begins_once_it_is_done() -> None:
    problem = uneven(1, 4, 12)
    search = _Search(problem, Budget(1000), 0, None, None, None, None)
    search.take(search.model.rows(solve(problem, budget=Budget(0.02)).orders), "start")
    search.low = search.value

    def another(seed: int) -> None:
        raise AssertionError(f"orders of seed {seed}")

    loosen(search, 1, another)


def test_orders_that_are_not_accepted_are_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = uneven(2, 4, 12)
    search = _Search(problem, Budget(3), 0, None, None, None, None)
    first = tune(search.model, 0, 1, 0, float("inf"))
    assert first is not None
    search.take(first.rows, "start")
    value, limits, found = search.value, list[int](), 0

    def noticed(standing: Standing, model: Model, limit: int, *args: Any, **options: Any) -> Decision:
        nonlocal found
        decision = ask(standing, model, limit, *args, **options)
        found += limit < value and decision.answer is Answer.FOUND
        limits.append(limit)
        return decision

    monkeypatch.setattr("verify.search.loosen.ask", noticed)
    search.accept = lambda orders: False
    loosen(search, 1, lambda seed: None)
    assert search.value == value
    assert found
    assert set(limits) == {value - 1, value}


def test_nothing_is_known_of_starts_where_the_aim_is_a_span() -> None:
    """A rank may begin later, which leaves no start as early as it can be."""
    problem = uneven(1, 3, 4).with_objective(Objective.SPAN)
    model = model_of(problem)
    rows = model.rows(solve(problem, budget=Budget(0.02)).orders)
    stretch = _stretch(model, rows, 3, 9)
    assert stretch.narrowed == Narrowed()
    assert stretch.kept


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_what_is_undecided_is_what_may_be_before_and_after(first: int) -> None:
    some = 0
    for seed in range(first, first + 40):
        model = model_of(uneven(seed, 3, 5).with_objective(list(Objective)[seed % 2]))
        try:
            window = narrow(model, model.horizon * (3 + seed % 4) // 6)
        except Infeasible:
            continue
        for pairs in model.strands:
            for pair in pairs:
                for x in (row for other in pairs if other != pair for row in range(*other)):
                    undecided = [row for row in range(*pair) if window.known(x, row) is None]
                    assert list(window.undecided(x, pair)) == undecided
                    some += len(undecided)
    assert some > 100
