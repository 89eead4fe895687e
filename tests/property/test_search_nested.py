"""What few microbatches show of many: no order of the whole breaks it, and it is more than chains say.

Held against every order of small problems, and against orders of larger ones that were made otherwise.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from brute import interleavings, optimum
from problems import EQUAL, linear, uneven

from pipedsl.program import Costs
from verify.search import Budget, Objective, Problem, lower_bound, make_problem, model_of, nested, solve, uniform_costs
from verify.search.bounds import chains
from verify.search.engines import MOST_OPERATIONS
from verify.search.exact import Decision
from verify.search.loosen import loosen
from verify.search.model import Model, fits, run
from verify.search.nested import Nested, can_nest, raise_from_few
from verify.search.solve import PACE, _Search
from verify.search.spacing import Spacing, first_rows
from verify.search.standing import Standing, ask


def shown(problem: Problem, work: float = 20) -> tuple[_Search, Nested]:
    search, nested = _Search(problem, Budget(work), 0, None, None, None, None), Nested()
    search.nested = nested
    raise_from_few(search, nested, work)
    return search, nested


@pytest.mark.parametrize("seed", range(12))
def test_no_order_breaks_what_is_shown(seed: int) -> None:
    """Every pair of F, and every F and the end, of the best of several searches under other seeds and budgets."""
    problem = uneven(seed, 4, 8)
    search, nested = shown(problem)
    model = search.model
    firsts = first_rows(model)
    for budget, other in ((0.02, 0), (0.05, 1), (2.0, 2)):
        orders = solve(problem, budget=Budget(budget), seed=other).orders
        found = run(model, model.rows(orders))
        assert found is not None
        start = [found.start[row] for row in firsts]
        assert found.value >= search.low
        for k, time in nested.apart.items():
            assert all(b - a >= time for a, b in zip(start, start[k:], strict=False))
        assert all(found.value - start[-n] >= time for n, time in nested.rest.items())


def test_few_microbatches_are_exact() -> None:
    """With time enough every number is settled, at what every order tried comes to at least."""
    tried = 0
    for seed in range(20):
        problem = uneven(seed, 2, 5)
        _, nested = shown(problem)
        for n in (1, 2, 3):
            few = uneven(seed, 2, n)
            model = model_of(few)
            known = chains(model, spacing=Spacing((), tuple((k, v) for k, v in nested.rest.items() if k <= n)))
            best = optimum(few, 3000)
            if best is None:
                continue
            value = max(map(sum, zip(known.head, model.duration, known.tail, strict=True)))
            least = int(best / few.time_unit)
            assert value <= least
            tried += 1
            if nested.tried.get((n, True)) == float("inf") and n in nested.rest:
                assert nested.rest[n] == least
    assert tried > 40


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_all_there_are_starts_sooner(seed: int) -> None:
    """The least start of F of the last microbatch, by trying everything."""
    problem = uneven(seed, 2, 3)
    model = model_of(problem)
    last = first_rows(model)[-1]
    tried = [
        ran.start[last]
        for orders in product(*(interleavings(strands, 2) for strands in problem.strands))
        if fits(model, rows := model.rows(orders)) and (ran := run(model, rows)) is not None
    ]
    assert tried
    _, nested = shown(uneven(seed, 2, 5))
    by_chains = chains(model, spacing=Spacing(tuple((k, v) for k, v in nested.apart.items() if k <= 2))).head[last]
    assert by_chains <= min(tried)
    if nested.tried[2, False] == float("inf"):
        assert by_chains == min(tried)
    else:
        assert nested.tried[2, False] > 0


def test_more_is_shown_than_by_chains() -> None:
    """Both engines agree by themselves that the optimum of these is 93.4."""
    speed = [Fraction(value, 10) for value in (12, 10, 10, 11, 9, 10, 10, 14)]
    costs = Costs(tuple(speed), tuple(2 * v for v in speed), tuple(speed), tuple(speed), (Fraction(1, 10),) * 8)
    problem = make_problem(placement=range(8), microbatches=16, costs=costs, cap=4)
    search, nested = _Search(problem, Budget(8), 0, None, None, None, None), Nested()
    search.take(search.model.rows(solve(problem, budget=Budget(0.1)).orders), "start")
    search.nested = nested
    raise_from_few(search, nested, 5)
    assert nested.rest
    assert nested.apart
    assert lower_bound(search.model).value < search.low <= 934


def test_only_where_it_holds() -> None:
    costs = uniform_costs(2, 1, 1, 1)
    good = make_problem(placement=range(2), microbatches=4, costs=costs, cap=2)
    assert can_nest(model_of(good))
    assert not can_nest(model_of(good.with_objective(Objective.SPAN)))
    instant = make_problem(placement=range(2), microbatches=4, costs=uniform_costs(2, 1, 1, 0), cap=2)
    assert not can_nest(model_of(instant))
    one = tuple((tuple(sorted(op for strand in rank for op in strand)),) for rank in good.strands)
    assert not can_nest(model_of(make_problem(placement=range(2), microbatches=4, costs=costs, cap=2, strands=one)))


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_loosened_orders_fit_and_are_no_worse(seed: int) -> None:
    problem = uneven(seed, 4, 12)
    begin = solve(problem, budget=Budget(0.02), seed=seed)
    search = _Search(problem, Budget(10), seed, None, None, None, None)
    rows = search.model.rows(begin.orders)
    search.take(rows, "start")
    loosen(search, 1)
    assert search.rows is not None
    found = run(search.model, search.rows)
    assert found is not None
    assert fits(search.model, search.rows)
    assert search.low <= found.value == search.value <= int(begin.value / problem.time_unit)
    again = _Search(problem, Budget(10), seed, None, None, None, None)
    again.take(rows, "start")
    loosen(again, 1)
    assert again.rows == search.rows


def test_what_is_too_large_for_one_question_is_bounded_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noticed(standing: Standing, model: Model, *rest: Any, **options: Any) -> Decision:
        asked.append(len(model))
        return ask(standing, model, *rest, **options)

    monkeypatch.setitem(MOST_OPERATIONS, "z3", 200)
    monkeypatch.setattr(nested, "ask", noticed)
    problem = linear(4, 40, {"F": "1", "I": "1.3", "W": "0.7", "send": "0.1"}, 2)
    whole, found = lower_bound(model_of(problem)).value, solve(problem, budget=Budget(20))
    assert whole * problem.time_unit < found.bound <= found.value
    assert found.argument == "refutation by z3"
    assert 0 < max(asked) <= 200


def test_shares_are_of_what_the_clock_leaves() -> None:
    """Else a turn that is a part of the work may take all of the time, and what comes after it has none."""
    problem = linear(4, 40, EQUAL, 3)
    search = _Search(problem, Budget(1000, 5), 0, None, None, None, None)
    assert 0 < search.left <= 5 * PACE
    assert _Search(problem, Budget(1000), 0, None, None, None, None).left == 1000
