"""Bounds from the same problem with fewer microbatches: one more at a time, each with the help of those before it.

Two questions for every number n: how soon can F of microbatch n start on the first stage, and how soon can n
microbatches be done? What was shown of fewer leaves little of either open (`spacing` says why it holds), so that
refutations of a hundred and fifty operations at a time come to one of eight hundred. Nested searches are known as
Russian dolls (Verfaillie, Lemaitre and Schiex 1996); theirs leave out variables, these microbatches at either end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verify.search.bounds import chains, lower_bound
from verify.search.engines import MOST_OPERATIONS
from verify.search.exact import Answer
from verify.search.model import Model, model_of, run
from verify.search.problem import Infeasible, Objective
from verify.search.refute import refute
from verify.search.shorter import shorter
from verify.search.spacing import Spacing, first_rows
from verify.search.standing import LEAST, MADE, Standing, ask

QUESTION = 20  # a question has so small a part of the work of a turn; asked again, at least twice as much as before
FIRST = 16  # so small a part of a turn is for few microbatches alone
SLOWER = 2  # a unit of work takes so many times as long here as elsewhere
VAIN = 3  # numbers of microbatches in a row of which nothing more is shown before the rest is left to chains
FINE = 50  # a bound is exact enough at so small a part of the longest operation


@dataclass
class Nested:
    """What is shown so far. `apart[k]`, `rest[n]`: as of `Spacing`; `tried`: with how much work, and infinity
    where no more can be shown. `shown`: of orders within limits that were left open."""

    apart: dict[int, int] = field(default_factory=dict)
    rest: dict[int, int] = field(default_factory=dict)
    tried: dict[tuple[int, bool], float] = field(default_factory=dict)
    shown: dict[int, Spacing] = field(default_factory=dict)

    @property
    def spacing(self) -> Spacing:
        return Spacing(tuple(self.apart.items()), tuple(self.rest.items()))


def can_nest(model: Model) -> bool:
    """Whether what fewer microbatches show holds for all, and is likely to say much.

    It holds for fully open orders, where no operation is an instant. Of several chunks on a rank bounds are so far from
    what is found that the work is better spent on that.
    """
    problem = model.problem
    if problem.objective is not Objective.MAKESPAN or len(set(problem.placement)) < problem.stages:
        return False
    return problem.microbatches > 1 and all(model.duration) and shorter(problem, 1) is not None


def raise_from_few(standing: Standing, nested: Nested, share: float) -> None:
    """Ask about more and more microbatches up to half of them, then about all. Only where `can_nest`.

    `share`: work, of which a part is for the former; for the latter what is left of it, and half as much. Raises
    `Infeasible`.
    """
    end = standing.work + min(3 * share / 2, standing.left / SLOWER)
    share = min(share, standing.left) / FIRST
    stop = standing.work + share
    vain = 0
    for count in range(1, standing.problem.microbatches // 2 + 1):
        if vain == VAIN or standing.work >= stop or standing.done or standing.left < LEAST:
            break
        asked = shown = False
        for whole in (False, True):
            if 2 * nested.tried.get((count, whole), 0) <= share / QUESTION:
                asked = True
                shown |= _Question(standing, nested, count, whole).raise_bound(share / QUESTION)
        vain = vain + 1 if asked and not shown else 0
    try:
        found = chains(standing.model, spacing=nested.spacing)
    except Infeasible:  # no order of some microbatches keeps to the caps, so none of all does
        raise Infeasible(-1, 0, "no order keeps to the caps") from None
    value = max(map(sum, zip(found.head, standing.model.duration, found.tail, strict=True)))
    standing.raise_bound(value, f"few microbatches, with {standing.engine}")
    refute(standing, nested.spacing, nested.shown, end)


class _Question:
    """`whole`: how soon `count` microbatches can be done; else how soon F of the one after them can start."""

    def __init__(self, standing: Standing, nested: Nested, count: int, whole: bool) -> None:
        self.standing, self.nested, self.key = standing, nested, (count, whole)
        problem = shorter(standing.problem, count if whole else count + 1)
        assert problem is not None  # `can_nest`
        self.model = model_of(problem)
        self.spacing = nested.spacing
        self.known = nested.rest if whole else nested.apart
        self.end = None if whole else first_rows(self.model)[count]

    def raise_bound(self, work: float) -> bool:
        """Whether anything was shown, be it that no more can be."""
        standing, (count, _) = self.standing, self.key
        if len(self.model) > MOST_OPERATIONS[standing.engine]:
            return False
        start = self._by_chains()
        low = max(start, lower_bound(self.model).value) if self.end is None else start
        fine = max(1, max(self.model.duration) // FINE)
        high: int | None = None
        step, stop = fine, standing.work + work
        self.nested.tried[self.key] = work
        while high is None or high - low >= fine:
            limit = low + step - fine if high is None else low + (high - 1 - low) // 2
            value = limit if self.end is None else limit + self.model.duration[self.end]
            left = stop - standing.work
            asked = ask(standing, self.model, value, left, end=self.end, loads=False)
            standing.work += len(self.model) / MADE
            if asked.answer is Answer.REFUTED:
                low, step = limit + 1, 2 * step
            elif asked.answer is Answer.FOUND and asked.rows is not None:
                high = self._reached(asked.rows, limit)
            else:
                break
        else:
            self.nested.tried[self.key] = float("inf")
        if low > start:
            self.known[count] = low
        return low > start or self.nested.tried[self.key] == float("inf")

    def _by_chains(self) -> int:
        """What is known without asking anyone, of this number or of fewer."""
        found = chains(self.model, spacing=self.spacing)
        if self.end is not None:
            return found.head[self.end]
        return max(found.head[row] + time + found.tail[row] for row, time in enumerate(self.model.duration))

    def _reached(self, rows: list[list[int]], limit: int) -> int:
        """What the orders found come to, which is at most the limit."""
        found = run(self.model, rows)
        if found is None:
            return limit
        return min(limit, found.value if self.end is None else found.start[self.end])


__all__ = ["Nested", "can_nest", "raise_from_few"]
