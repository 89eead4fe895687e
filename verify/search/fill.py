"""Fill idle time: run early what may run then and fits. Nothing else gets later, so no order gets worse."""

from __future__ import annotations

from verify.search.model import Model, Run, run

PASSES = 12


def fill(model: Model, rows: list[list[int]], backwards: bool = True) -> list[list[int]]:
    """Orders that fit and end, with operations moved into the gaps before them, until none can be.

    `backwards`: whether I, and not only F and W, is moved.
    """
    current = [list(order) for order in rows]
    for _ in range(PASSES):
        found = run(model, current)
        if found is None:
            return rows
        moved = [_fill_rank(model, r, order, found) for r, order in enumerate(current)]
        if not any(moved):
            break
    return current


def _fill_rank(model: Model, r: int, order: list[int], found: Run) -> bool:
    """One rank, all its gaps, in place. Starts of other ranks are as before, or earlier than that."""
    duration, upstream, lag, local = model.duration, model.upstream, model.lag, model.local
    take, give, strand = model.take, model.give, model.strand
    start = found.start
    room = model.room[r]
    moved = False
    end = {}
    clock = 0
    at = 0
    # What is free from each place on, at the least: to run an F earlier takes memory all the way to where it was.
    while at < len(order):
        row = order[at]
        begin = max(clock, start[row])
        if begin > clock:
            pick = _candidate(model, order, at, clock, begin, start, end, room, strand, take, give, local, upstream, lag)
            if pick >= 0:
                other = order.pop(pick)
                order.insert(at, other)
                moved = True
                ready = _ready(other, start, end, duration, local, upstream, lag)
                clock = max(clock, ready) + duration[other]
                end[other] = clock
                if room is not None:
                    room += give[other] - take[other]
                at += 1
                continue
        clock = begin + duration[row]
        end[row] = clock
        if room is not None:
            room += give[row] - take[row]
        at += 1
    return moved


def _ready(row, start, end, duration, local, upstream, lag):  # type: ignore[no-untyped-def]
    """When what a row needs has arrived."""
    ready = 0
    source = upstream[row]
    if source >= 0:
        ready = end.get(source, start[source] + duration[source]) + lag[row]
    source = local[row]
    if source >= 0:
        ready = max(ready, end.get(source, start[source] + duration[source]))
    return ready


def _candidate(model, order, at, clock, begin, start, end, room, strand, take, give, local, upstream, lag):  # type: ignore[no-untyped-def]
    """The place of an operation behind `at` that fits between `clock` and `begin` and under the cap; -1 for none."""
    duration = model.duration
    seen = {strand[order[at]]}
    strands = len(model.strands[model.rank[order[at]]])
    free = room
    best = -1
    best_end = begin + 1
    for place in range(at, min(len(order), at + 400)):
        row = order[place]
        if place > at and strand[row] not in seen:
            seen.add(strand[row])
            ready = max(clock, _ready(row, start, end, duration, local, upstream, lag))
            source = local[row]
            known = source < 0 or source in end
            if known and ready + duration[row] <= begin and (free is None or free >= take[row]) and ready + duration[row] < best_end:
                best, best_end = place, ready + duration[row]
            if len(seen) == strands:
                break
        if room is not None:
            # The least that is free at any start between the gap and here.
            room -= take[row]
            free = min(free, room)
            room += give[row]
    return best
