"""What is shown of a limit a few microbatches at a time: no order within it breaks that, and more falls than by chains.

Held against every order of small problems, against optima that were proved without it, and against orders of larger
problems that were made otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from every_order import all_there_are, holds_for, latest_starts
from problems import EQUAL, uneven, vee

from pipedsl.program import Costs, Kind
from verify.search import (
    Budget,
    Objective,
    Problem,
    lower_bound,
    make_problem,
    model_of,
    shave,
    solve,
    uniform_costs,
)
from verify.search.cpsat import decide
from verify.search.engines import Engine
from verify.search.exact import Answer, Decision
from verify.search.model import Model, Run, run
from verify.search.narrowed import Narrowed
from verify.search.problem import Infeasible
from verify.search.refute import refute
from verify.search.shave import PART, Shaving, can_shave, shaved_rows
from verify.search.solve import Aim, _Search
from verify.search.standing import Standing
from verify.search.windows import narrow

BEGIN = Aim.BOTH.value.begin
TIMES = ((6, 10, 17), (8, 11, 20), (5, 10, 14))


def shaved(problem: Problem, limit: int, few: int, engine: Engine = "z3", work: float = 30) -> Shaving | None:
    """What is shown with questions about `few` microbatches; None where the limit is refuted."""
    search = _Search(problem, Budget(2 * work, engine=engine), 0, None, None, None, None)
    try:
        shaving = Shaving(search, Narrowed(), limit)
        shave_with(shaving, few, work)
    except Infeasible:
        return None
    return shaving


def shave_with(shaving: Shaving, few: int, work: float = 30) -> None:
    stop = shaving.standing.work + work
    for early in (True, False):
        shaving.sweep(few, early, lambda: shaving.standing.work < stop)


def inside(model: Model, found: Run, shaving: Shaving | None) -> bool:
    """Whether an order within the limit is as what was shown of those says, also with everything as late as may be."""
    if shaving is None:
        return False
    return holds_for(model, found, shaving.narrowed, shaving.limit) and shaving.low <= found.value


@pytest.mark.parametrize("seed", range(8))
def test_every_order_within_the_limit_is_left(seed: int) -> None:
    """By trying everything."""
    problem = uneven(seed, 2, 3, TIMES)
    model = model_of(problem)
    runs = all_there_are(problem)
    least = min(ran.value for ran in runs)
    for few, limit in product((1, 2, 3), (least, least + 2, least + 9)):
        shaving = shaved(problem, limit, few)
        assert all(inside(model, ran, shaving) for ran in runs if ran.value <= limit)


def test_every_order_within_the_limit_is_left_whichever_stage_is_shaved() -> None:
    stages: set[int] = set()
    for seed in range(12):
        problem = uneven(seed, 3, 2, TIMES)
        model = model_of(problem)
        runs = all_there_are(problem)
        least = min(ran.value for ran in runs)
        stages |= {model.operations[row].stage for row in shaved_rows(model)[0]}
        for few, limit in product((1, 2), (least, least + 2, least + 9)):
            shaving = shaved(problem, limit, few)
            assert all(inside(model, ran, shaving) for ran in runs if ran.value <= limit)
    assert stages == {0, 1}


@pytest.mark.parametrize("seed", range(8))
def test_a_lower_limit_keeps_what_was_shown(seed: int) -> None:
    """Of orders within it, and more than is known of these from the start; below the least it is refuted in the end."""
    problem = uneven(seed, 2, 3, TIMES)
    model = model_of(problem)
    runs = all_there_are(problem)
    least = min(ran.value for ran in runs)
    shaving = shaved(problem, least + 9, 3)
    assert shaving is not None
    assert shaving.kept
    low, narrowed, kept = shaving.low, shaving.narrowed, dict(shaving.kept)
    shaving.lower(least + 2)
    assert shaving.limit == least + 2
    for kept_of, of in ((shaving.narrowed.starts, narrowed.starts), (shaving.narrowed.ends, narrowed.ends)):
        assert all(dict(kept_of)[row] >= time for row, time in of)
    assert shaving.kept == kept
    assert all(inside(model, ran, shaving) for ran in runs if ran.value <= least + 2)
    for few in (3, 2):
        shave_with(shaving, few)
        assert all(inside(model, ran, shaving) for ran in runs if ran.value <= least + 2)
    assert low <= shaving.low <= least
    assert shaving.width <= Shaving(shaving.standing, Narrowed(), least + 2).width
    with pytest.raises(Infeasible):
        shaving.lower(shaving.low - 1)


def test_solvers_are_asked_again_with_all_that_is_known_by_then() -> None:
    problem = uneven(4, 6, 16, TIMES)
    least = int(solve(problem, budget=Budget(5)).value / problem.time_unit)
    shaving = shaved(problem, least + 5, 4, work=3)
    assert shaving is not None
    kept = dict(shaving.kept)
    before = [(each.asked, list(each.earliest), list(each.latest)) for each in kept.values()]
    shaving.lower(least)
    shave_with(shaving, 4, 3)
    assert all(shaving.kept[key] is each for key, each in kept.items())
    again = [
        (each.earliest, each.latest) != (earliest, latest)
        for each, (asked, earliest, latest) in zip(kept.values(), before, strict=True)
        if each.asked > asked
    ]
    assert again
    assert all(again)


def test_every_solver_is_asked_about_its_own_microbatches() -> None:
    """With more and more microbatches a question, and fewer again, every order within the limit is left."""
    several = 0
    for seed in range(8):
        problem = uneven(seed, 2, 3, TIMES)
        model = model_of(problem)
        runs = all_there_are(problem)
        limit = min(ran.value for ran in runs) + 2
        shaving = shaved(problem, limit, 1)
        assert shaving is not None
        for few in (2, 3, 2, 1):
            shave_with(shaving, few)
            assert all(inside(model, ran, shaving) for ran in runs if ran.value <= limit)
        assert all(len(kept.names) == size for (size, _), kept in shaving.kept.items())
        several += len({size for size, _ in shaving.kept}) > 1
    assert several


@pytest.mark.parametrize("seed", range(4))
def test_questions_about_all_microbatches_leave_no_more_than_there_is(seed: int) -> None:
    """What is shaved can start as soon, and as late, as what is shown says, to within the least part tried."""
    problem = uneven(seed, 2, 3, TIMES)
    model = model_of(problem)
    runs = all_there_are(problem)
    limit = min(ran.value for ran in runs) + 2
    within = [ran for ran in runs if ran.value <= limit]
    lates = [latest_starts(model, ran, limit) for ran in within]
    shaving = shaved(problem, limit, 3)
    assert shaving is not None
    for row in (row for rows in shaving.shaved for row in rows):
        room = shaving.window.latest[row] - shaving.window.earliest[row]
        assert min(ran.start[row] for ran in within) - shaving.window.earliest[row] <= 1 + room // PART
        assert shaving.window.latest[row] - max(late[row] for late in lates) <= 1 + room // PART


def test_what_is_not_decided_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every question is about an operation whose window it cuts."""
    asked = 0

    def silent(standing: Standing, model: Model, limit: int, work: float, **options: Any) -> Decision:
        nonlocal asked
        asked += 1
        return Decision(Answer.UNKNOWN, None, 0)

    def noticed(self: Shaving, few: Model, rows: list[int], row: int, *rest: Any) -> bool:
        assert row in rows
        return possible(self, few, rows, row, *rest)

    possible = Shaving._possible
    monkeypatch.setattr(shave, "ask", silent)
    monkeypatch.setattr(Shaving, "_possible", noticed)
    problem = uneven(3, 3, 5, TIMES)
    shaving = shaved(problem, int(solve(problem, budget=Budget(20)).value / problem.time_unit), 3)
    assert shaving is not None
    assert asked > 5
    assert shaving.narrowed == Shaving(shaving.standing, Narrowed(), shaving.limit).narrowed


