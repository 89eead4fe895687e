"""A search for each of several values of one parameter, or of the cap: the curve of memory against time.

An order for a smaller cap is one for a larger, and a bound for a larger cap holds for a smaller. So the values are gone
through twice: upwards with a small part of the budget, each from the order of the one before; then downwards with the
rest, each with the bound of the one after, which leaves little to do where the curve is flat.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
from pipedsl.occupancy import constant_part
from pipedsl.search_answer import SearchResult, is_too_small, job_of, may_go_on
from pipedsl.search_problem import Task, tasks
from pipedsl.search_runs import ROOM, Effort, Job, News, Outcome, better_bound, effort_of, patience
from pipedsl.searching import best_of
from pipedsl.smallest_cap import Refusal, refusal
from pipedsl.syntax import MemoryBlock, Schedule
from verify.search.bounds import lower_bound
from verify.search.engines import Engine
from verify.search.judge import Invalid, judge
from verify.search.model import model_of
from verify.search.problem import Infeasible
from verify.search.solve import NothingFound, Proof, Solution

if TYPE_CHECKING:
    from pipedsl.profile import Profile

FIRST = 0.1
"""The part of the budget for the way upwards, where neighbours can help each other."""


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """What was found for one value. `result` None: no order keeps to the caps (`refusal`), or none was found: `why`.

    `least`: the smallest value that an order keeps to, as far as `refusal` is sure of it, known where the values are
    the caps themselves.
    """

    value: Fraction
    result: SearchResult | None
    refusal: Refusal | None = None
    why: str = ""
    least: Fraction | None = None


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
    engine: Engine | None = "z3",
) -> list[SweepPoint]:
    """The best order for every value of the parameter `name`; `cap` is also the cap of all ranks where no parameter is.

    `budget` and `timeout` are for each value. Each answer is at least as good as its neighbours show. Where the
    placement is open, it is the best of all at each value. Raises DiagnosticError as `search` does, but for PD602, and
    PD601 where no value makes a difference.
    """
    values = sorted(set(values))
    named = name != "cap" or any(parameter.name == name for parameter in schedule.header.parameters)
    grid, look = [], patience(timeout, len(values))
    for value in values:
        given = {**params, name: value} if named else params
        grid.append(tasks(schedule, given, None if named else Fraction(value), limits, profile, look))
    if len(grid) > 1 and all(_same(grid[0], row) for row in grid[1:]):
        raise _no_difference(schedule, name)
    placements = dict.fromkeys(task.placement for row in grid for task in row)
    effort = effort_of(budget, timeout, seed, jobs, cache, progress, engine)
    share = effort.part(1 / max(1, len(placements)))
    # Of the time of each value, what is for making room for messages in its answer comes last.
    room = ROOM if any(may_go_on(task) for row in grid for task in row) else 0
    first = share.sooner(1 - room)
    labels = [f"{name}={value}" for value in values]
    found: list[list[tuple[Task, Outcome]]] = [[] for _ in grid]
    for placement in placements:
        stopped = any(outcome.interrupted for row in found for _, outcome in row)
        # Words that cannot run under it for one value may do so for another.
        own = [(at, task) for at, row in enumerate(grid) for task in row if task.placement == placement]
        curve = _Curve([task for _, task in own], [labels[at] for at, _ in own], first, stopped)
        for (at, task), outcome in zip(own, curve.outcomes(), strict=True):
            found[at].append((task, outcome))
    points: list[SweepPoint] = []
    before: SearchResult | None = None  # what had room for its buffers may be more than what is found with a larger cap
    for at, value in enumerate(values):
        timed = share if timeout is None else replace(share, until=monotonic() + timeout * room)
        try:
            before = best_of(schedule, found[at], timed, transports, profile, before)
            points.append(SweepPoint(Fraction(value), before))
        except NothingFound as error:
            points.append(SweepPoint(Fraction(value), None, why=str(error)))
    known = {Fraction(value): row for value, row in zip(values, grid, strict=True)}

    @functools.cache
    def is_cap(value: Fraction) -> bool:
        if not named:
            return True
        if value not in known and value.denominator > 1:
            return False
        try:
            row = known.get(value) or tasks(schedule, {**params, name: int(value)}, None, limits, profile)
        except DiagnosticError:
            return False
        return all(set(task.caps) == {value} for task in row)

    points = _with_refusals(schedule, found, points, effort)
    return [_with_least(point, is_cap) for point in points]


def _with_least(point: SweepPoint, is_cap: Callable[[Fraction], bool]) -> SweepPoint:
    """The point with the value that would do, where that is the cap that would do."""
    least = None if point.refusal is None else point.refusal.smallest
    return replace(point, least=least) if least is not None and is_cap(point.value) and is_cap(least) else point


def _same(row: Sequence[Task], other: Sequence[Task]) -> bool:
    """Whether two values ask the same: orders, times with those of REDUCE, caps, and the sizes that are added up."""

    def asked(task: Task) -> tuple[object, ...]:
        return task.problem, task.caps, task.program.memory, task.program.costs

    return list(map(asked, row)) == list(map(asked, other))


def _no_difference(schedule: Schedule, name: str) -> DiagnosticError:
    """PD601: a parameter that is declared, and read by nothing that is searched."""
    capped = any(
        entry.name == "cap" for item in schedule.items if isinstance(item, MemoryBlock) for entry in item.entries
    )
    message = f"`{name}` changes nothing here: neither orders nor costs nor sizes nor caps depend on it"
    help_ = None
    if name == "cap":
        help_ = (
            "let `cap(r)` in `memory` use it" if capped else "`memory { cap(r) = cap }` makes it the cap of every rank"
        )
    span = next((each.span for each in schedule.header.parameters if each.name == name), schedule.header.span)
    return DiagnosticError([Diagnostic("PD601", message, span, help=help_)])


def _with_refusals(
    schedule: Schedule,
    found: Sequence[Sequence[tuple[Task, Outcome]]],
    points: list[SweepPoint],
    effort: Effort,
) -> list[SweepPoint]:
    """The points, with what to say where no order keeps to the caps; found once where only the cap differs."""
    last: tuple[list[Task], Refusal] | None = None
    for at in range(len(points) - 1, -1, -1):
        if not all(outcome.refused for _, outcome in found[at]):
            continue
        row = [task for task, _ in found[at]]
        if last is None or last[1].smallest is None or not _same_smallest(last[0], row):
            last = row, refusal(schedule, row, _rest(effort, [outcome for _, outcome in found[at]]))
        points[at] = replace(points[at], refusal=last[1].of(row[0]))
    return points


def _same_smallest(row: Sequence[Task], other: Sequence[Task]) -> bool:
    """Whether the smallest cap that an order keeps to is the same, of the same ranks that have one."""
    return len(row) == len(other) and all(
        _same_but_for_caps(a, b)
        and replace(a.program.memory, cap=b.program.memory.cap) == b.program.memory
        and [cap is None for cap in a.caps] == [cap is None for cap in b.caps]
        and len({*a.caps} - {None}) == len({*b.caps} - {None}) == 1
        for a, b in zip(row, other, strict=True)
    )


def _rest(effort: Effort, outcomes: Sequence[Outcome]) -> Effort:
    """With the time that searches left of that of a value."""
    seconds = effort.budget.seconds
    if seconds is None:
        return effort
    return replace(effort, until=monotonic() + max(0.0, seconds - sum(each.elapsed for each in outcomes)))


class _Curve:
    """One placement: a task for each value, upwards. `stopped`: Ctrl-C ended the curve of another one."""

    def __init__(self, tasks: Sequence[Task], labels: Sequence[str], effort: Effort, stopped: bool) -> None:
        self.tasks, self.labels, self.effort = tasks, labels, effort
        self.found = [Outcome(effort.seed, refused=is_too_small(task), interrupted=stopped) for task in tasks]
        # Whether an order of the value before is one here, and a bound here is one there.
        # Taken from the value before, where what holds less may not have kept to the caps: still to be looked for.
        self.heavy: set[int] = set()
        self.helps = [False] + [_same_but_for_caps(a, b) and _wider(a, b) for a, b in pairwise(tasks)]

    def outcomes(self) -> list[Outcome]:
        numbers = range(len(self.tasks))
        rest = self.effort
        if any(self.helps):
            self._run(numbers, self.effort.part(FIRST))
            rest = self.effort.part(1 - FIRST)
        self._run(numbers[::-1], rest)
        self._share(numbers)
        return self.found

    def _run(self, numbers: Sequence[int], effort: Effort) -> None:
        """Search for these values: one after the other, or all at once in processes."""
        if effort.jobs > 1:
            if self._stopped():
                return
            open_ = [k for k in numbers if self._open(k)]
            for k, outcome in zip(open_, effort.run([self._job(k, effort) for k in open_]), strict=True):
                self._take(k, outcome)
            self._share(numbers)
            return
        for k in numbers:
            self._share([k])
            if not self._open(k):
                continue
            if self._stopped():
                self.found[k] = replace(self.found[k], interrupted=True)
            else:
                self._take(k, effort.run([self._job(k, effort)])[0])

    def _stopped(self) -> bool:
        return any(each.interrupted for each in self.found)

    def _open(self, k: int) -> bool:
        solution = self.found[k].solution
        return not self.found[k].refused and (solution is None or solution.proof is None or k in self.heavy)

    def _job(self, k: int, effort: Effort) -> Job:
        own = self.found[k].solution
        above = self.found[k + 1].solution if k + 1 < len(self.found) and self.helps[k + 1] else None
        job = job_of(self.tasks[k], effort.budget, effort.seed, self.labels[k])
        return replace(job, start=None if own is None else own.orders, known=own or above)

    def _take(self, k: int, new: Outcome) -> None:
        """What a search answered, beside what was known."""
        self.heavy.discard(k)
        before = self.found[k]
        known, found = before.solution, new.solution
        elapsed = before.elapsed + new.elapsed
        if known is None or found is None:
            kept = new if known is None else replace(before, interrupted=new.interrupted, lost=new.lost)
            self.found[k] = replace(kept, elapsed=elapsed)
            return
        better = found if found.value <= known.value else known
        both = better_bound(better_bound(better, known), found)
        both = replace(both, work=known.work + found.work)
        self.found[k] = replace(new, solution=both, least=new.least and better is found, elapsed=elapsed)

    def _share(self, numbers: Sequence[int]) -> None:
        """Give each value the order of the one before and the bound of the one after, where they are better."""
        for k in numbers:
            if self.helps[k] and not self.found[k].refused:
                self._share_order(k)
        for k in reversed(numbers):
            ours = self.found[k].solution
            theirs = self.found[k + 1].solution if k + 1 < len(self.found) and self.helps[k + 1] else None
            if ours is not None and theirs is not None:
                self.found[k] = replace(self.found[k], solution=better_bound(ours, theirs))

    def _share_order(self, k: int) -> None:
        ours, theirs = self.found[k].solution, self.found[k - 1].solution
        if theirs is None or (ours is not None and self._rank(ours) <= self._rank(theirs)):
            return
        problem = self.tasks[k].problem
        try:
            judgement = judge(problem, theirs.orders)
            bound = lower_bound(model_of(problem)) if ours is None else None
        except (Invalid, Infeasible):
            return
        moved = replace(theirs, problem=problem, judgement=judgement, bound=Fraction(0), proof=None, work=0.0)
        if bound is not None:
            low = bound.value * problem.time_unit
            proof = Proof.BOUND if moved.value <= low else None
            moved = replace(moved, bound=low, proof=proof, argument=bound.argument)
        if ours is not None:
            moved = replace(better_bound(moved, ours), work=ours.work)
        # As good an order that holds the least of those that keep to the smaller caps does so here, if all keep to
        # them that hold less: not where a small cap of one rank has another hold much.
        light = _keep_if_less(self.tasks[k - 1], theirs)
        least = self.found[k - 1].least and light and (ours is None or ours.value == theirs.value)
        least = least and moved.proof is not None
        if not light:
            self.heavy.add(k)
        self.found[k] = replace(self.found[k], solution=moved, least=least)

    @staticmethod
    def _rank(solution: Solution) -> tuple[Fraction, Fraction]:
        """Less is better: the value, then what is held at most."""
        return solution.value, max(solution.judgement.memory, default=Fraction(0))


def _same_but_for_caps(one: Task, other: Task) -> bool:
    return replace(one.problem, cap=other.problem.cap) == other.problem


def _keep_if_less(task: Task, solution: Solution) -> bool:
    """Whether whatever holds less, on the rank that holds most, than this does keeps to the caps of all ranks."""
    held = [a + b for a, b in zip(solution.judgement.memory, constant_part(task.program), strict=True)]
    return all(cap is None or cap >= max(held) for cap in task.caps)


def _wider(one: Task, other: Task) -> bool:
    """Whether what keeps to the caps of `one` keeps to those of `other`."""
    pairs = zip(one.problem.cap, other.problem.cap, strict=True)
    return all(b is None or (a is not None and a <= b) for a, b in pairs)
