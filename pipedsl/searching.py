"""Search, composed: a schedule that leaves orders open to the best order found, verified. Nothing here prints.

import pipedsl
result = pipedsl.search(pipedsl.load("zero_bubble"), {"p": 4, "m": 8})
assert result.optimal and result.value == 27
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Limits
from pipedsl.found_text import exact
from pipedsl.search_answer import (
    NoRoom,
    SearchResult,
    answer_of,
    carried,
    is_too_small,
    job_of,
    may_go_on,
    may_lack_room,
)
from pipedsl.search_problem import Task, tasks
from pipedsl.search_runs import ROOM, Effort, Job, News, Outcome, effort_of, patience
from pipedsl.search_turns import take_turns
from pipedsl.smallest_cap import refusal
from pipedsl.syntax import Schedule
from verify.search.bounds import load_bound
from verify.search.engines import Engine
from verify.search.solve import NothingFound, Solution

if TYPE_CHECKING:
    from pipedsl.profile import Profile


def search(
    schedule: Schedule,
    params: Mapping[str, int],
    *,
    cap: Fraction | int | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    cache: Path | None = None,
    progress: Callable[[News], None] | None = None,
    transports: Sequence[str] | None = None,
    limits: Limits | None = None,
    profile: Profile | None = None,
    engine: Engine | None = "z3",
) -> SearchResult:
    """The best order that the budget finds, verified.

    `cap` stands in place of the file's, for every rank, and `profile` in place of its durations and sizes. `budget` is
    in units of work, about a second of one core each (60 unless there is a `timeout`): the same input, budget, seed and
    jobs give the same answer. `timeout`, in seconds, keeps the best so far, and so does Ctrl-C. `jobs` processes search
    with seeds of their own. `cache`: a folder of earlier answers. `engine`: who decides what bounds and heuristics
    leave open, `z3` or `cpsat`; None is the best that is installed.

    Raises DiagnosticError for what is no search problem, with PD602 where no order keeps to the caps; `NothingFound`
    where time or budget ended before there was any order.
    """
    until = None if timeout is None else monotonic() + timeout
    found = tasks(schedule, params, None if cap is None else Fraction(cap), limits, profile, patience(timeout))
    possible = [task for task in found if not is_too_small(task)]
    effort = replace(effort_of(budget, timeout, seed, jobs, cache, progress, engine), until=until)
    share = effort.part(1 / max(1, ceil(len(possible) / jobs)))
    first = effort.sooner(1 - ROOM) if any(map(may_go_on, possible)) else effort

    def make(k: int, part: Effort, each: int) -> Job:
        return job_of(possible[k], part.budget, each, possible[k].placement or "")

    of_task = take_turns(make, len(possible), first)
    if all(each.refused for each in of_task):
        raise refusal(schedule, found, effort).error
    return best_of(schedule, list(zip(possible, of_task, strict=True)), share, transports, profile)


def best_of(
    schedule: Schedule,
    found: Sequence[tuple[Task, Outcome]],
    effort: Effort,
    transports: Sequence[str] | None,
    profile: Profile | None,
    before: SearchResult | None = None,
) -> SearchResult:
    """The best answer among several placements, with room for all buffers. Raises NothingFound where there is none.

    An answer is no better than what was found before buffers were counted, so the placements are gone through from
    there, until none can be better than what fits. `before`: what was answered under other caps, which may fit too.
    """
    solved = [(task, each, each.solution) for task, each in found if each.solution is not None]
    if not solved:
        lost = next((each.lost for _, each in found if each.lost), "")
        ended = "interrupted" if any(each.interrupted for _, each in found) else "the search ended"
        raise NothingFound(f"{ended} before it found an order{lost and f': {lost}'}")
    answer: SearchResult | None = None
    for task, outcome, solution in solved:
        if before is None or task.placement != before.placement:
            continue
        if not may_lack_room(task) and not any(task.reductions):
            continue
        try:
            answer = carried(schedule, task, outcome, effort, before, transports, profile)
        except KeyboardInterrupt:
            raise NothingFound(_lost_on_the_way(task, outcome, solution, effort)) from None
    roomless: list[NoRoom] = []
    stopped = False
    for at, (task, outcome, solution) in enumerate(sorted(solved, key=lambda each: each[2].value)):
        if stopped or (answer is not None and solution.value >= answer.value):
            break
        part = effort.ending(1 / (len(solved) - at))
        try:
            other = answer_of(schedule, task, outcome, part, transports, profile)
        except NoRoom as error:
            roomless.append(error)
            if error.interrupted:
                answer = None if answer is None else replace(answer, interrupted=True)
                break
        except KeyboardInterrupt:
            if answer is None:
                raise NothingFound(_lost_on_the_way(task, outcome, solution, effort)) from None
            answer, stopped = replace(answer, interrupted=True), True
        else:
            stopped = other.interrupted
            answer = other if answer is None or other.value < answer.value else answer
    if answer is None:
        raise min(roomless, key=lambda each: each.needed)
    if len(found) == 1:
        return answer
    bounds = [solution.bound for _, _, solution in solved]
    # One that has neither an order nor a refusal may be better than all.
    undecided = [task.problem for task, each in found if each.solution is None and not each.refused]
    bound = min(bounds + [load_bound(problem).value * problem.time_unit for problem in undecided])
    answer = replace(answer, least=False)  # as good an order of another placement may hold less
    if bound >= answer.bound:
        return answer
    return replace(answer, bound=bound, proof=None, argument="the lowest of all placements")


def _lost_on_the_way(task: Task, outcome: Outcome, solution: Solution, effort: Effort) -> str:
    told = f"{task.problem.objective.value} {exact(solution.value)} was found"
    again = "" if effort.cache is None or outcome.interrupted else "; the same command finds it again at once"
    return f"interrupted while the answer was verified: {told}, and is lost{again}"


__all__ = ["NothingFound", "SearchResult", "best_of", "search"]
