"""When each operation may start if the objective is to be at most a limit, and what that says about orders.

Two operations of a rank of which one cannot come first are in order; that makes the windows narrower, which orders
more. Repeated until nothing changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from verify.search.bounds import chains, first_start, memory_edges, own_tails
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible, Objective


@dataclass(frozen=True, eq=False)
class Window:
    """`earliest` and `latest` start of every row. `before[y]`: (x, gap): y starts no sooner than gap after x ends.

    `spans`: ranks whose first start is open and which are to be at it no longer than `limit`.
    """

    model: Model
    earliest: list[int]
    latest: list[int]
    before: list[list[tuple[int, int]]]
    limit: int = 0
    spans: tuple[int, ...] = ()

    @cached_property
    def soonest(self) -> list[int]:
        """The earliest end of every row."""
        return [at + time for at, time in zip(self.earliest, self.model.duration, strict=True)]

    def undecided(self, x: int, pair: tuple[int, int]) -> range:
        """The rows of another strand of its rank that may be before x as well as after it."""
        first = bisect_left(self.latest, self.soonest[x], *pair)
        return range(first, bisect_right(self.soonest, self.latest[x], first, pair[1]))

    def known(self, x: int, y: int) -> bool | None:
        """Whether x ends before y starts, of two strands of a rank; None where both may be."""
        first, second = self.soonest[x] <= self.latest[y], self.soonest[y] <= self.latest[x]
        if first and second:
            return None
        return first


def narrow(
    model: Model,
    limit: int,
    extra: Sequence[tuple[int, int]] = (),
    rounds: int = 50,
    narrowed: Narrowed = NOTHING,
) -> Window:
    """The windows under a limit. Raises `Infeasible` where they show that nothing is within it.

    `narrowed`: what else is known.
    """
    edges = memory_edges(model) + list(extra)
    known = set(edges)
    duration = model.duration
    rows_of = [[row for a, b in pairs for row in range(a, b)] for pairs in model.strands]
    far, spans = limit + sum(duration) + sum(model.lag), list[int]()
    for _ in range(rounds):
        found = chains(model, edges, narrowed)
        if model.problem.objective is Objective.MAKESPAN:
            latest = [limit - found.tail[row] - duration[row] for row in range(len(model))]
        else:
            latest, spans = [far] * len(model), []
            for r, rows in enumerate(rows_of):
                begin = first_start(model, r, found) if rows else None
                if begin is None:
                    spans += [r] if rows else []
                    if any(duration[row] > limit for row in rows):
                        raise Infeasible(0, 0, "no order is within the limit")
                    continue
                for row, tail in enumerate(own_tails(model, rows, found, closing=True)):
                    if tail >= 0:
                        latest[row] = min(latest[row], begin + limit - tail - duration[row])
        earliest = found.head
        if any(a > b for a, b in zip(earliest, latest, strict=True)):
            raise Infeasible(0, 0, "no order is within the limit")
        new = []
        for pairs in model.strands:
            for (a, b), (c, d) in combinations(pairs, 2):
                new += _ordered(duration, earliest, latest, a, b, c, d, known)
                new += _ordered(duration, earliest, latest, c, d, a, b, known)
        if not new:
            break
        edges += new
        known.update(new)
    for row in narrowed.early:
        latest[row] = earliest[row]
    for row in narrowed.late:
        earliest[row] = latest[row]
    return Window(model, earliest, latest, found.before, limit, tuple(spans))


def _ordered(
    duration: list[int],
    earliest: list[int],
    latest: list[int],
    a: int,
    b: int,
    c: int,
    d: int,
    known: set[tuple[int, int]],
) -> list[tuple[int, int]]:
    """For each y of the second strand the last x of the first that must come before it: y cannot come before x."""
    found = []
    x = a
    for y in range(c, d):
        finish = earliest[y] + duration[y]
        while x < b and latest[x] < finish:
            x += 1
        if x > a and (x - 1, y) not in known:
            found.append((x - 1, y))
    return found
