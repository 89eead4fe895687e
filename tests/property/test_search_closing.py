"""What must follow the operations of a rank, as a problem has it: bounds, answers and evidence, held to all orders."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import z3
from brute import optimum
from problems import EQUAL, linear
from small_problems import small_problem

from pipedsl.render.expansion import program_json
from verify.bound.certificate import check
from verify.bound.problem import read_problem
from verify.bound.text import smt_text
from verify.search import Budget, Infeasible, Problem, Proof, lower_bound, model_of, program_of, solve
from verify.search.evidence import bound_certificate
from verify.search.problem_json import problem_json


def closed(seed: int) -> Problem | None:
    """A small problem with something that follows; None where no order keeps to its caps."""
    _, problem = small_problem(seed)
    draw = random.Random(seed)
    most = max(1, *(max(times) for times in problem.duration.values()))
    closing = tuple(draw.choice((0, 1, most, 3 * most)) for _ in problem.placement)
    beside = tuple(draw.choice((0, 0, most, 4 * most)) for _ in range(problem.ranks))
    changed = replace(problem, closing=closing, beside=beside)
    try:
        lower_bound(model_of(changed))
    except Infeasible:
        return None
    return changed


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_answers_and_bounds_agree_with_all_orders(first: int) -> None:
    tried = differs = proved = 0
    for seed in range(first, first + 40):
        problem = closed(seed)
        try:
            best = None if problem is None else optimum(problem, 4000)
        except ValueError:
            continue
        if problem is None or best is None:
            continue
        tried += 1
        without = optimum(replace(problem, closing=(), beside=()), 4000)
        differs += best != without
        found = solve(problem, budget=Budget(work=2))
        assert found.bound <= best <= found.value, seed
        assert found.proof is None or found.value == best, seed
        assert found.judgement.value(problem.objective) == found.value
        proved += found.proof is not None
        certificate, text = bound_certificate(problem, int(found.bound / problem.time_unit))
        subject = json.loads(json.dumps(problem_json(problem)))
        program = json.loads("".join(program_json(program_of(problem, found.orders))))
        said = check(json.loads(json.dumps(certificate)), subject, program)
        assert f" of {found.value}; no order has a " in said, seed
        assert Fraction(certificate["bound"], subject["times"]["unit"]) <= best, seed
        assert (text is None) or (found.bound > Fraction(certificate["bound"], subject["times"]["unit"])), seed
    assert (tried > 15, differs > tried / 2, proved > 9 * tried / 10) == (True, True, True), (tried, differs, proved)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_a_solver_is_asked_knows_of_it(first: int) -> None:
    tried = 0
    for seed in range(first, first + 20):
        problem = closed(seed)
        try:
            # Of what a rank does beside the text says nothing.
            problem = None if problem is None else replace(problem, beside=(0,) * problem.ranks)
            best = None if problem is None else optimum(problem, 2000)
        except ValueError:
            continue
        if problem is None or best is None or sum(len(s) for own in problem.strands for s in own) > 16:
            continue
        tried += 1
        subject = read_problem(problem_json(problem))
        ticks = int(best * subject.unit)
        for limit, answer in ((ticks, "sat"), (ticks - problem.time_unit.numerator, "unsat")):
            solver = z3.Solver()
            solver.from_string(smt_text(subject, limit))
            assert str(solver.check()) == answer, (seed, limit)
    assert tried >= 5


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize(("closing", "beside", "value"), [(2, 0, 5), (0, 5, 8), (2, 5, 8), (6, 5, 9)])
def test_one_rank(objective: str, closing: int, beside: int, value: int) -> None:
    """F, I and W take 1 each; what is done beside may be what closes, so they do not add up."""
    problem = replace(linear(1, 1, EQUAL, None, objective=objective), closing=(closing,), beside=(beside,))
    found = solve(problem, budget=Budget(work=1))
    assert (found.value, found.bound, found.proof) == (value, value, Proof.BOUND)
