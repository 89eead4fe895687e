"""What a budget goes to where the best of several placements is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from problems import EQUAL, linear

from pipedsl.api import parse_text
from pipedsl.search_runs import Effort, Job, Outcome, effort_of
from pipedsl.search_turns import FIRST, LOOK, take_turns
from pipedsl.searching import search
from verify.search import Aim, Budget, Proof, Solution, solve

PROBLEMS = [linear(1, m, EQUAL, None) for m in (1, 2, 3)]
FOUND = [solve(problem, budget=Budget(1)) for problem in PROBLEMS]
BUDGET = 100.0


def make(k: int, effort: Effort, seed: int) -> Job:
    return Job(PROBLEMS[k], effort.budget, seed, (Fraction(0),), str(k))


class Script:
    """Answers in place of a search: for each problem (value, bound) of its first look and of its turns."""

    def __init__(self, answers: Sequence[Sequence[tuple[int, int] | None]], used: float = 1.0) -> None:
        self.answers = [list(each) for each in answers]
        self.asked: list[tuple[int, float]] = []
        self.jobs: list[Job] = []
        self.used = used

    def run(self, effort: Effort, jobs: Sequence[Job]) -> list[Outcome]:
        self.asked += [(int(job.label), round(job.budget.work, 6)) for job in jobs]
        self.jobs += jobs
        return [Outcome(job.seed, self._next(job)) for job in jobs]

    def _next(self, job: Job) -> Solution | None:
        k = int(job.label)
        answer = self.answers[k].pop(0)
        if answer is None:
            return None
        value, bound = map(Fraction, answer)
        proof = Proof.BOUND if value == bound else None
        work = job.budget.work * (self.used if proof else 1)
        return replace(FOUND[k], value=value, bound=bound, proof=proof, work=work)


def turns(script: Script, monkeypatch: pytest.MonkeyPatch, jobs: int = 1) -> list[Outcome]:
    monkeypatch.setattr(Effort, "run", lambda effort, jobs: script.run(effort, jobs))
    return take_turns(make, len(script.answers), effort_of(BUDGET, None, 0, jobs, None, None))


def values(outcomes: Sequence[Outcome]) -> list[Fraction | None]:
    return [None if each.solution is None else each.solution.value for each in outcomes]


def test_what_cannot_be_better_gets_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30, 20)], [(15, 10), (12, 11)], [(16, 15)]])
    found = turns(script, monkeypatch)
    look = round(BUDGET * LOOK / 3, 6)
    assert script.asked == [(0, look), (1, look), (2, look), (1, BUDGET * (1 - LOOK))]
    assert values(found) == [30, 12, 16]


def test_the_best_has_the_most_and_the_last_all_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30, 10), (30, 10)], [(20, 10), (20, 10)], [None, (19, 10)]])
    found = turns(script, monkeypatch)
    rest = BUDGET * (1 - LOOK)
    first, second = rest * FIRST, rest * (1 - FIRST) * FIRST
    expected = [(1, first), (0, second), (2, rest - first - second)]
    assert script.asked[3:] == [(k, pytest.approx(work)) for k, work in expected]
    assert sum(work for _, work in script.asked) == pytest.approx(BUDGET)
    assert values(found) == [30, 20, 19]
    goes_on = script.jobs[3]
    assert (goes_on.start, goes_on.known) == (
        FOUND[1].orders,
        replace(FOUND[1], value=20, bound=10, proof=None, work=script.jobs[1].budget.work),
    )


def test_a_turn_may_show_that_others_are_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30, 18)], [(20, 10), (18, 12), (18, 18)], [(24, 15), (23, 16)]])
    turns(script, monkeypatch)
    assert [k for k, _ in script.asked] == [0, 1, 2, 1, 2], "of the first nothing below 18 may come"


def test_what_a_proof_leaves_goes_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(20, 20)], [(30, 10), (25, 10)]], used=0.1)
    turns(script, monkeypatch)
    assert script.asked[2] == (1, pytest.approx(BUDGET * (1 - LOOK / 2 - 0.1 * LOOK / 2)))


def test_after_an_interrupt_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30, 10)], [(20, 10)], []])

    def run(effort: Effort, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes = script.run(effort, jobs)
        return [replace(each, interrupted=len(script.asked) == 2) for each in outcomes]

    monkeypatch.setattr(Effort, "run", run)
    found = take_turns(make, 3, effort_of(BUDGET, None, 0, 1, None, None))
    assert len(script.asked) == 2
    assert values(found) == [30, 20, None]
    assert [each.interrupted for each in found] == [True, True, True]


@pytest.mark.parametrize(("jobs", "seeds"), [(3, 1), (6, 2), (8, 2)])
def test_with_processes_enough_each_has_the_whole(jobs: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30 + k, 10)] * seeds for k in range(3)])
    turns(script, monkeypatch, jobs)
    assert script.asked == [(k, BUDGET) for k in range(3) for _ in range(seeds)]
    assert [job.aim for job in script.jobs] == ([Aim.BOTH] if seeds == 1 else [Aim.ORDERS, Aim.BOUNDS]) * 3


def test_with_fewer_processes_each_turn_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[(30, 29)] * 2, [(20, 10)] * 2 + [(19, 10), (18, 10)], [(40, 30)] * 2])
    found = turns(script, monkeypatch, 2)
    assert [job.seed for job in script.jobs] == [0, 1] * 4
    assert [job.aim for job in script.jobs] == [Aim.ORDERS, Aim.BOUNDS] * 4
    assert values(found) == [30, 18, 40]


PLACES = parse_text(
    "schedule x(p, m)\nstages 2 * p\nplace ?\n"
    "rank r { F@0 * m || F@1 * m || I@0 * m || I@1 * m || W@0 * m || W@1 * m }\n"
    "cost s { F = 1 + s % 2  I = 2 - s % 2  W = 1  send = 1 / 10 }\nmemory { cap(r) = 3 }\n"
)


def test_the_same_again_is_the_same_and_kept(tmp_path: Path) -> None:
    asked = {"p": 2, "m": 4}
    first = search(PLACES, asked, budget=0.5, cache=tmp_path)
    again, other = search(PLACES, asked, budget=0.5, cache=tmp_path), search(PLACES, asked, budget=0.5)
    assert (first.cached, again.cached, other.cached) == (False, True, False)
    assert first.text == again.text
    assert (first.value, first.bound, first.placement) == (other.value, other.bound, other.placement)
    assert first.program.kind.tolist() == other.program.kind.tolist()
    assert first.work <= 0.5 * 1.2
