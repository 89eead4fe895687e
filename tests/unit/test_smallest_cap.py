"""What is said where no order keeps to the caps: in the time and work that there is, and no more than is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import count
from time import monotonic
from typing import Any

import pytest

from pipedsl import smallest_cap
from pipedsl.api import parse_text
from pipedsl.render.search import progress_text, sweep_document, sweep_lines
from pipedsl.render.style import paint
from pipedsl.search_problem import tasks
from pipedsl.search_runs import Effort, News, effort_of
from pipedsl.searching import search
from pipedsl.smallest_cap import Refusal, refusal
from pipedsl.sweeping import sweep
from pipedsl.syntax import Replica, Schedule
from verify.search.problem import Infeasible
from verify.search.solve import Budget, NothingFound, solve

pytest.importorskip("z3")

SKETCH = parse_text(
    "schedule x(p, m)\nstages p\nplace s -> s\nrank r { (F * 3 (F I) * (m - 3) I * 3) || W * m }\n"
    "memory { activation(s) = 10 + s  held_by_w(s) = 3  cap(r) = 10 }\n"
)
OPEN_PLACES = parse_text(
    "schedule x(p, m)\nstages 2 * p\nplace ? in looped, v\nrank r { F@0 * m || F@1 * m || B@0 * m || B@1 * m }\n"
    "memory { activation(s) = 4 cap(r) = 5 }\n"
)
SIZE = {"p": 3, "m": 6}


def effort(**more: Any) -> Effort:
    return replace(effort_of(None, None, 0, 1, None, None), **more)


def told(schedule: Schedule = SKETCH, **more: Any) -> Refusal:
    """What is said of three ranks and six microbatches; of two and one where there are copies."""
    copies = any(isinstance(item, Replica) for item in schedule.items)
    return refusal(schedule, tasks(schedule, {"p": 2, "m": 1} if copies else SIZE), effort(**more))


def watched(monkeypatch: pytest.MonkeyPatch, instead: Callable[[int], Exception | None]) -> list[Budget]:
    """The budgets of what is asked; `instead` of the answer to the n-th question something may be raised."""
    asked: list[Budget] = []

    def answered(*problem: Any, budget: Budget, **more: Any) -> Any:
        asked.append(budget)
        error = instead(len(asked) - 1)
        if error is not None:
            raise error
        return solve(*problem, budget=budget, **more)

    monkeypatch.setattr(smallest_cap, "solve", answered)
    return asked


def test_without_a_timeout_no_clock_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch, lambda n: None)
    found = told()
    assert found.sure
    assert found.smallest == brute_smallest()
    assert "the smallest that one keeps to is" in found.diagnostic.message
    assert len(asked) > 5
    assert {budget.seconds for budget in asked} == {None}


@cache
def brute_smallest() -> Fraction:
    """The least cap that a search finds an order for, every one being tried."""
    return Fraction(next(cap for cap in count() if keeps(cap)))


def keeps(cap: int) -> bool:
    (task,) = tasks(SKETCH, SIZE, Fraction(cap))
    try:
        solve(task.problem, budget=Budget(2.0))
    except Infeasible:
        return False
    return True


def test_no_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One order is found, and no more is asked; nothing is said to be the smallest."""
    asked = watched(monkeypatch, lambda n: None)
    found = told(until=monotonic() - 1)
    assert len(asked) == 1
    assert not found.sure
    assert found.smallest is not None
    assert found.smallest >= brute_smallest()
    assert "the smallest that one was found for is" in found.diagnostic.message
    assert "not ruled out" in str(found.diagnostic.help)


def test_every_question_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch, lambda n: None)
    assert told(until=monotonic() + 10_000).sure
    assert len(asked) > 5
    seconds = [budget.seconds for budget in asked[1:]]
    assert all(each is not None and 0 < each <= 10_000 for each in seconds)


