"""Sweeps: the answer for each of several caps, which share what was found."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipedsl import search_runs
from pipedsl.api import load, parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import SweepPoint, sweep
from tests.support.searched import OPEN, WORK, problem
from verify import Verdict
from verify.search.problem import Problem
from verify.search.solve import Solution


def test_a_sweep_is_a_search_for_each_value() -> None:
    points = sweep(load("zero_bubble"), {"p": 3, "m": 6}, "cap", range(6), budget=WORK)
    assert [point.refusal is not None for point in points] == [True] + [False] * 5
    assert points[0].refusal is not None
    assert points[0].refusal.smallest == 1
    for point in points[1:]:
        alone = search(load("zero_bubble"), {"p": 3, "m": 6, "cap": int(point.value)}, budget=WORK)
        assert point.result is not None
        assert (point.result.value, point.result.optimal) == (alone.value, alone.optimal)
        assert point.result.verdict is Verdict.VERIFIED


def test_a_larger_cap_that_does_not_help_is_not_used() -> None:
    points = sweep(load("zero_bubble"), {"p": 4, "m": 8}, "cap", range(3, 8), budget=WORK)
    answers = [point.result for point in points if point.result]
    assert [answer.value for answer in answers] == [31, 27, 27, 27, 27]
    peaks = [answer.report.metrics.peak_activations for answer in answers if answer.report.metrics]
    assert [max(peak) for peak in peaks] == [3, 4, 4, 4, 4]


def test_a_sweep_that_is_cut_short_has_what_the_first_searches_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = search_runs.solve

    def once(problem: Problem, **options: object) -> Solution:
        if problem.cap[0] == 2:
            return real(problem, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(search_runs, "solve", once)
    points = sweep(load("zero_bubble"), {"p": 4, "m": 8}, "cap", range(2, 5), budget=WORK)
    for point in points:
        assert point.result is not None
        assert point.result.value == 41
        assert 0 < point.result.bound <= {2: 41, 3: 31, 4: 27}[int(point.value)]


def test_a_sweep_of_another_parameter_and_of_the_cap_option() -> None:
    points = sweep(load("zero_bubble"), {"p": 2, "cap": 2}, "m", [3, 4], budget=WORK)
    assert [point.result.params["m"] for point in points if point.result] == [3, 4]
    schedule = parse_text(f"schedule x(p, m)\nstages p\nplace s -> s\nrank r {{ {OPEN} }}")
    points = sweep(schedule, {"p": 2, "m": 4}, "cap", [1, 2], budget=WORK)
    assert [point.result.caps for point in points if point.result] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("memory", ["", "memory { cap(r) = 3 }", "expect { peak(r) <= cap }"])
def test_a_sweep_of_what_changes_nothing_says_so(memory: str) -> None:
    schedule = parse_text(f"schedule x(p, m, cap = 3)\nstages p\nplace s -> s\nrank r {{ {OPEN} }}\n{memory}")
    with pytest.raises(DiagnosticError) as caught:
        sweep(schedule, {"p": 2, "m": 2}, "cap", [1, 2, 3], budget=WORK)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span is not None and found.span.text) == ("PD601", "cap = 3")
    assert "`cap` changes nothing here" in found.message
    assert "cap(r)" in (found.help or "")


def test_a_sweep_of_what_buffers_take_makes_a_difference() -> None:
    """The search knows no message buffers, the answers do."""
    text = f"schedule x(p, m, b)\nstages p\nplace s -> s\nrank r {{ {OPEN} }}\nmemory {{ output(s) = b  cap(r) = 4 }}"
    points = sweep(parse_text(text), {"p": 2, "m": 2}, "b", [0, 1], budget=WORK)
    held = [max(point.result.report.metrics.memory) for point in points if point.result and point.result.report.metrics]
    assert len(held) == 2
    assert held[0] < held[1]


def test_neighbours_share_orders_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that gives up on some caps still ends up with what the others found and proved."""
    real = search_runs.solve

    def lazy(problem: object, **options: object) -> Solution:
        solution = real(problem, **options)  # type: ignore[arg-type]
        if problem.cap[0] == 3:  # type: ignore[attr-defined]
            raise NothingFound("this one gives up")
        if problem.cap[0] == 2:  # type: ignore[attr-defined]
            return replace(solution, bound=Fraction(0), proof=None)
        return solution

    monkeypatch.setattr(search_runs, "solve", lazy)
    two, three, four = (
        point.result for point in sweep(load("zero_bubble"), {"p": 3, "m": 5}, "cap", [2, 3, 4], budget=WORK)
    )
    assert two is not None
    assert three is not None
    assert four is not None
    assert three.value == two.value
    assert not three.optimal
    assert two.bound == three.bound == 0 or two.bound <= four.bound


def test_a_sweep_over_placements_has_the_best_at_each_value() -> None:
    word = "F@0 * m || F@1 * m || B@0 * m || B@1 * m"
    places = ("linear", "looped", "v")

    def curve(place: str) -> list[SweepPoint]:
        schedule = problem(word, "memory { cap(r) = cap }", "2 * p", place)
        return sweep(schedule, {"p": 2, "m": 2}, "cap", range(1, 4), budget=WORK)

    alone = [curve(f"? in {name}") for name in places]
    together = curve("?")
    assert together[0].refusal is not None
    for point, *each in zip(together[1:], *(each[1:] for each in alone), strict=True):
        values = [one.result.value for one in each if one.result]
        assert point.result is not None
        assert point.result.value == min(values)
        assert point.result.bound <= min(one.result.bound for one in each if one.result)
        assert values[places.index(str(point.result.placement))] == point.result.value
