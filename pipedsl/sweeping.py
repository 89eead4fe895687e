"""A search for each of several values of one parameter, or of the cap: the curve of memory against time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
from pipedsl.search_problem import Task, tasks
from pipedsl.search_runs import News, Outcome, run_jobs
from pipedsl.searching import SearchResult, answer_of, budget_of, is_too_small, job_of, with_better_bound
from pipedsl.syntax import Schedule
from verify.search.bounds import lower_bound
from verify.search.judge import Invalid, judge
from verify.search.model import model_of
from verify.search.problem import Infeasible
from verify.search.solve import NothingFound, Proof, Solution

if TYPE_CHECKING:
    from pipedsl.profile import Profile


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """What was found for one value. `result` None: no order keeps to the caps (`refused`), or none was found."""

    value: Fraction
    result: SearchResult | None
    refused: bool = False


def sweep(
    schedule: Schedule,
    params: Mapping[str, int],
    name: str,
    values: Sequence[int],
    *,
    timeout: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    cache: Path | None = None,
    progress: Callable[[News], None] | None = None,
    transports: Sequence[str] | None = None,
    limits: Limits | None = None,
    profile: Profile | None = None,
) -> list[SweepPoint]:
    """The best order for every value of the parameter `name`; `cap` is also the cap of all ranks where no parameter is.

    `budget` and `timeout` are for each value. An order for a smaller cap is one for a larger cap, and a bound for a
    larger one holds for a smaller one, so each answer is at least as good as its neighbours show. Raises
    DiagnosticError as `search` does, with PD601 for an open placement.
    """
    values = sorted(set(values))
    named = name != "cap" or any(parameter.name == name for parameter in schedule.header.parameters)
    found = []
    for value in values:
        given = {**params, name: value} if named else params
        each = tasks(schedule, given, None if named else Fraction(value), limits, profile)
        if len(each) > 1:
            message = "a sweep takes one placement at a time"
            raise DiagnosticError([Diagnostic("PD601", message, schedule.header.span, help="name it: `place ? in v`")])
        found.append(each[0])
    share = budget_of(budget, timeout)
    outcomes: dict[int, Outcome] = {}
    if jobs > 1:
        open_ = [k for k, task in enumerate(found) if not is_too_small(task)]
        runs = [job_of(found[k], share, seed, f"{name}={values[k]}") for k in open_]
        outcomes = dict(zip(open_, run_jobs(runs, jobs, cache, progress), strict=True))
    else:
        for k, task in enumerate(found):
            if is_too_small(task):
                continue
            known = _known(task, found[k - 1], outcomes.get(k - 1)) if k else None
            stopped = any(each.interrupted for each in outcomes.values())
            job = job_of(task, share, seed, f"{name}={values[k]}")
            if known is None and not stopped:
                known = run_jobs([job], 1, cache, progress)[0]
            outcomes[k] = known or Outcome(seed, interrupted=True)
    _share(found, outcomes)
    points = []
    for k, (value, task) in enumerate(zip(values, found, strict=True)):
        outcome = outcomes.get(k, Outcome(seed, refused=True))
        result = None
        if outcome.solution is not None:
            try:
                result = answer_of(schedule, task, outcome, share, transports, cache, profile)
            except NothingFound:
                result = None
        points.append(SweepPoint(Fraction(value), result, outcome.refused))
    return points


def _same_but_for_caps(one: Task, other: Task) -> bool:
    return replace(one.problem, cap=other.problem.cap) == other.problem


def _wider(one: Task, other: Task) -> bool:
    """Whether what keeps to the caps of `one` keeps to those of `other`."""
    pairs = zip(one.problem.cap, other.problem.cap, strict=True)
    return all(b is None or (a is not None and a <= b) for a, b in pairs)


def _known(task: Task, before: Task, outcome: Outcome | None) -> Outcome | None:
    """The answer for the value before where it meets the lower bound here too: nothing is left to search."""
    solution = None if outcome is None else outcome.solution
    if outcome is None or solution is None or not _same_but_for_caps(before, task) or not _wider(before, task):
        return None
    try:
        bound = lower_bound(model_of(task.problem))
    except Infeasible:
        return None
    low = bound.value * task.problem.time_unit
    if solution.value > low:
        return None
    moved = _moved(solution, task)
    if moved is None:
        return None
    return replace(outcome, solution=replace(moved, bound=low, proof=Proof.BOUND, argument=bound.argument, work=0.0))


def _moved(solution: Solution, task: Task) -> Solution | None:
    """The same order as an answer to another problem, judged anew; None where it is none."""
    try:
        return replace(solution, problem=task.problem, judgement=judge(task.problem, solution.orders))
    except Invalid:
        return None


def _share(found: Sequence[Task], outcomes: dict[int, Outcome]) -> None:
    """Give each cap the better order of the next smaller cap, and each the better bound of the next larger."""

    def pairs(order: Sequence[int]) -> list[tuple[int, int]]:
        return [(a, b) for a, b in pairwise(order) if a in outcomes and b in outcomes]

    numbers = range(len(found))
    for smaller, larger in pairs(numbers):
        ours, theirs = outcomes[larger], outcomes[smaller].solution
        if theirs is None or not _same_but_for_caps(found[smaller], found[larger]):
            continue
        if not _wider(found[smaller], found[larger]):
            continue
        if ours.solution is None or theirs.value < ours.solution.value:
            moved = _moved(theirs, found[larger])
            if moved is not None:
                bound = ours.solution or replace(moved, bound=Fraction(0), argument="none")
                moved = replace(moved, bound=Fraction(0), proof=None, argument="none")
                outcomes[larger] = replace(ours, solution=with_better_bound(moved, bound))
    for larger, smaller in pairs(numbers[::-1]):
        ours, theirs = outcomes[smaller], outcomes[larger].solution
        if ours.solution is None or theirs is None or not _same_but_for_caps(found[smaller], found[larger]):
            continue
        if _wider(found[smaller], found[larger]):
            outcomes[smaller] = replace(ours, solution=with_better_bound(ours.solution, theirs))
