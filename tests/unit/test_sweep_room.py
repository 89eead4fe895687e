"""Sweeps where messages take memory: what had room under a smaller cap has it under a larger one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipedsl import searching
from pipedsl.api import parse_text, verify
from pipedsl.search_answer import NoRoom, SearchResult, answer_of
from pipedsl.search_problem import Task
from pipedsl.sweeping import SweepPoint, sweep
from pipedsl.syntax import Schedule
from verify import Verdict

pytest.importorskip("z3")

HEAD = "schedule x(p, m, k = 1)\nstages p\nplace s -> s\n"


def curve(schedule: Schedule, p: int, m: int, caps: range) -> list[SweepPoint]:
    return sweep(schedule, {"p": p, "m": m}, "cap", caps, budget=0.1)


@pytest.mark.parametrize(
    ("word", "cost", "memory", "caps"),
    [
        ("F * m || B * m", "F = 1 I = 3 W = 4 send = 1", "activation(s) = 3 output(s) = 2", range(11, 13)),
        ("F * m || B * m", "F = 4 I = 2 W = 2 send = 2", "activation(s) = 3 output(s) = 3 input(s) = 1", range(16, 18)),
        ("F * m || I * m || W * m", "F = 1 I = 4 W = 2 send = 2", "activation(s) = 2 output(s) = 1", range(7, 9)),
    ],
)
def test_a_larger_cap_is_never_worse(word: str, cost: str, memory: str, caps: range) -> None:
    """Cases in which the larger cap alone, with so small a budget, comes to something worse or to nothing."""
    schedule = parse_text(f"{HEAD}rank r {{ {word} }}\ncost {{ {cost} }}\nmemory {{ {memory} }}\n")
    less, more = (point.result for point in curve(schedule, 3, 5, caps))
    assert less is not None
    assert more is not None
    assert more.value <= less.value


def without_room(fails: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is found for caps from this one on has room."""

    def answered(schedule: Schedule, task: Task, *more: object) -> SearchResult:
        if max(cap for cap in task.caps if cap is not None) >= fails:
            raise NoRoom("too large", Fraction(100), False)
        return answer_of(schedule, task, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(searching, "answer_of", answered)


def test_an_answer_is_carried_upwards_as_far_as_none_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = parse_text(f"{HEAD}rank r {{ F * m || B * m }}\nmemory {{ activation(s) = 2 output(s) = 1 }}\n")
    alone = [point.result for point in curve(schedule, 2, 4, range(6, 10))]
    without_room(Fraction(7), monkeypatch)
    points = curve(schedule, 2, 4, range(6, 10))
    assert alone[0] is not None
    for point, best in zip(points, alone, strict=True):
        found = point.result
        assert found is not None
        assert best is not None
        assert (found.value, found.verdict) == (alone[0].value, Verdict.VERIFIED)
        assert (found.bound, found.argument) == (best.bound, best.argument)
        assert found.optimal == (found.value == found.bound)
        assert set(found.caps) == {point.value}
        report = verify(parse_text(found.text), {})
        assert report.metrics is not None
        assert (report.verdict, report.metrics.makespan) == (Verdict.VERIFIED, found.value)


def test_what_is_of_other_orders_or_too_large_is_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    without_room(Fraction(7), monkeypatch)
    memory = "memory { activation(s) = 2 output(s) = 1 cap(r) = 5 + k }\n"
    longer = parse_text(f"{HEAD}rank r {{ F * m || B * m }}\n{memory}cost {{ F = k }}\n")
    points = sweep(longer, {"p": 2, "m": 4}, "k", range(1, 3), budget=0.1)
    assert [point.result is not None for point in points] == [True, False]
    assert points[1].why == "too large"
    memory = "memory { activation(s) = 2 output(s) = k * k cap(r) = 5 + k }\n"
    larger = parse_text(f"{HEAD}rank r {{ F * m || B * m }}\n{memory}")
    points = sweep(larger, {"p": 2, "m": 4}, "k", range(1, 3), budget=0.1)
    assert [point.result is not None for point in points] == [True, False]
