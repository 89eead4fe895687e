"""The second aim: as good an answer with less memory.

The largest memory of a rank is pushed down, all ranks under one limit, while some order is still as good; then every
rank alone runs its F later where that costs nothing and lowers its peak. The value never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic

from pipedsl.program import Kind
from verify.search.bounds import lower_bound
from verify.search.engines import suited
from verify.search.judge import judge
from verify.search.levels import Levels, levels_of
from verify.search.model import Model, model_of, run
from verify.search.problem import Infeasible, Problem
from verify.search.solve import SCHEDULED, Budget, NothingFound, Solution, solve

MOST = 8000
"""Operations up to which it is tried."""

PROBES = 4
"""Searches under smaller limits that the budget is for."""


@dataclass(frozen=True)
class Lean:
    """`least`: no order of this value has a smaller largest memory, as a lower bound on time shows."""

    solution: Solution
    least: bool = False
    interrupted: bool = False


def leaner(solution: Solution, fixed: Sequence[Fraction], budget: Budget, seed: int = 0) -> Lean:
    """An answer of the same value whose ranks hold less. `fixed[r]`: what rank r holds all the time."""
    if solution.problem.operations > MOST:
        return Lean(solution)
    search = _Lean(solution, fixed, budget, seed)
    least = interrupted = False
    try:
        least = search.lower_all()
        search.lower_each()
    except KeyboardInterrupt:
        interrupted = True
    found = replace(search.best, work=solution.work + budget.work - max(0.0, search.left))
    return Lean(found, least, interrupted)


class _Lean:
    def __init__(self, solution: Solution, fixed: Sequence[Fraction], budget: Budget, seed: int) -> None:
        self.best, self.fixed, self.seed = solution, list(fixed), seed
        self.budget = budget
        self.left = budget.work
        self.probe = budget.work / PROBES
        self.stop = None if budget.seconds is None else monotonic() + budget.seconds

    @property
    def top(self) -> Fraction:
        return self._top(self.best)

    def lower_all(self) -> bool:
        """Whether the largest memory is shown to be the smallest."""
        levels = levels_of(self.fixed, self.best.problem.size_unit)
        lowest = self._possible(levels)
        at, missed = lowest if lowest < self.top else None, lowest
        while at is not None and self.left > 0:
            found = self._search(at)
            if found is None:
                missed = at
            else:
                self.best = found
            at = levels.between(missed, self.top)
        return self.top <= lowest

    def lower_each(self) -> None:
        """Every F of a rank as late as the value allows, on the ranks whose peak that lowers."""
        model = model_of(self.best.problem)
        rows = model.rows(self.best.orders)
        limit = int(self.best.value / self.best.problem.time_unit)
        changed = False
        for r in range(len(rows)):
            later = [list(order) for order in rows]
            later[r] = self._late(model, later, r, limit)
            if _peak(model, later[r]) < _peak(model, rows[r]):
                rows, changed = later, True
        if changed:
            orders = model.orders(rows)
            self.best = replace(self.best, orders=orders, judgement=judge(self.best.problem, orders))

    def _top(self, solution: Solution) -> Fraction:
        return max((a + b for a, b in zip(solution.judgement.memory, self.fixed, strict=True)), default=Fraction(0))

    def _limited(self, limit: Fraction) -> Problem:
        problem = self.best.problem
        caps = [limit - held for held in self.fixed]
        kept = [None if cap is None else cap * problem.size_unit for cap in problem.cap]
        return problem.with_cap([cap if own is None else min(own, cap) for own, cap in zip(kept, caps, strict=True)])

    def _possible(self, levels: Levels) -> Fraction:
        """The smallest limit that no lower bound rules out; too small a one where the work ends before."""
        low, high = max(self.fixed, default=Fraction(0)) - levels.unit, self.top
        while (middle := levels.between(low, high)) is not None and self.left > 0:
            self.left -= self.best.problem.operations / SCHEDULED
            if self._ruled_out(self._limited(middle)):
                low = middle
            else:
                high = middle
        return high if middle is None else levels.above(low)

    def _ruled_out(self, problem: Problem) -> bool:
        if any(cap is not None and cap < 0 for cap in problem.cap):
            return True
        try:
            return lower_bound(model_of(problem)).value * problem.time_unit > self.best.value
        except Infeasible:
            return True

    def _search(self, limit: Fraction) -> Solution | None:
        """Orders under the limit that are as good, as an answer to the problem itself."""
        seconds = None if self.stop is None else self.stop - monotonic()
        if seconds is not None and seconds <= 0:
            self.left = 0.0
            return None
        problem, best = self._limited(limit), self.best
        try:
            engine = suited(self.budget.engine, problem)
            budget = replace(self.budget, work=min(self.left, self.probe), seconds=seconds, engine=engine)
            found = solve(problem, budget=budget, seed=self.seed, goal=best.value)
        except (Infeasible, NothingFound):
            self.left -= self.probe
            return None
        self.left -= found.work
        if found.value > best.value:
            return None
        judgement = judge(best.problem, found.orders)
        value = judgement.value(best.problem.objective)
        proof = best.proof if value == best.value else None
        return replace(best, orders=found.orders, value=value, proof=proof, judgement=judgement)

    def _late(self, model: Model, rows: list[list[int]], r: int, limit: int) -> list[int]:
        """The rank's order with each F behind as many of what gives memory back as the value allows, the last first."""
        order = rows[r]
        at = len(order) - 1
        while at >= 0 and self.left > 0:
            place = at
            while model.kind[order[at]] == Kind.F and self.left > 0:
                to = _behind(model, order, place)
                if to is None:
                    break
                rows[r] = [*order[:place], *order[place + 1 : to + 1], order[place], *order[to + 1 :]]
                self.left -= len(model) / SCHEDULED
                ended = run(model, rows)
                if ended is None or ended.value > limit:
                    rows[r] = order
                    break
                order, place = rows[r], to
            at -= 1
        return order


def _behind(model: Model, order: Sequence[int], at: int) -> int | None:
    """The place of the next operation that gives memory back; None where the F may not pass one on the way."""
    row = order[at]
    for to in range(at + 1, len(order)):
        other = order[to]
        if model.strand[other] == model.strand[row] or model.local[other] == row:
            return None
        if model.give[other] > model.take[other]:
            return to
    return None


def _peak(model: Model, order: Sequence[int]) -> int:
    held = most = 0
    for row in order:
        held += model.take[row]
        most = max(most, held)
        held -= model.give[row]
    return most
