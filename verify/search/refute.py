"""The highest limit that so much work refutes: windows shaved from both ends until one is used up.

After each sweep the microbatches at the end that it came to are asked about at once, for lower limits too: most is
known there, and a question about more of them than a sweep asks about often refutes what its cuts do not.

A limit that is a little higher takes twice the work, and none can tell beforehand how much that is. What is shown of
orders within a limit holds for lower ones, though, so it is lowered on the way rather than given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from math import log2

from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible
from verify.search.shave import Shaving
from verify.search.standing import LEAST, Standing, Turn

DOUBLED = 9  # a limit higher by so small a part of the gap takes twice the work, about
RESERVE = 0.3  # such a part of a turn is kept for a lower limit
GROWTH = 3  # and so small a part of that for one still lower
VAIN = 2  # sweeps in a row that cut nothing, after which a limit is too high
QUESTION = 1.2  # work for a question about the first or the last microbatches, in all of their windows
SHARE = 8  # and so small a part of what is left of a turn, at most
SIZES = (192, 312, 432)  # operations in a question, about; the larger, the more is refuted, and the longer it takes


def refute(standing: Standing, shown: dict[int, Narrowed], part: float, begin: float) -> None:
    """Refute limits for such a part of what is left: a low one first, or one left open; then as high as is hoped.

    `shown`: what is known of orders within a limit, which grows. `begin`: at such a part of the gap is the low one.
    Only where `can_shave`.
    """
    turn = Turn(standing, part)
    gap = standing.value - standing.low
    limit = min((each for each in shown if each >= standing.low), default=standing.low + int(gap * begin))
    while standing.rows is not None and not standing.done and turn.more():
        limit = min(limit, standing.value - 1 if standing.goal is None else standing.goal)
        rest = turn.rest
        if not _Refutation(standing, turn, shown, limit).holds():
            return
        more = log2(max(2.0, turn.rest / max(rest - turn.rest, LEAST)))
        limit = standing.low + max(1, int(gap * more / DOUBLED))


class _Refutation:
    """Of a limit, which is lowered to where what is left of the turn should do, as far as can be told."""

    def __init__(self, standing: Standing, turn: Turn, shown: dict[int, Narrowed], limit: int) -> None:
        self.standing, self.turn, self.shown, self.limit = standing, turn, shown, limit

    def holds(self) -> bool:
        """Whether the limit it came down to is refuted."""
        try:
            self._shave()
        except Infeasible:
            self.standing.raise_bound(self.limit + 1, f"refuted by {self.standing.engine}")
            return True
        return False

    def _shave(self) -> None:
        """Raises `Infeasible`."""
        standing, turn, reserve = self.standing, self.turn, RESERVE
        before = self._before()
        shaving = Shaving(standing, before, self.limit)
        sizes, vain = _sizes(standing), 0
        sweeps = _sweeps(sizes, before is not NOTHING)
        microbatches, early, asked = next(sweeps)
        while True:
            width = shaving.width
            shaving.sweep(microbatches, early, partial(turn.more, reserve), asked)
            self.shown[self.limit] = shaving.narrowed
            standing.raise_bound(shaving.low, f"refuted by {standing.engine}")
            self._ask_end(_next(sizes, microbatches), not early)
            if standing.done or not turn.more():
                return
            vain = vain + 1 if width == shaving.width and microbatches == sizes[-1] else 0
            if turn.more(reserve) and vain < VAIN:
                microbatches, early, asked = next(sweeps)
                continue
            vain = 0
            if self.limit == standing.low:
                return
            reserve = min(reserve, turn.rest) / GROWTH
            # Halfway to `low`, which is as high as the narrowest of all windows has come.
            self.limit = (standing.low + self.limit) // 2
            shaving.lower(self.limit)

    def _before(self) -> Narrowed:
        """What is known of orders within the limit, or a higher one."""
        limits = [each for each in self.shown if each >= self.limit]
        return self.shown[min(limits)] if limits else NOTHING

    def _ask_end(self, microbatches: int, early: bool) -> None:
        """Refute limits up to this one at the first or last microbatches. Raises `Infeasible` where it is this one."""
        standing, high, vain = self.standing, self.limit + 1, 0
        while standing.low < high and vain < VAIN and self.turn.more():
            limit = (standing.low + high) // 2
            if self._is_stuck(limit, microbatches, early):
                standing.raise_bound(limit + 1, f"refuted by {standing.engine}")
            else:
                high, vain = limit, vain + 1
        if standing.low > self.limit:
            raise Infeasible(0, 0, "no order is within the limit")

    def _is_stuck(self, limit: int, microbatches: int, early: bool) -> bool:
        work = min(QUESTION, self.turn.work / SHARE)
        try:
            return not Shaving(self.standing, self.shown[self.limit], limit).passes(microbatches, early, work)
        except Infeasible:
            return True


def _sizes(standing: Standing) -> list[int]:
    """Microbatches in a question."""
    count = standing.problem.microbatches
    return sorted({max(1, min(count - 1, size * count // len(standing.model))) for size in SIZES})


def _next(sizes: list[int], microbatches: int) -> int:
    """The next larger size, or the largest."""
    return min((size for size in sizes if size > microbatches), default=sizes[-1])


def _sweeps(sizes: list[int], again: bool) -> Iterator[tuple[int, bool, int]]:
    """More and more microbatches a question, from left to right and back; the most without end. Then, with how many
    the end it begins from needs no more questions.

    `again`: the fewest were asked about before.
    """
    asked = 0
    for microbatches in sizes[1:] if again and len(sizes) > 1 else sizes:
        yield microbatches, True, asked
        yield microbatches, False, asked
        asked = microbatches
    for early in cycle((True, False)):
        yield sizes[-1], early, 0


__all__ = ["refute"]
