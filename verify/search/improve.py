"""Local search over orders: move one operation of a rank past some of its neighbours, keep what is hardly worse.

Moves start at the critical path: an operation that starts the moment the one before it on its rank ends could start
earlier only if it came before that one. Late acceptance (Burke and Bykov 2017) keeps a move that is no worse than where
the search stood some moves ago, which crosses the plateaus that these problems are full of.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

from pipedsl.program import Kind
from verify.search.model import Model, Run, run
from verify.search.problem import Objective

MEMORY = 60  # how many moves ago is compared with
FARTHEST = 6  # places that an operation moves at once


def improve(
    model: Model,
    rows: list[list[int]],
    goal: int,
    moves: int,
    seed: int,
    stop: float,
    notice: Callable[[list[list[int]]], None],
) -> int:
    """Up to `moves` moves from orders that fit. Tells `notice` of every better one. Answers how many were looked at."""
    draw = random.Random(seed)
    current = [list(order) for order in rows]
    found = run(model, current)
    if found is None:
        return 0
    score = best = (found.value, sum(found.last))
    past = [score] * MEMORY
    looked = 0
    path = critical_path(model, current, found)
    while looked < moves and best[0] > goal:
        looked += 1
        if looked % 64 == 0 and monotonic() > stop:
            break
        r, at, to = _move(model, current, path, draw)
        order = current[r]
        changed = order[:]
        changed.insert(to, changed.pop(at))
        if not _allowed(model, r, changed, order, at, to):
            continue
        current[r] = changed
        after = run(model, current)
        if after is None:
            current[r] = order
            continue
        new = (after.value, sum(after.last))
        slot = looked % MEMORY
        if new <= past[slot] or new <= score:
            score = new
            path = critical_path(model, current, after)
            if new < best:
                better = new[0] < best[0]
                best = new
                if better:
                    notice([list(one) for one in current])
        else:
            current[r] = order
        past[slot] = min(past[slot], score) if score < past[slot] else score
    return looked


def critical_path(model: Model, rows: list[list[int]], found: Run) -> list[tuple[int, int]]:
    """(rank, place) of the operations from which the objective cannot be reached later: back from the last end."""
    start, duration, rank = found.start, model.duration, model.rank
    place = [0] * len(model)
    for order in rows:
        for at, row in enumerate(order):
            place[row] = at
    if model.problem.objective is Objective.MAKESPAN:
        r = max(range(len(rows)), key=lambda q: found.last[q])
    else:
        r = max(range(len(rows)), key=lambda q: found.last[q] - found.first[q])
    path = []
    row = max(reversed(rows[r]), key=lambda x: start[x] + duration[x] + model.closing[x])
    while True:
        r, at = rank[row], place[row]
        path.append((r, at))
        source = model.upstream[row]
        if source >= 0 and start[source] + duration[source] + model.lag[row] == start[row]:
            row = source
        elif at and start[rows[r][at - 1]] + duration[rows[r][at - 1]] == start[row]:
            row = rows[r][at - 1]
        else:
            return path


def _move(
    model: Model, rows: list[list[int]], path: list[tuple[int, int]], draw: random.Random
) -> tuple[int, int, int]:
    """A rank, the place of an operation, and where it goes."""
    if draw.random() < 0.8:
        r, at = path[draw.randrange(len(path))]
    else:
        r = draw.choice([r for r, order in enumerate(rows) if order])
        at = draw.randrange(len(rows[r]))
    order = rows[r]
    distance = draw.randrange(1, FARTHEST + 1)
    if model.kind[order[at]] == Kind.W:
        distance *= draw.choice((1, 1, 4))
        later = draw.random() < 0.7
    else:
        later = draw.random() < 0.3
    to = min(len(order) - 1, at + distance) if later else max(0, at - distance)
    strand = model.strand
    # Never past its own strand.
    step = 1 if to > at else -1
    end = at
    while end != to and strand[order[end + step]] != strand[order[at]]:
        end += step
    return r, at, end


def _allowed(model: Model, r: int, changed: list[int], order: list[int], at: int, to: int) -> bool:
    """Whether the rank still runs what it needs first, and keeps to its cap, between the two places."""
    if at == to:
        return False
    row = order[at]
    local = model.local
    if to < at:
        if local[row] >= 0 and local[row] in order[to:at]:
            return False
    elif any(local[other] == row for other in order[at + 1 : to + 1]):
        return False
    room = model.room[r]
    if room is None:
        return True
    take, give = model.take, model.give
    for other in changed[: max(at, to) + 1]:
        room -= take[other]
        if room < 0:
            return False
        room += give[other]
    return True
