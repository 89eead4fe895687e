"""The best order of one rank while the others run as they do: exact, by how far each of its strands is.

What a rank holds and may run next follows from how many operations of each strand it ran, so of all ways there the
earliest is enough. That closes gaps which nothing is short enough to fill: to delay what nobody waits for, such as I on
the first rank, costs nothing.
"""

from __future__ import annotations

from time import monotonic

from verify.search.model import Model, Run, run
from verify.search.problem import Objective

MOST_STEPS = 3_000_000  # for one rank; above, it stays as it is
STEP = 0.7  # what a step from one state to another costs, beside running an operation

Counts = tuple[int, ...]


def squeeze(model: Model, rows: list[list[int]], goal: int, stop: float) -> tuple[list[list[int]], int]:
    """Orders that fit, whose longest rank is put in its best order while that helps; and how many steps that took.

    Never worse: nothing that another rank waits for gets later.
    """
    found = run(model, rows)
    looked = 0
    while found is not None and found.value > goal and monotonic() < stop:
        span = model.problem.objective is Objective.SPAN
        lengths = [b - a if span else b for a, b in zip(found.first, found.last, strict=True)]
        r = lengths.index(max(lengths))
        order, steps = best_order(model, found, r, stop)
        looked += steps
        changed = rows if order is None else [*rows[:r], order, *rows[r + 1 :]]
        after = run(model, changed)
        # Several ranks may take equally long: then the value stays until all of them are shorter.
        if after is None or (after.value, sum(after.last)) >= (found.value, sum(found.last)):
            break
        rows, found = changed, after
    return rows, looked


def best_order(model: Model, found: Run, r: int, stop: float = float("inf")) -> tuple[list[int] | None, int]:
    """The order of rank r that ends first, of those in which nothing arrives later elsewhere than is waited for.

    None where that takes too many steps or too long, or where a rank sends to itself. And how many steps it took: from
    one state to those after it.
    """
    pairs = model.strands[r]
    rank, duration, take, give = model.rank, model.duration, model.take, model.give
    mine = [row for a, b in pairs for row in range(a, b)]
    head, due = {}, {}
    for row in mine:
        source, target = model.upstream[row], model.feeds[row]
        if any(other >= 0 and rank[other] == r for other in (source, target)):
            return None, 0
        head[row] = found.start[source] + duration[source] + model.lag[row] if source >= 0 else 0
        due[row] = found.start[target] - model.lag[target] if target >= 0 else model.horizon
    at = {row: (k, row - a) for k, (a, b) in enumerate(pairs) for row in range(a, b)}
    room = model.room[r]
    begin = (0,) * len(pairs)
    layer: dict[Counts, tuple[int, int]] = {begin: (0, 0)}
    before: dict[Counts, int] = {}
    steps = 0
    for _ in mine:
        after: dict[Counts, tuple[int, int]] = {}
        for counts, (time, held) in layer.items():
            steps += len(pairs)
            if steps > MOST_STEPS:
                return None, steps
            for k, (a, b) in enumerate(pairs):
                row = a + counts[k]
                local = model.local[row] if row < b else -1
                if row >= b or (local >= 0 and counts[at[local][0]] <= at[local][1]):
                    continue
                end = max(time, head[row]) + duration[row]
                if end > due[row] or (room is not None and held + take[row] > room):
                    continue
                reached = (*counts[:k], counts[k] + 1, *counts[k + 1 :])
                known = after.get(reached)
                if known is None or end < known[0]:
                    after[reached] = end, held + take[row] - give[row]
                    before[reached] = k
        layer = after
        if not layer or monotonic() > stop:
            return None, steps
    order = []
    (counts,) = layer
    while counts != begin:
        k = before[counts]
        counts = (*counts[:k], counts[k] - 1, *counts[k + 1 :])
        order.append(pairs[k][0] + counts[k])
    return order[::-1], steps
