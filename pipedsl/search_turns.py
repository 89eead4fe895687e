"""What a budget goes to where the best of several problems is asked for: the placements that `place ?` leaves open.

A short look at each comes first. Those whose bound is not below the best value then found cannot be better and are
dropped; the others get turns, each from its own orders and bound, the one with the best value first and with the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf

from pipedsl.search_runs import Effort, Job, Outcome, better_bound
from verify.search import Aim

LOOK = 0.1
"""Of the budget, for the first look at all of them together."""

FIRST = 0.5
"""Of what is left then, for the most promising, and of the rest of that for the next; all for the last."""

LEAST = 0.01
"""Of the budget: less than that is not worth a turn."""

Make = Callable[[int, Effort, int], Job]
"""The job of a problem, by its number, with the budget of the effort and a seed."""


def take_turns(make: Make, count: int, effort: Effort) -> list[Outcome]:
    """What became of each of the problems. The same budget, seed and jobs give the same turns.

    Where there are processes enough they all run at once, each with the whole budget and several seeds.
    """
    if count <= 1 or effort.jobs >= count:
        seeds = range(effort.seed, effort.seed + max(1, effort.jobs // max(1, count)))
        outcomes = effort.run([job for k in range(count) for job in _apart([make(k, effort, seed) for seed in seeds])])
        return [together(outcomes[at : at + len(seeds)]) for at in range(0, len(outcomes), len(seeds))]
    turns = _Turns(make, effort, count)
    for k in range(count):
        turns.run(k, LOOK / count)
    waiting = sorted(range(count), key=turns.rank)
    while waiting:
        k = waiting.pop(0)
        rest = [other for other in waiting if turns.promising(other)]
        if turns.promising(k):
            turns.run(k, turns.left * (FIRST if rest else 1))
        waiting = sorted(rest, key=turns.rank)
    return turns.found


class _Turns:
    """`left`: the part of the budget that is."""

    def __init__(self, make: Make, effort: Effort, count: int) -> None:
        self.make, self.effort, self.left = make, effort, 1.0
        self.found = [Outcome(effort.seed) for _ in range(count)]

    @property
    def best(self) -> Fraction | None:
        return min((each.solution.value for each in self.found if each.solution is not None), default=None)

    def promising(self, k: int) -> bool:
        """Whether it may be better than what there is."""
        found, best = self.found[k], self.best
        if found.refused:
            return False
        return found.solution is None or best is None or found.solution.bound < best

    def rank(self, k: int) -> tuple[Fraction | float, Fraction | float]:
        """Less is better."""
        solution = self.found[k].solution
        return (inf, inf) if solution is None else (solution.value, solution.bound)

    def run(self, k: int, share: float) -> None:
        """A turn, with a part of the whole budget; what it does not need is for others."""
        before = self.found[k]
        if any(each.interrupted for each in self.found):
            self.found[k] = replace(before, interrupted=True)
            return
        if share < LEAST or (self.effort.over and self.best is not None):
            return
        part = self.effort.part(share)
        seeds = range(self.effort.seed, self.effort.seed + self.effort.jobs)
        jobs = _apart([self.make(k, part, seed) for seed in seeds])
        if before.solution is not None:
            jobs = [replace(job, start=before.solution.orders, known=before.solution) for job in jobs]
        ended = together(self.effort.run(jobs))
        self.left -= min(share, share if ended.solution is None else self._used(ended))
        self.found[k] = ended if before.solution is None else _later(before, ended)

    def _used(self, ended: Outcome) -> float:
        """The part of the budget that it took: of one that is proved less than it had."""
        assert ended.solution is not None
        if ended.solution.proof is None:
            return 1.0
        seconds = self.effort.budget.seconds
        work = ended.solution.work / self.effort.jobs / self.effort.budget.work if self.effort.budget.work else 1.0
        return max(work, ended.elapsed / seconds if seconds else 0.0)


def _apart(jobs: Sequence[Job]) -> list[Job]:
    """Jobs of one problem: where there are several, half of them go about orders and the others about bounds."""
    aims = [Aim.BOTH] if len(jobs) == 1 else [Aim.ORDERS, Aim.BOUNDS]
    return [replace(job, aim=aims[k % len(aims)]) for k, job in enumerate(jobs)]


def _later(before: Outcome, ended: Outcome) -> Outcome:
    """What two turns found of one problem."""
    both = together([ended, before])
    return replace(both, elapsed=before.elapsed + ended.elapsed, cached=before.cached and ended.cached)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """What several searches found of one problem: the best order, and the best bound."""
    solutions = [(each.solution, each) for each in outcomes if each.solution is not None]
    lost = next((each.lost for each in outcomes if each.lost), "")
    if not solutions:
        return next((each for each in outcomes if each.refused), replace(outcomes[0], lost=lost))
    solution, best = min(solutions, key=lambda each: (each[0].value, not each[1].least))
    for other, _ in solutions:
        solution = better_bound(solution, other)
    work = sum(other.work for other, _ in solutions)
    interrupted = any(each.interrupted for each in outcomes)
    return replace(best, solution=replace(solution, work=work), interrupted=interrupted, lost=lost)
