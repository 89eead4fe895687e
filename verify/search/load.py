"""What is known of a start from how much a rank runs before and after: clauses that follow, but that z3 does not see.

Starts apart by differences alone say nothing of two operations that are both before a third but in no order among
themselves; that the rank must have run both by then is a sum. For every operation and every two other strands of its
rank: if so many of each come before it, it starts no sooner than all of them take; if so many come after it, no later
than leaves time for them. Near the optimum ranks have little time to lose, and these clauses refute in a hundredth of
the steps.

A question about a part of a rank's operations has them, too: of a strand that it has a part of, all before that part
come first. So it knows what the rank does before and after, of which it has no starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, combinations

from verify.search.lost import Lost
from verify.search.model import Model
from verify.search.windows import Window

MOST = 60_000  # clauses, over which they cost more than they help

Literal = str | bool
Before = Callable[[int, int], Literal]


def load_clauses(
    model: Model, window: Window, before: Before, names: Mapping[int, str], ranks: Iterable[int] | None = None
) -> list[str]:
    """Assertions in SMT-LIB, of all ranks if not of some.

    `names`: of the starts of the rows that are asked about. `before(x, y)`: the literal that says so, for two such rows
    of a rank.
    """
    found: list[str] = []
    for r in range(len(model.strands)) if ranks is None else ranks:
        end = _end_of(window, r)
        load = Load(model, window, before, names, r, lost_anyway(window, r, end), end)
        for x in load.rows:
            for line in (*load.at_least(x, True), *load.at_least(x, False)):
                found.append(line)
                if len(found) > MOST:
                    return found
    return found


@dataclass(frozen=True)
class _Counts:
    """How many of a strand come before (after) an operation: `sure` and `most`, and in between, of each number that may
    be reached, the literal that says that it is."""

    sure: int
    open: list[tuple[int, str]]
    most: int

    @property
    def at_least(self) -> list[tuple[int, str]]:
        """Numbers, each with what denies that it is reached."""
        return [(self.sure, ""), *((count, negated(literal)) for count, literal in self.open)]

    @property
    def at_most(self) -> list[tuple[int, str]]:
        """Numbers, each with what denies that there are no more."""
        return [*((count - 1, literal) for count, literal in self.open), (self.most, "")]


def lost_anyway(window: Window, r: int, end: int) -> Lost:
    """Before the first operation of a rank may start, and after the last must have ended, until `end`."""
    rows = [row for pair in window.model.strands[r] for row in range(*pair)]
    begin = min((window.earliest[row] for row in rows), default=0)
    return Lost(dict.fromkeys(rows, begin), dict.fromkeys(rows, end - _end_of(window, r)))


def _end_of(window: Window, r: int) -> int:
    """When a rank has run everything, at the latest."""
    rows = (row for pair in window.model.strands[r] for row in range(*pair))
    return max((window.latest[row] + window.model.duration[row] for row in rows), default=0)


class Load:
    """What a rank runs until `end`, and `lost`: for how long it runs nothing."""

    def __init__(
        self,
        model: Model,
        window: Window,
        before: Before,
        names: Mapping[int, str],
        r: int,
        lost: Lost,
        end: int,
    ) -> None:
        self.window, self.before, self.names, self.lost, self.end = window, before, names, lost, end
        self.strands = [pair for pair in model.strands[r] if pair[0] < pair[1]]
        self.rows = [row for pair in self.strands for row in range(*pair) if row in names]
        self.sums = {pair: [0, *accumulate(model.duration[row] for row in range(*pair))] for pair in self.strands}

    def at_least(self, x: int, first: bool) -> Iterator[str]:
        """Assertions: what runs before (after) x, and what is lost then, takes so long."""
        others = self._others(x)
        for pair in combinations(others, 2) if len(others) > 2 else (others,):
            for clause in self._clauses(x, first, pair, self.lost.of(x, first), True):
                yield f"(assert {clause})"

    def at_most(self, x: int, first: bool, lost: int) -> list[str]:
        """What is so if no more is lost before (after) x; only of ranks with at most three strands."""
        others = self._others(x)
        assert len(others) <= 2
        return [*self._clauses(x, first, others, lost, False)]

    def _others(self, x: int) -> tuple[tuple[int, int], ...]:
        return tuple(pair for pair in self.strands if x not in range(*pair))

    def _clauses(
        self, x: int, first: bool, others: tuple[tuple[int, int], ...], lost: int, least: bool
    ) -> Iterator[str]:
        """For all numbers of the one or two other strands."""
        a, b = next(pair for pair in self.strands if x in range(*pair))
        own = lost + self._work((a, b), x - a if first else b - x, first)
        reached = [self._reached(pair, x, first, least) for pair in others]
        ones, others_too = (*reached, [(0, "")], [(0, "")])[:2]
        for one, this in ones:
            for other, that in others_too:
                whole = own + one + other
                clause = self._clause(x, whole if first else self.end - whole, first == least, (this, that))
                if clause:
                    yield clause
                if least and clause.endswith(("false", "false)")):
                    break  # as then it is with more, too

    def _reached(self, pair: tuple[int, int], x: int, first: bool, least: bool) -> list[tuple[int, str]]:
        """How long what runs of a strand before (after) x takes, at least or at most; each with what denies it."""
        counts = self._counts(pair, x, first)
        return [
            (self._work(pair, count, first), denial) for count, denial in (counts.at_least if least else counts.at_most)
        ]

    def _clause(self, x: int, at: int, after: bool, unless: tuple[str, str]) -> str:
        """That x starts no sooner (`after`), or no later; nothing where its window says so."""
        low, high = self.window.earliest[x], self.window.latest[x]
        if at <= low if after else at >= high:
            return ""
        possible = at <= high if after else at >= low
        start = f"({'>=' if after else '<='} {self.names[x]} {at})" if possible else "false"
        parts = [*filter(None, unless), start]
        return start if len(parts) == 1 else f"(or {' '.join(parts)})"

    def _work(self, pair: tuple[int, int], count: int, first: bool) -> int:
        """Of the first (last) so many of a strand."""
        sums = self.sums[pair]
        return sums[count] if first else sums[-1] - sums[len(sums) - 1 - count]

    def _counts(self, pair: tuple[int, int], x: int, first: bool) -> _Counts:
        rows = self.window.undecided(x, pair)
        sure, most = rows.start - pair[0], rows.stop - pair[0]
        if not first:
            sure, most = pair[1] - rows.stop, pair[1] - rows.start
        found: list[tuple[int, str]] = []
        for y in rows if first else reversed(rows):
            if y not in self.names:
                continue
            count = y - pair[0] + 1 if first else pair[1] - y
            literal = self.before(y, x) if first else self.before(x, y)
            if literal is False:
                most = count - 1
                break
            if literal is True:
                sure, found = count, []
            else:
                found.append((count, literal))
        return _Counts(sure, found, most)


def negated(literal: Literal) -> str:
    """The opposite of a literal that is open."""
    text = str(literal)
    return text[5:-1] if text.startswith("(not ") else f"(not {text})"


__all__ = ["Before", "Literal", "Load", "load_clauses", "lost_anyway", "negated"]
