"""The search against brute force on tiny problems, and against optima that another solver proved."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from brute import optimum
from problems import EQUAL, linear, random_problem, vee

from verify.search import (
    Budget,
    Infeasible,
    NothingFound,
    Objective,
    Problem,
    Proof,
    judge,
    lower_bound,
    model_of,
    smallest_cap_without_bubble,
    smallest_feasible_cap,
    solve,
)
from verify.search.exact import Answer, decide
from verify.search.fill import fill
from verify.search.judge import Invalid
from verify.search.model import fits, run
from verify.search.steady import steady_states
from verify.search.waves import waves

pytest.importorskip("z3")

CASES = json.loads((Path(__file__).parents[1] / "cases" / "search.json").read_text())
TINY = Budget(work=8)


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_agrees_with_brute_force(first: int) -> None:
    for seed in range(first, first + 30):
        problem = random_problem(seed)
        try:
            best = optimum(problem, 20_000)
        except ValueError:
            continue
        try:
            found = solve(problem, budget=TINY, seed=seed)
        except Infeasible:
            assert best is None, f"seed {seed}: {best} is possible"
            continue
        assert found.value == best, f"seed {seed}: {found.value} by {found.log[-1].by}, best {best}"
        assert found.bound <= best, f"seed {seed}"
        if problem.objective is Objective.MAKESPAN:
            assert found.proof is not None, f"seed {seed} is not proved"


@pytest.mark.parametrize("first", range(1000, 1600, 100))
def test_bounds_and_refutations_are_sound(first: int) -> None:
    for seed in range(first, first + 100):
        problem = random_problem(seed)
        try:
            best = optimum(problem, 5_000)
        except ValueError:
            continue
        try:
            model = model_of(problem)
            bound = lower_bound(model)
        except Infeasible:
            assert best is None
            continue
        if best is None:
            continue
        assert bound.value * problem.time_unit <= best, f"seed {seed}: {bound} is above {best}"
        units = int(best / problem.time_unit)
        at = decide(model, units, seconds=20)
        assert at.answer is Answer.FOUND, f"seed {seed}"
        if problem.objective is Objective.MAKESPAN:
            assert decide(model, units - 1, seconds=20).answer is Answer.REFUTED, f"seed {seed}"


def known(largest: int) -> list[dict[str, object]]:
    return [case for case in CASES["optima"] if case["proved"] and case["p"] * case["m"] <= largest]


@pytest.mark.parametrize(
    "case", known(48), ids=lambda c: f"{c['p']}-{c['m']}-{c['cap']}-{c['held_by_w']}-{c['minimize']}"
)
def test_known_optima(case: dict) -> None:  # type: ignore[type-arg]
    problem = linear(case["p"], case["m"], case["cost"], case["cap"], case["held_by_w"], case["minimize"])
    found = solve(problem, budget=Budget(work=40))
    assert float(found.value) == pytest.approx(case["best_known"])
    assert found.proof is not None
    assert judge(problem, found.orders).value(problem.objective) == found.value


def test_bounds_are_below_everything_that_is_known() -> None:
    for case in CASES["optima"]:
        problem = linear(case["p"], case["m"], case["cost"], case["cap"], case["held_by_w"], case["minimize"])
        assert float(lower_bound(model_of(problem)).value * problem.time_unit) <= case["best_known"] + 1e-9
    for case in CASES["published_heuristic"]:
        if case["p"] * case["m"] > 512:
            continue
        for objective in ("makespan", "span"):
            problem = linear(case["p"], case["m"], case["cost"], case["cap"], case["held_by_w"], objective)
            value = case["published_heuristic"][objective]
            assert float(lower_bound(model_of(problem)).value * problem.time_unit) <= value + 1e-9
    for case in CASES["v_placement"]:
        if case["p"] * case["m"] > 512:
            continue
        for objective in ("makespan", "span"):
            problem = vee(case["p"], case["m"], case["cost_per_whole_stage"], case["peak_whole_stages"], objective)
            assert float(lower_bound(model_of(problem)).value * problem.time_unit) <= case[objective] + 1e-9


def test_a_long_pipeline_is_solved_by_its_steady_state() -> None:
    found = solve(linear(16, 96, EQUAL, 16), budget=Budget(work=20))
    assert found.value == found.bound == 15 + 3 * 96
    assert found.proof is Proof.BOUND


def test_half_the_memory_on_a_long_pipeline_is_within_five_percent() -> None:
    problem = linear(16, 96, EQUAL, 8)
    found = solve(problem, budget=Budget(work=8), goal=lower(problem) * Fraction(105, 100))
    assert found.gap <= Fraction(5, 100)


def lower(problem: Problem) -> Fraction:
    return lower_bound(model_of(problem)).value * problem.time_unit


@pytest.mark.parametrize(
    ("p", "m", "peak", "makespan"), [(4, 8, 3, "26.5"), (4, 12, 3, "38.5"), (4, 8, 4, "25.5"), (8, 24, 5, "80.5")]
)
def test_two_chunks_are_no_slower_than_the_published_schedules(p: int, m: int, peak: int, makespan: str) -> None:
    found = solve(vee(p, m, EQUAL, peak), budget=Budget(work=15), goal=Fraction(makespan))
    assert found.value <= Fraction(makespan)


@pytest.mark.parametrize("p", range(2, 9))
def test_no_span_bubble_takes_one_less_than_two_caps(p: int) -> None:
    """Zero bubble H2 does it with 2 p - 1 (Qi et al. 2024); that less cannot is proved."""
    found = smallest_cap_without_bubble(linear(p, 2 * p + 1, EQUAL, None), budget=Budget(work=10))
    assert found is not None
    assert (found.cap, found.proved) == (2 * p - 1, True)
    assert found.solution is not None
    assert found.solution.judgement.span == 3 * (2 * p + 1)


def test_caps_that_are_too_small_say_what_is_needed() -> None:
    problem = vee(3, 4, EQUAL, 0.5)
    with pytest.raises(Infeasible) as caught:
        solve(problem)
    assert caught.value.needed * problem.size_unit == 1 == smallest_feasible_cap(problem)
    assert solve(problem.with_cap(1), budget=Budget(work=2)).value > 0


def test_the_same_work_gives_the_same_answer() -> None:
    problem = linear(4, 10, {"F": "1", "I": "1.1", "W": "0.7", "send": "0.1"}, 3, 0.5)
    one, other = (solve(problem, budget=Budget(work=3), seed=5) for _ in range(2))
    assert one.orders == other.orders
    assert one.log == other.log


def test_progress_only_gets_better() -> None:
    steps = []
    solve(linear(4, 8, EQUAL, 2), budget=Budget(work=10), progress=steps.append)
    values = [step.value for step in steps if step.value is not None]
    assert values == sorted(values, reverse=True)
    assert [step.bound for step in steps] == sorted(step.bound for step in steps)
    assert values[-1] == steps[-1].bound == 41


def test_there_are_no_steady_states_of_orders_that_are_open_in_part() -> None:
    """W the last first: no shorter problem is like it, so nothing says what a pattern comes to."""
    problem = linear(4, 100, EQUAL, 4)
    backwards = tuple((f, i, w[::-1]) for f, i, w in problem.strands)
    assert steady_states(model_of(replace(problem, strands=backwards))) == ([], 0)


def test_steady_states_and_filling_keep_to_the_cap() -> None:
    problem = vee(4, 12, EQUAL, 3)
    model = model_of(problem)
    states, _ = steady_states(model)
    assert states
    from verify.search.kernel import unroll

    for state in states[:20]:
        rows = unroll(model, state.pattern)
        filled = fill(model, rows)
        assert fits(model, filled)
        before, after = run(model, rows), run(model, filled)
        assert before is not None
        assert after is not None
        assert after.value <= before.value
        judge(problem, model.orders(filled))


@pytest.mark.parametrize("cap", [1, 3, 4, 8, None])
def test_waves_never_pause_and_keep_to_the_cap(cap: int | None) -> None:
    """A wave takes 1 for each F and I and a tenth for each of the 14 ways between ranks, and then its last W."""
    problem = linear(8, 24, {"F": "1", "I": "1", "W": "0.7", "send": "0.1"}, cap)
    model = model_of(problem)
    rows = waves(model)
    assert rows is not None
    judgement = judge(problem, model.orders(rows))
    trip = Fraction(2 * 8) + Fraction(14, 10)
    assert judgement.makespan >= trip + 1
    if cap == 1:
        assert judgement.makespan == 24 * (trip + Fraction(7, 10))
    assert waves(model_of(linear(8, 24, EQUAL, 0.5))) is None


def test_tight_caps_on_long_pipelines_are_met_by_waves() -> None:
    """Steps of 2.2, of which a round trip takes 65: the next one starts then (cap 32, p = 64)."""
    problem = linear(64, 256, {"F": "1", "I": "1", "W": "0.7", "send": "0.1"}, 32)
    found = solve(problem, budget=Budget(work=2), goal=lower(problem) * Fraction(106, 100))
    assert found.gap <= Fraction(6, 100)


def test_the_judge_refuses_what_is_no_answer() -> None:
    problem = linear(2, 3, EQUAL, 2)
    orders = solve(problem, budget=Budget(work=2)).orders
    with pytest.raises(Invalid, match="cap"):
        judge(problem.with_cap(1), orders)
    with pytest.raises(Invalid, match="leaves operations out"):
        judge(problem, (orders[0][:-1], orders[1]))
    with pytest.raises(Invalid, match="out of turn"):
        judge(problem, ((orders[0][1], orders[0][0], *orders[0][2:]), orders[1]))


def test_z3_is_loaded_only_when_it_is_asked() -> None:
    code = "import sys, verify.search; assert 'z3' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_start_is_judged_and_never_made_worse() -> None:
    problem = linear(4, 8, EQUAL, 3)
    smaller = solve(problem.with_cap(2), budget=Budget(work=2))
    nothing = Budget(work=0)
    found = solve(problem, budget=nothing, start=smaller.orders)
    assert found.orders == smaller.orders
    assert found.value == smaller.value
    assert found.log[-1].by == "start"
    larger = solve(problem.with_cap(4), budget=Budget(work=2))
    for wrong in (larger.orders, smaller.orders[::-1], smaller.orders[:-1], ((),) * 4):
        with pytest.raises(NothingFound):
            solve(problem, budget=nothing, start=wrong)


def test_a_search_ends_at_its_goal() -> None:
    problem = linear(4, 8, EQUAL, 2)
    found = solve(problem, budget=TINY, goal=Fraction(43))
    assert 41 <= found.value <= 43
    refuted = solve(problem, budget=TINY, goal=Fraction(40))
    assert (refuted.value, refuted.bound, refuted.proof) == (41, 41, Proof.REFUTATION)
    with pytest.raises(Infeasible):
        solve(problem, budget=TINY, goal=Fraction(10))  # the lower bound alone is larger


def test_a_bound_that_is_known_is_not_proved_again() -> None:
    problem = linear(4, 8, EQUAL, 2)
    known = solve(problem, budget=TINY)
    assert known.bound > lower_bound(model_of(problem)).value
    again = solve(problem, budget=Budget(work=0.001), start=known.orders, known=known)
    assert (again.bound, again.proof, again.argument) == (known.bound, known.proof, known.argument)
    assert again.work == 0
