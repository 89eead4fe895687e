"""The search against brute force on small problems of every shape: chunks, the V, replicas, mixed backwards."""

from __future__ import annotations

from fractions import Fraction

import pytest
import z3
from brute import optimum
from problems import EQUAL, linear
from small_problems import small_problem

from pipedsl.program import Kind
from verify.search import Budget, Infeasible, Objective, Operation, Problem, lower_bound, make_problem, model_of, solve
from verify.search import uniform_costs as uniform
from verify.search.evidence import bound_certificate
from verify.search.exact import Answer, decide
from verify.search.model import fits
from verify.search.solver import check, new_solver


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_agrees_with_brute_force(first: int) -> None:
    tried = 0
    for seed in range(first, first + 20):
        name, problem = small_problem(seed)
        try:
            best = optimum(problem, 3000)
        except ValueError:
            continue
        tried += 1
        try:
            found = solve(problem, budget=Budget(work=1 if problem.objective is Objective.SPAN else 8), seed=seed)
        except Infeasible:
            assert best is None, f"seed {seed}, {name}: {best} is possible"
            continue
        assert best is not None, f"seed {seed}, {name}"
        assert found.value == best, f"seed {seed}, {name}: {found.value} by {found.log[-1].by}, best {best}"
        assert found.bound <= best, f"seed {seed}, {name}"
        assert found.proof is not None or problem.objective is Objective.SPAN, f"seed {seed}, {name}"
        certificate, _ = bound_certificate(problem, 0)
        assert Fraction(certificate["bound"], problem.time_unit.denominator) <= best, f"seed {seed}, {name}"
    assert tried > 10


def of_one_rank(*rows: list[tuple[str, int, int]], placement: list[int], m: int, cap: int, **sizes: object) -> Problem:
    strands = tuple(tuple(Operation(Kind[letter], stage, i) for letter, stage, i in row) for row in rows)
    costs = uniform(len(placement), 1, 1, 1)
    return make_problem(placement=placement, microbatches=m, costs=costs, cap=cap, strands=(strands,), **sizes)  # type: ignore[arg-type]


def test_one_w_after_whole_backwards_forces_nothing() -> None:
    """W of microbatch 0 comes last, the others hold nothing for one: that fits into two."""
    forwards = [("F", 0, i) for i in range(4)]
    backwards = [("I", 0, 0), ("B", 0, 1), ("B", 0, 2), ("B", 0, 3), ("W", 0, 0)]
    problem = of_one_rank(forwards, backwards, placement=[0], m=4, cap=2)
    assert solve(problem, budget=Budget(work=2)).value == optimum(problem) == 12
    with pytest.raises(Infeasible):
        solve(problem.with_cap(1), budget=Budget(work=2))


def test_chunks_of_different_size_in_shared_strands() -> None:
    """F, I and W of both stages in a strand each: what is held depends on which stage's F comes."""
    rows = [[("F", s, i) for i in range(2) for s in (0, 1)], [("I", s, i) for i in range(2) for s in (1, 0)]]
    rows.append([("W", s, i) for i in range(2) for s in (1, 0)])
    sizes = [Fraction(1), Fraction(3)]
    for cap in range(4, 9):
        problem = of_one_rank(*rows, placement=[0, 0], m=2, cap=cap, activation=sizes)
        best = optimum(problem)
        assert best == 12
        model = model_of(problem)
        assert lower_bound(model).value == 12
        found = decide(model, 12)
        assert found.rows is not None
        assert fits(model, found.rows)
        assert decide(model, 11).answer is Answer.REFUTED


def test_more_work_than_z3_counts_is_no_interruption() -> None:
    """z3's limit has 32 bits; what is over was taken for its remainder, and its end for Ctrl-C."""
    for most in (2**32, 2**32 + 1, 2**50):
        solver = new_solver(0)
        solver.from_string("(declare-const x Int)(declare-const y Int)(assert (< x y))(assert (or (< y x) (< y 3)))")
        assert check(solver, most) == z3.sat
    model = model_of(linear(4, 8, EQUAL, cap=4))
    assert decide(model, 27, work=5000.0).answer is Answer.FOUND
    assert decide(model, 26, work=5000.0).answer is Answer.REFUTED
