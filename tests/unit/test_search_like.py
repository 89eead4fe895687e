"""What may only make a question's answer come sooner: starts near which to look first, and no clauses about loads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from problems import uneven

from verify.search import Budget, cpsat, exact, model_of, solve
from verify.search.exact import Answer, Decision
from verify.search.formula import Formula
from verify.search.load import load_clauses
from verify.search.model import Model, run
from verify.search.windows import narrow

ENGINES = pytest.mark.parametrize("decide", [exact.decide, cpsat.decide], ids=["z3", "cpsat"])


def settled(seed: int) -> tuple[Model, list[int], int]:
    """With the starts of an order that is the best."""
    problem = uneven(seed, 3, 4)
    best = solve(problem, budget=Budget(20))
    assert best.proof is not None
    model = model_of(problem)
    found = run(model, model.rows(best.orders))
    assert found is not None
    return model, found.start, found.value


@ENGINES
@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_the_same(seed: int, decide: Callable[..., Decision]) -> None:
    model, start, least = settled(seed)
    wrong = [least - at for at in start]
    for like in (None, start, wrong, [0] * len(model)):
        for loads in (True, False):
            found = decide(model, least, like=like, loads=loads)
            assert found.answer is Answer.FOUND
            assert found.rows is not None
            ran = run(model, found.rows)
            assert ran is not None
            assert ran.value == least
            assert decide(model, least - 1, like=like, loads=loads).answer is Answer.REFUTED


@pytest.mark.parametrize("seed", range(3))
def test_starts_are_those_of_the_order(seed: int) -> None:
    model, _, least = settled(seed)
    found = exact.decide(model, least + 2)
    assert found.start is not None
    assert found.rows is not None
    for order in found.rows:
        assert order == sorted(order, key=found.start.__getitem__)
    ran = run(model, found.rows)
    assert ran is not None
    assert all(a <= b <= least + 2 for a, b in zip(ran.start, found.start, strict=True))


def test_clauses_about_loads_are_left_out() -> None:
    model, _, least = settled(1)
    window = narrow(model, least)
    plain, without = Formula(model, window), Formula(model, window, loads=False)
    loads = load_clauses(model, window, plain.literal, dict(enumerate(plain.names)))
    assert loads
    assert plain.lines == [*without.lines, *loads]


@pytest.mark.parametrize(("ranks", "microbatches", "seed"), [(6, 12, 3), (8, 10, 2)])
def test_an_order_near_the_starts_is_found_with_less_work(ranks: int, microbatches: int, seed: int) -> None:
    """z3 counts its own work, the same in every run. Where it takes no starts, nothing is won."""
    import z3

    problem = uneven(seed, ranks, microbatches)
    model = model_of(problem)
    found = run(model, model.rows(solve(problem, budget=Budget(1)).orders))
    assert found is not None
    plain, near = exact.decide(model, found.value), exact.decide(model, found.value, like=found.start)
    assert plain.answer is near.answer is Answer.FOUND
    if hasattr(z3.Solver, "set_initial_value"):
        assert near.work < plain.work / 4
    else:
        assert near.work == plain.work
