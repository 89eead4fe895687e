"""Fill idle time: run early what may run then and fits. Nothing else gets later, so no order gets worse."""

from __future__ import annotations

from verify.search.model import Model, run

PASSES = 12
FILLING = 20  # what it costs, beside running the same operations
FAR_BEHIND = 400  # how far behind a gap is looked for something to fill it


def fill(model: Model, rows: list[list[int]]) -> list[list[int]]:
    """Orders that fit and end, with operations moved into the gaps before them, until none can be."""
    current = [list(order) for order in rows]
    for _ in range(PASSES):
        found = run(model, current)
        if found is None:
            return rows
        moved = [_Rank(model, r, order, found.start).fill() for r, order in enumerate(current)]
        if not any(moved):
            break
    return current


class _Rank:
    """One rank's order, changed in place; other ranks run as in `start`, or earlier than that.

    `end`: of what stands before the gap that is looked at. `room`: what is free there.
    """

    def __init__(self, model: Model, r: int, order: list[int], start: list[int]) -> None:
        self.model, self.order, self.start = model, order, start
        self.end: dict[int, int] = {}
        self.room = model.room[r]
        self.strands = len(model.strands[r])

    def fill(self) -> bool:
        """Whether anything moved."""
        moved = False
        clock = at = 0
        while at < len(self.order):
            begin = max(clock, self.start[self.order[at]])
            place = self._candidate(at, clock, begin) if begin > clock else -1
            if place >= 0:
                self.order.insert(at, self.order.pop(place))
                begin = max(clock, self._ready(self.order[at]))
                moved = True
            clock = self._run(self.order[at], begin)
            at += 1
        return moved

    def _run(self, row: int, begin: int) -> int:
        model = self.model
        self.end[row] = begin + model.duration[row]
        if self.room is not None:
            self.room += model.give[row] - model.take[row]
        return self.end[row]

    def _ready(self, row: int) -> int:
        """When what a row needs has arrived, wherever it comes from."""
        model, ready = self.model, 0
        for source, lag in ((model.upstream[row], model.lag[row]), (model.local[row], 0)):
            if source >= 0:
                ready = max(ready, self.end.get(source, self.start[source] + model.duration[source]) + lag)
        return ready

    def _candidate(self, at: int, clock: int, begin: int) -> int:
        """The place of the operation that ends first between `clock` and `begin` and fits under the cap; -1 for none.

        Of every strand only the next may come. What it takes, it takes from the gap to where it was, so the least that
        is free on the way counts.
        """
        model, order = self.model, self.order
        seen: set[int] = set()
        room, least = self.room, self.room
        best, best_end = -1, begin + 1
        for place in range(at, min(len(order), at + FAR_BEHIND)):
            row = order[place]
            strand = model.strand[row]
            if strand not in seen:
                seen.add(strand)
                finish = max(clock, self._ready(row)) + model.duration[row]
                local = model.local[row]
                there = local < 0 or local in self.end
                if place > at and there and finish < best_end and (least is None or least >= model.take[row]):
                    best, best_end = place, finish
                if len(seen) == self.strands:
                    break
            if room is not None and least is not None:
                room -= model.take[row]
                least = min(least, room)
                room += model.give[row]
        return best
