"""Spans where it is open what a rank begins with: solvers say what trying all orders says, and leave nothing open."""

from __future__ import annotations

from itertools import product

import pytest
import z3
from brute import optimum

from pipedsl.api import parse_text
from pipedsl.search_problem import tasks
from verify.bound.problem import read_problem
from verify.bound.text import smt_text
from verify.search import Budget, Problem, cpsat, exact, model_of, solve
from verify.search.exact import Answer
from verify.search.problem_json import problem_json
from verify.search.smtlib import narrowed_text

COSTS = ("F = 1 I = 1 W = 1", "F = 2 I = 3 W = 1 send = 0.5", "F = 0 I = 2 W = 1 send = 1")


def two_ways(p: int, m: int, kinds: str, cost: str, cap: int | None) -> Problem:
    """Two replicas, one up the ranks and one down."""
    words = " || ".join(f"{kind}@{name} * m" for name in ("down", "up") for kind in kinds)
    text = f"""
schedule x(p, m)
stages p
replica down {{ place s -> s }}
replica up {{ place s -> p - 1 - s }}
rank r {{ {words} }}
cost {{ {cost} }}
{"" if cap is None else f"memory {{ cap(r) = {cap} }}"}
minimize span
"""
    return tasks(parse_text(text), {"p": p, "m": m})[0].problem


def says(text: str) -> str:
    solver = z3.Solver()
    solver.from_string(text)
    return str(solver.check())


@pytest.mark.parametrize(("p", "m", "kinds", "cap"), [(2, 1, "FIW", None), (2, 2, "FB", 2), (3, 1, "FB", None)])
@pytest.mark.parametrize("cost", COSTS)
def test_solvers_say_what_brute_force_says(p: int, m: int, kinds: str, cap: int | None, cost: str) -> None:
    problem = two_ways(p, m, kinds, cost, cap)
    best = optimum(problem)
    assert best is not None
    model, limit = model_of(problem), int(best / problem.time_unit)
    for engine in (exact, cpsat):
        assert engine.decide(model, limit).answer is Answer.FOUND
        assert engine.decide(model, limit - 1).answer is Answer.REFUTED
    subject, fine = read_problem(problem_json(problem)), problem.time_unit.numerator
    assert says(smt_text(subject, limit * fine)) == "sat"
    assert says(smt_text(subject, (limit - 1) * fine)) == "unsat"
    narrowed = narrowed_text(model, limit - 1)
    assert narrowed is None or says(narrowed) == "unsat"


@pytest.mark.parametrize(("shape", "kinds", "cap"), list(product(((2, 3), (3, 1), (3, 2)), ("FB", "FIW"), (None, 3))))
def test_small_ones_are_proved(shape: tuple[int, int], kinds: str, cap: int | None) -> None:
    found = solve(two_ways(*shape, kinds, COSTS[1], cap), budget=Budget(work=20))
    assert found.proof is not None
