"""Sweeps: the answer for each of several caps, which share what was found."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipedsl import search_runs, sweeping
from pipedsl.api import load, parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import SweepPoint, sweep
from tests.support.searched import OPEN, SOME_PLACES, WORK, problem
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


LATE_WEIGHTS = "rank r where r == 0 { F * m (I * m || W * m) }\nrank r where r == 1 { F * m || I * m || W * m }\n"


@pytest.mark.parametrize(
    "capped",
    [
        "subject to peak(k) <= 0",
        "memory { cap(r) = (r if k == 0 else 1) }",
        "memory { cap(r) = 1 weights(s) = 1 - k }",
    ],
)
def test_what_is_said_of_one_value_is_not_said_of_another(capped: str) -> None:
    """Other ranks are capped, or by something else, or hold more beside: the smallest is another."""
    schedule = parse_text(f"schedule x(p, m, k)\nstages p\nplace s -> s\n{LATE_WEIGHTS}{capped}\n")
    points = sweep(schedule, {"p": 2, "m": 3}, "k", [0, 1], budget=WORK)
    for point in points:
        with pytest.raises(DiagnosticError) as alone:
            search(schedule, {"p": 2, "m": 3, "k": int(point.value)}, budget=WORK)
        assert point.refusal is not None
        assert point.refusal.sure
        assert [point.refusal.diagnostic] == list(alone.value.diagnostics)
    assert points[0].refusal != points[1].refusal


def test_what_is_said_of_several_caps_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = sweeping.refusal
    monkeypatch.setattr(sweeping, "refusal", lambda *given: (asked.append(given), real(*given))[1])
    schedule = parse_text(f"schedule x(p, m)\nstages p\nplace s -> s\n{LATE_WEIGHTS}")
    points = sweep(schedule, {"p": 2, "m": 3}, "cap", [0, 1, 2], budget=WORK)
    assert len(asked) == 1
    for point in points:
        with pytest.raises(DiagnosticError) as alone:
            search(schedule, {"p": 2, "m": 3}, cap=int(point.value), budget=WORK)
        assert point.refusal is not None
        assert point.refusal.diagnostic.message == alone.value.diagnostics[0].message
        assert (point.refusal.smallest, point.least) == (3, 3)


def test_a_placement_may_be_possible_for_some_values_alone() -> None:
    """The words run with all three for k=0, and with one for k=1."""
    points = sweep(SOME_PLACES, {"p": 2, "m": 2}, "k", [0, 1], budget=WORK)
    for point in points:
        alone = search(SOME_PLACES, {"p": 2, "m": 2, "k": int(point.value)}, budget=WORK)
        assert point.result is not None
        assert (point.result.value, point.result.placement) == (alone.value, alone.placement)
        assert point.result.task.left_out == ((), ("looped", "v"))[int(point.value)]


def test_a_small_cap_of_one_rank_does_not_make_another_hold_much() -> None:
    """With k=1 rank 1 has to hold 18 to be as quick, with k=2 half of that."""
    text = """schedule x(p=3, m=2, k=1)
stages 3
replica a { place s -> s }
replica b { place s -> 1 }
rank r where r != 1 { F * m || B * m }
rank r where r == 1 {
    F@1[0] F@2[0] F@3[0] F@1[1] F@2[1] F@3[1] B@0[0] B@0[1] ||
    F@0[0] F@0[1] B@3[0] B@2[0] B@1[0] B@3[1] B@2[1] B@1[1]
}
cost s { F = s % 2  I = s % 2  W = s % 2 }
memory { activation(s) = 1 if s == 0 else 0 if s == 1 else 8  cap(r) = k if r == 0 else 1000 }
"""
    for jobs in (1, 2):
        points = sweep(parse_text(text), {}, "k", [1, 2], budget=WORK, jobs=jobs)
        for point in points:
            alone = search(parse_text(text), {"k": int(point.value)}, budget=WORK)
            assert point.result is not None
            assert (point.result.value, alone.value) == (12, 12)
            held = [max(each.report.metrics.memory) for each in (point.result, alone) if each.report.metrics]
            assert held[0] == held[1] == {1: 18, 2: 9}[int(point.value)]
            assert point.result.least
