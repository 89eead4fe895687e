"""Searches whose time is over before they have begun: an order all the same, unless setting up takes far longer."""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipedsl import found_text, search_runs
from pipedsl.api import load
from pipedsl.cli.main import cli
from pipedsl.program import Costs
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import sweep
from tests.support.searched import SOME_PLACES
from verify import Verdict
from verify.search.bounds import load_bound, lower_bound
from verify.search.judge import judge
from verify.search.model import model_of
from verify.search.problem import Infeasible, Objective, Problem, make_problem, uniform_costs
from verify.search.solve import LARGE, Budget, solve

pytest.importorskip("z3")

NO_TIME = 1e-9
MANY = LARGE // 6 + 1  # microbatches, of two stages


def pipeline(microbatches: int, cap: int | None, objective: Objective = Objective.MAKESPAN) -> Problem:
    costs = uniform_costs(2, 1, 2, "0.5", "0.1")
    return make_problem(placement=[0, 1], microbatches=microbatches, costs=costs, cap=cap, objective=objective)


@pytest.mark.parametrize("cap", [None, 1, 3])
@pytest.mark.parametrize("microbatches", [4, MANY])
def test_an_order_is_found_without_time(microbatches: int, cap: int | None) -> None:
    problem = pipeline(microbatches, cap)
    found = solve(problem, budget=Budget(seconds=0))
    assert judge(problem, found.orders).makespan == found.value >= found.bound
    best = lower_bound(model_of(problem)).value * problem.time_unit
    assert found.bound == (best if microbatches == 4 else microbatches * Fraction("3.5"))


def test_a_microbatch_that_never_fits_is_found_without_time() -> None:
    for microbatches in (4, MANY):
        with pytest.raises(Infeasible) as caught:
            solve(pipeline(microbatches, 0), budget=Budget(seconds=0))
        assert (caught.value.rank, caught.value.needed) == (0, 1)


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("cap", [None, 1, 2])
def test_the_load_is_a_bound(objective: Objective, cap: int | None) -> None:
    for closing in ((), (Fraction(3), Fraction(1)), (Fraction(1), Fraction(40))):
        costs = Costs(*([Fraction(one) for one in pair] for pair in ((1, 2), (3, 5), (2, 1), (1, 4), (1, 1))))  # type: ignore[arg-type]
        problem = make_problem(
            placement=[0, 1], microbatches=4, costs=costs, cap=cap, objective=objective, closing=closing, beside=closing
        )
        low, best = load_bound(problem), solve(problem, budget=Budget(2))
        assert low.value * problem.time_unit == 4 * 7 + (closing[1] if closing else 0)
        assert low.value * problem.time_unit <= best.value


def test_a_search_without_time_has_an_answer() -> None:
    result = search(load("zero_bubble"), {"p": 3, "m": 6}, timeout=NO_TIME)
    assert (result.verdict, result.value >= result.bound) == (Verdict.VERIFIED, True)


def test_a_search_of_placements_without_time_has_an_answer_and_a_bound() -> None:
    """Those that were not searched may be better, but not than the work of their ranks."""
    result = search(SOME_PLACES, {"p": 2, "m": 2, "k": 0}, timeout=NO_TIME)
    assert result.verdict is Verdict.VERIFIED
    whole = search(SOME_PLACES, {"p": 2, "m": 2, "k": 0}, budget=2)
    assert 12 <= result.bound <= whole.value <= result.value


def test_a_sweep_without_time_has_answers() -> None:
    points = sweep(load("zero_bubble"), {"p": 3, "m": 6}, "cap", [0, 3], timeout=NO_TIME)
    assert [(point.refusal is None, point.result is None) for point in points] == [(False, True), (True, False)]


@pytest.fixture
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is looked at, so many seconds have passed."""
    times = count(0.0, request.param)
    monkeypatch.setattr(search_runs, "monotonic", lambda: next(times))


@pytest.mark.parametrize("clock", [2.5], indirect=True)
def test_setting_up_may_take_as_long_again(clock: None) -> None:
    result = search(load("zero_bubble"), {"p": 2, "m": 4}, timeout=5.0)
    assert result.verdict is Verdict.VERIFIED


@pytest.mark.parametrize("clock", [30.0], indirect=True)
def test_setting_up_that_takes_far_longer_is_given_up(clock: None, tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="before all operations were there"):
        search(load("zero_bubble"), {"p": 2, "m": 4}, timeout=5.0)
    with pytest.raises(NothingFound, match="before all operations were there"):
        sweep(load("zero_bubble"), {"p": 2, "m": 4}, "cap", [1, 2], timeout=5.0)
    asked = ["search", "zero_bubble", "-D", "p=2", "-D", "m=4", "--no-cache"]
    ended = CliRunner().invoke(cli, [*asked, "--timeout", "5"])
    said = "nothing found: the time was over long before all operations were there to be searched\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "", said)
    assert CliRunner().invoke(cli, [*asked, "--budget", "1"]).exit_code == 0


def test_the_text_of_an_answer_is_made_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many operations it takes as long as all else, and the report has none of it."""
    made: list[object] = []
    real = found_text.found_text
    monkeypatch.setattr(found_text, "found_text", lambda result: (made.append(result), real(result))[1])
    asked = ["search", "zero_bubble", "-D", "p=2", "-D", "m=4", "--no-cache", "--budget", "1"]
    for more, times in (([], 0), (["--format", "json"], 1), (["-o", "-"], 1)):
        made.clear()
        assert CliRunner().invoke(cli, [*asked, *more]).exit_code == 0
        assert len(made) == times
