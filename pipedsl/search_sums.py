"""Orders with every REDUCE in them, made better: one operation or REDUCE of a rank moved past some of its neighbours.

A search orders the computations, of which it proves much, and knows only what a REDUCE adds at least. Where an answer
takes longer than that, this looks at the whole: when ranks meet, who waits, and where a REDUCE stands best. Moves start
at what the end waits for, and are kept where that is no worse than some moves ago (late acceptance; Burke and Bykov
2017).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verify.search.model import Model
from verify.search.problem import Objective

MEMORY = 40
"""How many moves ago is compared with."""

FARTHEST = 8
"""Places that an operation moves at once."""

MOVE = 2e-6
"""The work of a move, for each operation that is timed and thirty beside."""

MOST = 8000
"""Operations, above which moves of one are too slow to matter."""

Rows = list[list[int]]
"""Every rank's: those of the model, then the REDUCEs by their number."""


@dataclass(frozen=True, eq=False)
class Sums:
    """A model with its REDUCEs, which are numbered on from its rows: of each the stage, its duration in the model's
    unit, and the rows that it comes after."""

    model: Model
    stage: tuple[int, ...]
    duration: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]

    def strand(self, row: int) -> int:
        """Which of a rank's rows keep their order among themselves."""
        count = len(self.model)
        return self.model.strand[row] if row < count else count + row


@dataclass(frozen=True, eq=False)
class Timed:
    """What orders lead to. `cause[row]`: the row that it starts after at once, -1 for none. `last`: the rows that the
    objective ends with, one a rank, of those ranks that make it."""

    value: int
    total: int
    cause: list[int]
    last: list[int]


def timed(sums: Sums, rows: Sequence[Sequence[int]]) -> Timed | None:
    """Every row as early as it can be; None where ranks wait for each other, or a row comes before what it needs."""
    model, base = sums.model, len(sums.model)
    count = base + len(sums.stage)
    end, cause = [-1] * count, [-1] * count
    ranks = len(rows)
    cursor, clock, first = [0] * ranks, [0] * ranks, [0] * ranks
    meets = [{sums.stage[row - base]: row for row in order if row >= base} for order in rows]  # at the last of several
    holders: dict[int, int] = {}
    for own in meets:
        for stage in own:
            holders[stage] = holders.get(stage, 0) + 1
    gathered: dict[int, list[int]] = {}
    waiting: dict[int, int] = {}
    ready, done = list(range(ranks - 1, -1, -1)), 0
    while ready:
        r = ready.pop()
        order, at, time = rows[r], cursor[r], clock[r]
        begun = at
        while at < len(order):
            row = order[at]
            cause[row] = order[at - 1] if at else -1
            if row >= base:
                if any(end[x] < 0 for x in sums.after[row - base]):
                    return None
                stage = sums.stage[row - base]
                if meets[r][stage] != row:
                    end[row] = time
                    at += 1
                    continue
                there = gathered.setdefault(stage, [])
                there.append(r)
                cursor[r], clock[r] = at, time
                if len(there) < holders[stage]:
                    break
                latest = max(there, key=lambda q: clock[q])
                why = cause[meets[latest][stage]]
                time = clock[latest] + sums.duration[row - base]
                for q in there:
                    end[meets[q][stage]], cause[meets[q][stage]] = time, why
                    if q != r:
                        cursor[q], clock[q], done = cursor[q] + 1, time, done + 1
                        ready.append(q)
                at += 1
                continue
            source = model.upstream[row]
            if source >= 0:
                if end[source] < 0:
                    waiting[source] = r
                    break
                arrival = end[source] + model.lag[row]
                if arrival > time:
                    time, cause[row] = arrival, source
            if model.local[row] >= 0 and end[model.local[row]] < 0:
                return None
            if not at:
                first[r] = time
            time += model.duration[row]
            end[row] = time
            at += 1
            if row in waiting and waiting[row] != r:
                ready.append(waiting.pop(row))
        done += at - begun
        cursor[r], clock[r] = at, time
    if done < count:
        return None
    makespan = model.problem.objective is Objective.MAKESPAN
    lengths = [b if makespan else b - a for a, b in zip(first, clock, strict=True)]
    value = max(lengths, default=0)
    last = [order[-1] for order, length in zip(rows, lengths, strict=True) if order and length == value]
    return Timed(value, sum(clock), cause, last)


def improve(
    sums: Sums,
    rows: Rows,
    goal: int,
    moves: int,
    seed: int,
    over: Callable[[], bool],
    notice: Callable[[Rows, int], bool],
) -> int:
    """Up to so many moves from orders that fit, until a value of `goal`. `notice` is told of every better one with its
    value, and says whether it may be the answer. Answers how many moves were looked at."""
    draw = random.Random(seed)
    current = [list(order) for order in rows]
    found = timed(sums, current)
    if found is None:
        return 0
    score = (found.value, found.total)
    best, past, looked = found.value, [score] * MEMORY, 0
    path = _path(found)
    where = {row: r for r, order in enumerate(current) for row in order}
    everything = sorted(where)
    while looked < moves and best > goal and everything:
        looked += 1
        if looked % 64 == 0 and over():
            break
        row = draw.choice(path if path and draw.random() < 0.7 else everything)
        r = where[row]
        before = current[:]
        if row >= len(sums.model) and draw.random() < 0.5:
            _move_all(sums, current, sums.stage[row - len(sums.model)], draw)
        else:
            current[r] = _moved(sums, current[r], current[r].index(row), draw)
            if not _fits(sums.model, r, current[r]):
                current = before
                continue
        after = None if current == before else timed(sums, current)
        slot = looked % MEMORY
        new = score if after is None else (after.value, after.total)
        if after is not None and (new <= past[slot] or new <= score):
            score, path = new, _path(after)
            if after.value < best and notice([list(each) for each in current], after.value):
                best = after.value
        else:
            current = before
        past[slot] = score
    return looked


def _path(found: Timed) -> list[int]:
    """What the objective waits for, back from its end."""
    path, row = list[int](), found.last[0] if found.last else -1
    while row >= 0:
        path.append(row)
        row = found.cause[row]
    return path


def _moved(sums: Sums, order: list[int], at: int, draw: random.Random) -> list[int]:
    """The order with the operation at a place moved some places, not past its own strand."""
    step = draw.choice((-1, 1))
    to, strand = at, sums.strand(order[at])
    for _ in range(draw.randrange(1, FARTHEST + 1)):
        if not 0 <= to + step < len(order) or sums.strand(order[to + step]) == strand:
            break
        to += step
    changed = order[:]
    changed.insert(to, changed.pop(at))
    return changed


def _move_all(sums: Sums, rows: Rows, stage: int, draw: random.Random) -> None:
    """The REDUCEs of a stage moved on all ranks at once, as they meet: each as soon as may be, or behind all others."""
    soon, base = draw.random() < 0.5, len(sums.model)
    for r, order in enumerate(rows):
        for row in [row for row in order if row >= base and sums.stage[row - base] == stage]:
            rest = [other for other in rows[r] if other != row]
            after = set(sums.after[row - base])
            at = max((n + 1 for n, other in enumerate(rest) if other in after), default=0) if soon else len(rest)
            rows[r] = [*rest[:at], row, *rest[at:]]


def _fits(model: Model, r: int, order: Sequence[int]) -> bool:
    room = model.room[r]
    if room is None:
        return True
    for row in order:
        if row < len(model):
            room -= model.take[row]
            if room < 0:
                return False
            room += model.give[row]
    return True
