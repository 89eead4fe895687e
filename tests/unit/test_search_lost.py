"""Searches of which a part is lost: a process that was killed, the time left, Ctrl-C on the way to the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pipedsl import search_answer, search_runs
from pipedsl.api import load, parse_text
from pipedsl.render.search import sweep_lines
from pipedsl.render.style import paint
from pipedsl.search_answer import job_of
from pipedsl.search_problem import tasks
from pipedsl.search_processes import Ended
from pipedsl.search_runs import Job, News, Outcome
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import sweep
from verify import Verdict
from verify.search.solve import Budget

WORK = 5.0
WHY = "a process was killed by signal 9"
ASKED = {"p": 3, "m": 6, "cap": 2}


def test_a_process_that_is_lost_leaves_the_answers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_lost(work: Callable[[Job], Outcome], jobs: Sequence[Job], *_: object) -> list[Ended[Outcome]]:
        return [Ended(lost=WHY), *(Ended(work(job)) for job in jobs[1:])]

    monkeypatch.setattr(search_runs, "in_processes", one_lost)
    result = search(load("zero_bubble"), ASKED, budget=WORK, jobs=2)
    alone = search(load("zero_bubble"), ASKED, budget=WORK, seed=1)
    assert (result.value, result.bound, result.lost) == (alone.value, alone.bound, WHY)
    assert result.verdict is Verdict.VERIFIED
    assert not result.interrupted
    assert WHY in result.text.replace("\n# ", " ")


def test_where_all_are_lost_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_runs, "in_processes", lambda _, jobs, *__: [Ended(lost=WHY) for _ in jobs])
    with pytest.raises(NothingFound, match=WHY):
        search(load("zero_bubble"), ASKED, budget=WORK, jobs=2)
    points = sweep(load("zero_bubble"), {"p": 3, "m": 6}, "cap", range(2, 4), budget=WORK, jobs=2)
    assert [(point.result, WHY in point.why) for point in points] == [(None, True)] * 2


class LostAfter:
    """In place of `in_processes`: of two, the second is lost after so many seconds, when the first has answered."""

    def __init__(self, after: float) -> None:
        self.after = after
        self.asked: list[Job | None] = []

    def __call__(
        self,
        work: Callable[[Job], Outcome],
        jobs: Sequence[Job],
        _: int,
        again: Callable[[int, float, bool], Job | None],
        done: Callable[[int, Outcome], None],
    ) -> list[Ended[Outcome]]:
        answer = work(jobs[0])
        done(0, answer)
        self.asked = [again(1, self.after, alone) for alone in (False, True)]
        return [Ended(answer), Ended(lost=WHY)]


@pytest.mark.parametrize(
    ("seconds", "after", "left"),
    [
        (None, 1000, (None, "endless")),
        (1e6, 4e5, (6e5, None)),
        (1e6, 1e6, (None, None)),
    ],
)
def test_a_lost_search_is_tried_again_at_once_for_the_time_that_is_left_or_alone(
    seconds: float | None, after: float, left: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the search that answers has no work for a proof, so the other is wanted."""
    [task] = tasks(load("zero_bubble"), {"p": 4, "m": 8, "cap": 2})
    jobs = [job_of(task, Budget(work=0.01, seconds=seconds), seed) for seed in range(2)]
    monkeypatch.setattr(search_runs, "in_processes", run := LostAfter(after))
    first, _ = search_runs.run_jobs(jobs, 2)
    assert first.solution is None or first.solution.proof is None
    assert tuple(job and (job.budget.seconds or "endless") for job in run.asked) == left


@pytest.mark.parametrize("seconds", [None, 1e6])
def test_what_is_proved_already_is_not_searched_again(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    [task] = tasks(load("zero_bubble"), {"p": 2, "m": 2})
    [other] = tasks(load("zero_bubble"), {"p": 2, "m": 3})
    budget = Budget(work=WORK, seconds=seconds)
    monkeypatch.setattr(search_runs, "in_processes", run := LostAfter(1))
    for second, wanted in ((task, False), (other, True)):
        first, _ = search_runs.run_jobs([job_of(task, budget, 0), job_of(second, budget, 1)], 2)
        assert first.solution is not None
        assert first.solution.proof is not None
        assert any(run.asked) is wanted


def test_a_search_ends_at_its_moment_whatever_its_budget() -> None:
    """With no time at all it answers what it has at once, though its budget is for an hour."""
    [task] = tasks(load("zero_bubble"), {"p": 8, "m": 32, "cap": 4})
    job = replace(job_of(task, Budget(work=3600, seconds=3600), 0), until=0.0)
    [outcome] = search_runs.run_jobs([job])
    assert outcome.solution is None or outcome.solution.work < 1
    assert search_runs._again(job, 1, False) is None


def test_ctrl_c_while_room_is_made_for_messages_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer has no room for its messages; Ctrl-C in the search for one that has is followed by no other."""
    asked: list[Job] = []
    run_job = search_runs.run_job

    def pressed(job: Job, progress: Callable[[News], None] | None = None) -> Outcome:
        asked.append(job)
        return replace(run_job(job, progress), interrupted=len(asked) > 1)

    def more(*_: object, **__: object) -> object:
        raise AssertionError("it goes on after Ctrl-C")

    monkeypatch.setattr(search_runs, "run_job", pressed)
    monkeypatch.setattr(search_answer, "solve", more)
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m || I * m || W * m }\n"
    schedule = parse_text(f"{text}memory {{ output(s) = 1 cap(r) = 6 }}\n")
    with pytest.raises(NothingFound, match="interrupted"):
        search(schedule, {"p": 3, "m": 5}, budget=WORK)
    assert len(asked) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_a_sweep(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the way back nor the curve of another placement is begun after it."""
    asked: list[str] = []

    def pressed(job: Job, _: object = None) -> Outcome:
        asked.append(job.label)
        return Outcome(job.seed, interrupted=True)

    def in_turn(work: Callable[[Job], Outcome], each: Sequence[Job], *_: object) -> list[Ended[Outcome]]:
        return [Ended(work(job)) for job in each]

    monkeypatch.setattr(search_runs, "run_job", pressed)
    monkeypatch.setattr(search_runs, "in_processes", in_turn)
    text = "schedule x(p, m)\nstages 2 * p\nplace ? in looped, v\nrank r { F@0 * m || F@1 * m || B@0 * m || B@1 * m }\n"
    points = sweep(parse_text(text), {"p": 2, "m": 4}, "cap", range(3, 6), budget=WORK, jobs=jobs)
    assert asked == ["cap=3", "cap=4", "cap=5"][: 1 if jobs == 1 else 3]
    assert [point.result for point in points] == [None] * 3
    assert all(point.why.startswith("interrupted before") for point in points)


def test_the_table_says_what_was_interrupted_or_lost() -> None:
    [point] = sweep(load("zero_bubble"), {"p": 2, "m": 2}, "cap", [2], budget=WORK)
    assert point.result is not None
    ended = replace(point, result=replace(point.result, interrupted=True, lost=WHY))
    whole, cut = (paint(sweep_lines("cap", [each]), False).splitlines()[1] for each in (point, ended))
    assert whole.endswith("the smallest")
    assert cut == f"{whole}, interrupted, {WHY}"
