"""What is known of a start from how much a rank runs before and after: clauses that follow, but that z3 does not see.

Starts apart by differences alone say nothing of two operations that are both before a third but in no order among
themselves; that the rank must have run both by then is a sum. For every operation and every two other strands of its
rank: if so many of each come before it, it starts no sooner than all of them take; if so many come after it, no later
than leaves time for them. Near the optimum ranks have little time to lose, and these clauses refute in a hundredth of
the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, combinations

from verify.search.model import Model
from verify.search.windows import Window

MOST = 60_000  # clauses, over which they cost more than they help

Literal = str | bool
Before = Callable[[int, int], Literal]


def load_clauses(model: Model, window: Window, before: Before, names: list[str]) -> list[str]:
    """Assertions in SMT-LIB. `before(x, y)`: the literal that says so, for two rows of a rank."""
    found: list[str] = []
    for r in range(len(model.strands)):
        for line in _Rank(model, window, before, names, r).clauses():
            found.append(line)
            if len(found) > MOST:
                return found
    return found


class _Rank:
    """`begin` and `end`: between them the rank runs everything."""

    def __init__(self, model: Model, window: Window, before: Before, names: list[str], r: int) -> None:
        self.model, self.window, self.before, self.names = model, window, before, names
        self.strands = [pair for pair in model.strands[r] if pair[0] < pair[1]]
        rows = [row for first, last in self.strands for row in range(first, last)]
        self.begin = min((window.earliest[row] for row in rows), default=0)
        self.end = max((window.latest[row] + model.duration[row] for row in rows), default=0)
        self.sums = {pair: [0, *accumulate(model.duration[row] for row in range(*pair))] for pair in self.strands}

    def clauses(self) -> Iterator[str]:
        for pair in self.strands:
            others = [other for other in self.strands if other != pair]
            for x in range(*pair):
                for one, other in combinations(others, 2):
                    yield from self._earlier(x, pair, one, other)
                    yield from self._later(x, pair, one, other)

    def _earlier(self, x: int, pair: tuple[int, int], one: tuple[int, int], other: tuple[int, int]) -> Iterator[str]:
        """With the first `n` of one and the first `k` of the other before x, it starts after all of them."""
        own = self.begin + self.sums[pair][x - pair[0]]
        counts = self._counts(other, x, True)
        for n, first in self._counts(one, x, True):
            for k, second in counts:
                least = own + self.sums[one][n] + self.sums[other][k]
                if least <= self.window.earliest[x]:
                    continue
                if least > self.window.latest[x]:
                    yield f"(assert (or {first} {second}))"
                    break
                yield f"(assert (or {first} {second} (>= {self.names[x]} {least})))"

    def _later(self, x: int, pair: tuple[int, int], one: tuple[int, int], other: tuple[int, int]) -> Iterator[str]:
        """With the last `n` of one and the last `k` of the other after x, it leaves time for all of them."""
        own = self.end - (self.sums[pair][-1] - self.sums[pair][x - pair[0]])
        counts = self._counts(other, x, False)
        for n, first in self._counts(one, x, False):
            for k, second in counts:
                most = own - self._last(one, n) - self._last(other, k)
                if most >= self.window.latest[x]:
                    continue
                if most < self.window.earliest[x]:
                    yield f"(assert (or {first} {second}))"
                    break
                yield f"(assert (or {first} {second} (<= {self.names[x]} {most})))"

    def _last(self, pair: tuple[int, int], n: int) -> int:
        return self.sums[pair][-1] - self.sums[pair][len(self.sums[pair]) - 1 - n]

    def _counts(self, pair: tuple[int, int], x: int, first: bool) -> list[tuple[int, str]]:
        """Numbers of a strand that may or may not be before (after) x, with the literal that denies it."""
        found = []
        rows = self.window.undecided(x, pair)
        for y in rows if first else reversed(rows):
            literal = self.before(y, x) if first else self.before(x, y)
            if literal is False:
                break
            if literal is not True:
                found.append((y - pair[0] + 1 if first else pair[1] - y, negated(literal)))
        return found


def negated(literal: Literal) -> str:
    """The opposite of a literal that is open."""
    text = str(literal)
    return text[5:-1] if text.startswith("(not ") else f"(not {text})"
