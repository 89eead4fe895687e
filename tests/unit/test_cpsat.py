"""CP-SAT as a second opinion: it shares the windows with z3 and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from brute import optimum
from problems import EQUAL, linear, random_problem, vee

from verify.search import Objective, Problem, judge, model_of
from verify.search.cpsat import decide
from verify.search.exact import Answer

CASES = json.loads((Path(__file__).parents[1] / "cases" / "search.json").read_text())


@pytest.mark.parametrize("first", range(3000, 3120, 40))
def test_agrees_with_brute_force(first: int) -> None:
    tried = 0
    for seed in range(first, first + 40):
        problem = random_problem(seed)
        try:
            best = optimum(problem, 3000)
        except ValueError:
            continue
        if best is None:
            continue
        tried += 1
        model, least = model_of(problem), int(best / problem.time_unit)
        found = decide(model, least, seed=seed)
        assert found.rows is not None, f"seed {seed}"
        value = judge(problem, model.orders(found.rows)).value(problem.objective)
        assert decide(model, least - 1, seed=seed).answer is Answer.REFUTED or problem.objective is Objective.SPAN
        assert value == best or problem.objective is Objective.SPAN, f"seed {seed}"
    assert tried > 20


def cases() -> list[dict[str, object]]:
    return [case for case in CASES["optima"] if case["proved"] and case["p"] * case["m"] <= 48]


def test_the_optima_of_the_file_are_optima() -> None:
    for case in cases():
        cap, held = case["cap"], case["held_by_w"]
        problem = linear(case["p"], case["m"], case["cost"], cap, held, case["minimize"])  # type: ignore[arg-type]
        best, model = Fraction(str(case["best_known"])), model_of(problem)
        found = decide(model, int(best / problem.time_unit))
        assert found.rows is not None, case
        assert judge(problem, model.orders(found.rows)).value(problem.objective) == best, case
        assert decide(model, int(best / problem.time_unit) - 1).answer is Answer.REFUTED, case


def test_two_chunks() -> None:
    problem = vee(2, 4, EQUAL, 2)
    model = model_of(problem)
    assert decide(model, 25).answer is Answer.FOUND
    assert decide(model, 24).answer is Answer.REFUTED


def test_work_ends_it_and_decides_what_is_found() -> None:
    model = model_of(linear(8, 16, EQUAL, 4))
    assert decide(model, 78, work=0.001).answer is Answer.UNKNOWN
    small = model_of(linear(4, 8, EQUAL, 3))
    one, other = (decide(small, 32, seed=3, work=10) for _ in range(2))
    assert one == other
    assert one.answer is Answer.FOUND


def test_numbers_too_large_for_it_are_left_open() -> None:
    problem = linear(2, 2, EQUAL, 2)
    large: Problem = replace(problem, duration=dict.fromkeys(problem.duration, (2**50,) * 2))
    assert decide(model_of(large), 2**53).answer is Answer.UNKNOWN


@pytest.mark.parametrize("seed", [2**31 - 1, 2**31, 2**70])
def test_any_seed_will_do(seed: int) -> None:
    model = model_of(linear(2, 2, EQUAL, 2))
    assert decide(model, 100, seed=seed).answer is Answer.FOUND
