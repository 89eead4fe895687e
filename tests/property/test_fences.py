"""Sketches whose words must wait for one another: the optimum is that of trying every order."""

from __future__ import annotations

import json

import pytest
from brute import optimum
from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.api import parse_text
from pipedsl.program import Kind
from pipedsl.search_problem import tasks
from verify.bound.arguments import begin, forced
from verify.bound.certificate import check
from verify.bound.problem import read_problem
from verify.bound.text import smt_text
from verify.search import Budget, Infeasible, Problem, judge, solve
from verify.search.bounds import chains, first_start
from verify.search.evidence import bound_certificate
from verify.search.judge import Invalid
from verify.search.model import model_of
from verify.search.problem_json import problem_json

pytest.importorskip("z3")

SKETCHES = [
    "F * k (F * (m - k) || I * m || W * m)",
    "for i in 0 .. m { F (I || W) }",
    "(F * m || I * m) W * m",
    "(F * m || I[0]) I[1] W[0] W[1]",
    "F * k (F * (m - k) || B * m)",
    "if r == 0 { F * k (F * (m - k) || I * m || W * m) } else { F * m || I * m || W * m }",
    "F[0] (I[0] I[1] || F[1] || W[0]) W[1]",
]


def problem_of(
    sketch: str, k: int, cap: int | None, costs: tuple[int, ...], m: int = 2, aim: str = "makespan"
) -> Problem:
    f, i, w = costs
    text = (
        f"schedule x(p, m, k = 1)\nstages p\nplace s -> s\nrank r {{ {sketch} }}\n"
        f"cost {{ F = {f} I = {i} W = {w} }}\nminimize {aim}"
    )
    (task,) = tasks(parse_text(text), {"p": 2, "m": m, "k": k}, None if cap is None else cap)
    return task.problem


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SKETCHES), st.integers(1, 2), st.sampled_from([None, 1, 2]), st.tuples(*[st.integers(1, 3)] * 3))
def test_the_optimum_is_that_of_all_orders(sketch: str, k: int, cap: int | None, costs: tuple[int, ...]) -> None:
    problem = problem_of(sketch, k, cap, costs)
    best = optimum(problem)
    try:
        found = solve(problem, budget=Budget(4))
    except Infeasible:
        assert best is None
        return
    assert best is not None
    assert (found.value, found.bound) == (best, best)


def test_orders_that_do_not_wait_are_no_answer() -> None:
    problem = problem_of(SKETCHES[0], 2, None, (1, 1, 1), m=3)
    assert problem.fences
    free = problem_of("F * m || I * m || W * m", 1, None, (1, 1, 1), m=3)
    with pytest.raises(Invalid, match="does not wait"):
        judge(problem, solve(free.with_cap(1), budget=Budget(2)).orders)
    for order in solve(problem, budget=Budget(2)).orders:
        assert [operation.kind for operation in order[:2]] == [Kind.F, Kind.F]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SKETCHES),
    st.sampled_from([None, 1, 2]),
    st.tuples(*[st.integers(1, 3)] * 3),
    st.sampled_from(["makespan", "span"]),
)
def test_the_checker_of_bounds_knows_fences(sketch: str, cap: int | None, costs: tuple[int, ...], aim: str) -> None:
    problem = problem_of(sketch, 2, cap, costs, aim=aim)
    best = optimum(problem)
    if best is None:
        return
    units = int(best / problem.time_unit)
    certificate, text = bound_certificate(problem, units)
    document = json.loads(json.dumps([certificate, problem_json(problem)]))
    assert check(*document)
    assert certificate["bound"] <= best * problem.time_unit.denominator
    assert text is None or not satisfiable(text)
    subject = read_problem(document[1])
    assert satisfiable(smt_text(subject, units * problem.time_unit.numerator)), "what is asked leaves out the best"


def satisfiable(text: str) -> bool:
    z3 = pytest.importorskip("z3")
    solver = z3.Solver()
    solver.from_string(text)
    return bool(solver.check() == z3.sat)


def test_a_fence_that_says_what_comes_first_says_when_a_rank_begins() -> None:
    """F[1] and all else wait for F[0] on rank 0, so both ranks start at one time in every order."""
    problem = problem_of(SKETCHES[-1], 1, None, (1, 1, 1), aim="span")
    model = model_of(problem)
    assert problem.fences
    known = chains(model, [])
    subject = read_problem(json.loads(json.dumps(problem_json(problem))))
    for rank in range(problem.ranks):
        first = first_start(model, rank, known)
        assert first == rank
        chain = forced(subject, rank)
        assert [(op[0], op[2]) for op in chain] == [("F", 0)] * (rank + 1)
        assert begin(subject, chain, "") == first * problem.time_unit.numerator
