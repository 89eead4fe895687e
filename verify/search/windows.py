"""When each operation may start if the objective is to be at most a limit, and what that says about orders.

Two operations of a rank of which one cannot come first are in order; that makes the windows narrower, which orders
more. Repeated until nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from verify.search.bounds import Chains, _latest_first, chains, memory_edges, own_tails
from verify.search.model import Model
from verify.search.problem import Infeasible, Objective


@dataclass(frozen=True, eq=False)
class Window:
    """`earliest` and `latest` start of every row; `before[y]`: (x, gap) with y not before the end of x and gap.

    `limits`: latest end of each row by the objective alone.
    """

    model: Model
    earliest: list[int]
    latest: list[int]
    before: list[list[tuple[int, int]]]
    border: dict[tuple[int, int], tuple[int, int]]

    def known(self, x: int, y: int) -> bool | None:
        """Whether x ends before y starts, of two strands of a rank; None where both may be."""
        duration = self.model.duration
        first = self.earliest[x] + duration[x] <= self.latest[y]
        second = self.earliest[y] + duration[y] <= self.latest[x]
        low, high = self.border.get((x, y), (0, 0)), None
        del low, high
        if first and second:
            return None
        return first


def narrow(model: Model, limit: int, extra: list[tuple[int, int]] = [], rounds: int = 50) -> Window:  # noqa: B006
    """The windows under a limit. Raises `Infeasible` where they show that nothing is within it."""
    edges = memory_edges(model) + list(extra)
    known = set(edges)
    duration = model.duration
    first_start: list[int | None] | None = None
    for _ in range(rounds):
        found = chains(model, edges)
        if model.problem.objective is Objective.MAKESPAN:
            latest = [limit - found.tail[row] - duration[row] for row in range(len(model))]
        else:
            latest = [limit + sum(duration) for _ in range(len(model))]
            if first_start is None:
                first_start = []
                for pairs in model.strands:
                    rows = [row for a, b in pairs for row in range(a, b)]
                    first_start.append(_latest_first(model, rows, found) if rows else None)
            for r, pairs in enumerate(model.strands):
                begin = first_start[r]
                rows = [row for a, b in pairs for row in range(a, b)]
                if begin is None:
                    continue
                for row, tail in enumerate(own_tails(model, rows, found)):
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
    return Window(model, earliest, latest, found.before, {})


def _ordered(
    duration: list[int], earliest: list[int], latest: list[int], a: int, b: int, c: int, d: int, known: set[tuple[int, int]]
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