def test_the_work_of_all_questions_is_that_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch, lambda n: NothingFound("") if n else None)
    assert not told(budget=Budget(work=0.5)).sure
    assert sum(budget.work for budget in asked[1:]) <= 0.5
    asked.clear()
    assert not told(budget=Budget(work=2.5)).sure
    assert [round(budget.work, 1) for budget in asked[1:]] == [1, 1, 0.5]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_ctrl_c_keeps_the_smallest_so_far(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(n: int) -> Exception | None:
        if n == at:
            raise KeyboardInterrupt
        return None

    watched(monkeypatch, press)
    found = told()
    assert not found.sure
    assert (found.smallest is None) == (at == 0)
    assert found.smallest is None or found.smallest >= brute_smallest()
    if at == 0:
        assert "ended before it was found how far they have to be raised" in str(found.diagnostic.help)


def test_one_placement_that_is_not_decided_leaves_all_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(OPEN_PLACES).sure
    firsts = 0

    def second_is_lost(n: int) -> Exception | None:
        return NothingFound("") if n > firsts else None

    asked = watched(monkeypatch, lambda n: None)
    told(OPEN_PLACES)
    firsts = next(n for n in range(1, len(asked)) if asked[n].work == asked[0].work)  # the first of the other placement
    watched(monkeypatch, second_is_lost)
    assert not told(OPEN_PLACES).sure


def test_how_it_stands_is_told() -> None:
    news: list[News] = []
    found = told(progress=news.append)
    assert found.sure
    assert len(news) > 3
    assert progress_text(news[-1], 0).startswith("no order keeps to the caps, one does with ")


def test_a_timeout_ends_what_is_asked_of_a_sweep_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a sweep say no more than what is known, as text and as JSON."""
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m || B * m }\nmemory { activation(s) = 3 }\n"
    schedule = parse_text(text)
    asked = watched(monkeypatch, lambda n: NothingFound("") if n else None)
    points = sweep(schedule, SIZE, "cap", range(1, 3), timeout=10_000.0)
    assert all(budget.seconds is not None and budget.seconds <= 10_000 for budget in asked[1:])
    lines = paint(sweep_lines("cap", points), colour=False)
    assert lines.count("no order keeps to it, one was found for a cap of") == 2
    assert "the smallest is" not in lines
    assert [each["smallest_proved"] for each in sweep_document("cap", points)["points"]] == [False, False]


def test_a_search_gives_what_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch, lambda n: None)
    with pytest.raises(Exception, match="no order keeps to the cap of 10"):
        search(SKETCH, SIZE, timeout=5_000.0)
    assert all(budget.seconds is not None and budget.seconds <= 5_000 for budget in asked[1:])
    asked.clear()
    with pytest.raises(Exception, match="no order keeps to the cap of 10; the smallest that one keeps to is"):
        search(SKETCH, SIZE)
    assert {budget.seconds for budget in asked} == {None}


def test_weights_alone_may_be_too_much() -> None:
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m || B * m }\n"
    found = told(parse_text(f"{text}memory {{ activation(s) = 0 weights(s) = 5 gradients(s) = 0 cap(r) = 3 }}\n"))
    assert (found.smallest, found.sure) == (5, True)
    assert found.diagnostic.notes == ("rank 0 holds 5 all the time",)


@pytest.mark.parametrize(("one", "other", "name"), [("0", "s", "b"), ("s", "0", "a")])
def test_copies_are_called_by_their_names(one: str, other: str, name: str) -> None:
    """F of stage 0 has a buffer of 4 beside its activation where stage 1 is on the other rank."""
    found = told(
        parse_text(
            f"schedule x(p, m)\nstages 2\nreplica a {{ place s -> {one} }}\nreplica b {{ place s -> {other} }}\n"
            "rank r where r == 0 { F@0 * m || F@1 * m || F@2 * m || B@0 * m || B@1 * m || B@2 * m }\n"
            "rank r where r == 1 { F * m || B * m }\nmemory { activation(s) = 1 output(s) = 4 cap(r) = 3 }\n"
        )
    )
    assert (found.smallest, found.sure) == (5, True)
    (note,) = found.diagnostic.notes
    assert note.endswith(f"when F stage 0 microbatch 0 replica {name} runs: F[0] of stage 0 of {name}")


def test_fewer_questions_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, where what ranks can hold is known, and where every byte may be it."""
    text = (
        "schedule x(p, m)\nstages p\nplace s -> s\nrank r { (F * 3 (F I) * (m - 3) I * 3) || W * m }\n"
        "memory { activation(s) = 1234567 + 1003 * s  held_by_w(s) = 345678 + s  cap(r) = 1 MiB + r }\n"
    )
    asked = watched(monkeypatch, lambda n: None)
    found = told(parse_text(text))
    few = len(asked)
    asked.clear()
    monkeypatch.setattr(smallest_cap, "holdings", lambda *_: None)
    other = told(parse_text(text))
    assert other.diagnostic == found.diagnostic
    assert found.sure
    assert few <= 10 < len(asked)
