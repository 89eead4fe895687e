"""CP-SAT as a second opinion: it shares the windows with z3 and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from brute import optimum
from problems import EQUAL, linear, random_problem, vee

import pipedsl
from verify.search import Objective, Problem, judge, model_of
from verify.search.cpsat import _solve, decide
from verify.search.engines import suited
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


def larger(problem: Problem, times: int = 1, sizes: int = 1) -> Problem:
    """The same in units of time and memory that are so much smaller."""
    duration = {kind: tuple(times * each for each in row) for kind, row in problem.duration.items()}
    problem = replace(problem, duration=duration, cap=tuple(each and each * sizes for each in problem.cap))
    activation, held = (tuple(each * sizes for each in row) for row in (problem.activation, problem.held_by_w))
    return replace(problem, activation=activation, held_by_w=held)


@pytest.mark.parametrize("objective", list(Objective))
def test_numbers_too_large_for_it_are_for_z3(objective: Objective) -> None:
    """Up to where z3 takes its place it leaves nothing open."""
    problem = replace(linear(2, 4, EQUAL, 2), objective=objective)
    least = int(optimum(problem, 100_000) / problem.time_unit)
    for bits in range(60):
        large = larger(problem, times=2**bits)
        if suited("cpsat", large) == "z3":
            break
        assert decide(model_of(large), least << bits).answer is Answer.FOUND, bits
        assert decide(model_of(large), (least << bits) - 1).answer is Answer.REFUTED, bits
    assert 30 < bits < 40
    assert decide(model_of(larger(problem, times=2**50)), least << 50).answer is Answer.UNKNOWN
    assert suited("cpsat", larger(problem, sizes=2**38)) == "cpsat"
    assert suited("cpsat", larger(problem, sizes=2**40)) == "z3"
    assert suited("z3", problem) == "z3"


def test_what_takes_no_time_makes_the_unit_finer() -> None:
    """One of the problem is then more than all operations together take in the unit that is asked in."""
    free = replace(linear(2, 4, EQUAL, 2), duration=dict.fromkeys(linear(2, 4, EQUAL, 2).duration, (1, 0)))
    assert suited("cpsat", larger(free, times=2**31)) == "z3"
    assert suited("cpsat", larger(linear(2, 4, EQUAL, 2), times=2**31)) == "cpsat"


def test_the_answer_says_that_z3_took_its_place() -> None:
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m || I * m || W * m }\nmemory { cap(r) = 2 }\n"
    exact = pipedsl.parse_text(text + "cost { F = 1.000000000000001 W = 0.7 }\n")
    result = pipedsl.search(exact, {"p": 4, "m": 8}, budget=5, engine="cpsat")
    assert (result.optimal, result.proof, result.engine) == (True, "refutation", "z3")
    assert "z3, as numbers are too large for CP-SAT" in " ".join(result.text.split("\n# "))
    other = pipedsl.search(pipedsl.parse_text(text), {"p": 4, "m": 8}, budget=5, engine="cpsat")
    assert (other.proof, other.engine, other.instead) == ("refutation", "cpsat", "")


@pytest.mark.parametrize("seed", [2**31 - 1, 2**31, 2**70])
def test_any_seed_will_do(seed: int) -> None:
    model = model_of(linear(2, 2, EQUAL, 2))
    assert decide(model, 100, seed=seed).answer is Answer.FOUND


def test_it_leaves_ctrl_c_alone() -> None:
    """Its own handler would make an answer of it, and keep it."""
    solver = SimpleNamespace(parameters=SimpleNamespace(), solve=lambda asked: asked, stop_search=lambda: None)
    assert _solve(solver, "model") == "model"
    assert solver.parameters.catch_sigint_signal is False