def test_limits_in_turn_end_below_the_optimum() -> None:
    """Whatever is found before, no bound is too high; and some are the optimum."""
    reached = 0
    for seed, poor in product(range(6), (0, 3, 8, None)):
        problem = uneven(seed, 3, 4, TIMES)
        best = solve(problem, budget=Budget(20))
        assert best.proof is not None
        search = _Search(problem, Budget(40), 0, None, None, None, None)
        search.take(search.model.rows(best.orders), "start")
        least = search.value
        below = (
            round((least - 1 - search.low) / BEGIN) + search.low - least
        )  # the first limit is just below the optimum
        search.value += below if poor is None else poor  # as if less were found
        refute(search, {}, 20, BEGIN)
        assert search.low <= least
        reached += lower_bound(search.model).value < search.low == least
    assert reached


@pytest.mark.parametrize("seed", range(12))
def test_no_limit_is_refuted_that_is_met(seed: int) -> None:
    """Optima of problems so small that they are proved as a whole, and that CP-SAT agrees on."""
    problem = uneven(seed, 3 + seed % 4 // 3, 5, TIMES)
    model = model_of(problem)
    best = solve(problem, budget=Budget(20))
    assert best.proof is not None
    least = int(best.value / problem.time_unit)
    assert decide(model, least - 1, work=20).answer is Answer.REFUTED
    found = run(model, model.rows(best.orders))
    assert found is not None
    for few, limit in ((2, least), (3, least), (4, least), (3, least + 3)):
        assert inside(model, found, shaved(problem, limit, few))


def test_more_is_refuted_than_by_chains() -> None:
    """Of the limits right below an optimum that no window refutes, questions about a part of the microbatches refute
    some, with either engine."""
    engines: tuple[Engine, ...] = ("z3", "cpsat")
    refuted = dict.fromkeys(engines, 0)
    for seed in range(12):
        problem = uneven(seed, 3, 5, TIMES)
        model = model_of(problem)
        limit = int(solve(problem, budget=Budget(20)).value / problem.time_unit) - 1
        try:
            narrow(model, limit)
        except Infeasible:
            continue
        for engine in engines:
            refuted[engine] += shaved(problem, limit, 4, engine) is None
    assert all(refuted.values()), refuted


def test_strands_may_come_in_any_order() -> None:
    """The same is shown of the same operations."""
    problem = uneven(3, 3, 5, TIMES)
    turned = replace(problem, strands=tuple(strands[::-1] for strands in problem.strands))
    limit = int(solve(problem, budget=Budget(20)).value / problem.time_unit)
    one, other = shaved(problem, limit, 3), shaved(turned, limit, 3)
    assert one is not None
    assert other is not None
    shown, others = one.narrowed, other.narrowed
    assert shown.ends
    operations, those = model_of(problem).operations, model_of(turned).operations
    for these, turned_round in ((shown.starts, others.starts), (shown.ends, others.ends)):
        assert {operations[row]: time for row, time in these} == {those[row]: time for row, time in turned_round}


@pytest.mark.parametrize("seed", [3, 9])
def test_large_orders_are_left(seed: int) -> None:
    """Orders that are longer than any bound says, found without what few microbatches show."""
    problem = uneven(seed, 5, 12, TIMES)
    model = model_of(problem)
    found = run(model, model.rows(solve(problem, budget=Budget(0.2)).orders))
    assert found is not None
    assert found.value > lower_bound(model).value
    assert inside(model, found, shaved(problem, found.value, 5, work=2))


def test_only_where_it_holds() -> None:
    costs = uniform_costs(2, 1, 1, 1)
    good = make_problem(placement=range(2), microbatches=4, costs=costs, cap=2)
    assert can_shave(model_of(good))
    assert not can_shave(model_of(good.with_objective(Objective.SPAN)))
    instant = make_problem(placement=range(2), microbatches=4, costs=uniform_costs(2, 1, 1, 0), cap=2)
    assert not can_shave(model_of(instant))
    assert not can_shave(model_of(vee(2, 4, EQUAL, 2)))
    one = tuple((tuple(sorted(op for strand in rank for op in strand)),) for rank in good.strands)
    assert not can_shave(model_of(make_problem(placement=range(2), microbatches=4, costs=costs, cap=2, strands=one)))


def test_the_slowest_stage_is_shaved_but_for_the_last() -> None:
    for slow, expected in ((0, 0), (1, 1), (2, 2), (3, 0)):
        time = tuple(Fraction(3 if s == slow else 2) for s in range(4))
        costs = Costs(time, tuple(2 * each for each in time), time, time, (Fraction(0),) * 4)
        model = model_of(make_problem(placement=range(4), microbatches=3, costs=costs, cap=2))
        found = [[model.operations[row] for row in rows] for rows in shaved_rows(model)]
        assert found == [[(Kind.F, expected, j), (Kind.I, expected, j)] for j in range(3)]
    whole = model_of(make_problem(placement=range(1), microbatches=2, costs=uniform_costs(1, 1, 1, 1), split=False))
    assert [len(rows) for rows in shaved_rows(whole)] == [2, 2]
