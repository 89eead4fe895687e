"""Orders with room for all buffers of their messages, from orders that lack some: neighbours swapped, best first.

What a rank receives before it needs it depends on when the others run what, which smaller caps reach by luck alone.
Where they leave no order that fits, or a slow one, a few swaps often lead from one that nearly does to one that does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from pipedsl.simulate import Stuck
from verify.search.problem import Operation, Orders, Problem

COST, EACH = 5e-4, 5e-6
"""The work of trying orders, and of each operation of theirs."""

MOST_WORK = 2.0

Grade = Callable[[Orders], tuple[Fraction, Fraction]]
"""How much more than the caps all ranks hold together, and the value. Raises Stuck for orders that cannot run."""


def with_room(
    problem: Problem, starts: Sequence[Orders], grade: Grade, enough: Fraction, work: float, over: Callable[[], bool]
) -> Orders | None:
    """The best orders that exceed no cap, of those tried for so much work; None where there are none.

    It ends at a value of `enough`, or when it is `over`.
    """
    tries = int(min(work, MOST_WORK) / (COST + EACH * problem.operations))
    strand_of = {op: (rank, k) for rank, strands in enumerate(problem.strands) for k, each in enumerate(strands)
                 for op in each}  # fmt: skip
    seen: set[Orders] = set()
    waiting: list[tuple[Fraction, Fraction, int, Orders]] = []
    best: tuple[Fraction, Orders] | None = None

    def near() -> Iterator[Orders]:
        yield from starts
        while waiting:
            yield from _neighbours(heapq.heappop(waiting)[-1], strand_of)

    for orders in near():
        if len(seen) >= tries or over() or (best is not None and best[0] <= enough):
            break
        if orders in seen:
            continue
        seen.add(orders)
        try:
            excess, value = grade(orders)
        except Stuck:
            continue
        heapq.heappush(waiting, (excess, value, len(seen), orders))
        if not excess and (best is None or value < best[0]):
            best = value, orders
    return None if best is None else best[1]


def _neighbours(orders: Orders, strand_of: dict[Operation, tuple[int, int]]) -> Iterator[Orders]:
    """Two operations of one rank swapped that follow each other, each of a strand of its own."""
    for rank, order in enumerate(orders):
        for at in range(len(order) - 1):
            one, two = order[at], order[at + 1]
            if strand_of[one] != strand_of[two]:
                swapped = (*order[:at], two, one, *order[at + 2 :])
                yield (*orders[:rank], swapped, *orders[rank + 1 :])
