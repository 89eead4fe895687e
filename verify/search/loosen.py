"""Better orders from good ones: what runs in a stretch of time is left open, all else stays in its order.

A solver soon says whether the stretch can be made shorter, as few pairs are open; what comes after it moves up. Stretch
by stretch over the whole, until no more is won. (Large neighbourhood search; Shaw 1998.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from verify.search.exact import Answer
from verify.search.model import Model, fits, run
from verify.search.standing import LEAST, MADE, Standing, ask

OPEN = (130, 170)  # operations in a stretch, about
QUESTION = 1.0  # work for one question
SEEDS = 1 << 20
VAIN = 6  # times over everything in which nothing was won, before it ends


def loosen(standing: Standing, share: float) -> None:
    """Take better orders, with so much work at most."""
    rows = standing.rows
    if rows is None:
        return
    stop = standing.work + share
    draw = Random(standing.next_seed)
    vain = 0
    while vain < VAIN:
        value = standing.value
        width = max(1, value * draw.choice(OPEN) // max(1, len(standing.model)))
        for begin in range(-draw.randrange(width), value, max(1, 2 * width // 3)):
            if standing.done or standing.work >= stop or standing.left < LEAST:
                return
            rows = _shorten(standing, rows, begin, begin + width, stop, draw)
        vain = vain + 1 if standing.value == value else 0


def _shorten(
    standing: Standing, rows: list[list[int]], begin: int, end: int, stop: float, draw: Random
) -> list[list[int]]:
    """The least less first, then twice as much as the last time; where there is nothing, other orders as good."""
    model, step = standing.model, 1
    while not standing.done and standing.work < stop:
        before = standing.value
        extra = list(_kept(model, rows, begin, end))
        limit = max(standing.low, before - step)
        found = ask(standing, model, limit, min(QUESTION, stop - standing.work), extra)
        standing.work += len(model) / MADE
        if found.answer is Answer.FOUND and found.rows is not None:
            standing.take(found.rows, f"a stretch by {found.by}")
        if standing.value < before and found.rows is not None:
            rows, step = found.rows, 2 * step
        elif step > 1 or found.by == "windows":
            break
        else:
            return _other(standing, rows, extra, min(QUESTION, stop - standing.work), draw.randrange(SEEDS))
    return rows


def _other(
    standing: Standing, rows: list[list[int]], extra: list[tuple[int, int]], work: float, seed: int
) -> list[list[int]]:
    """Orders that are as good, from which the next stretch may be shorter; the same where none are found."""
    found = ask(standing, standing.model, standing.value, work, extra, seed=seed)
    standing.work += len(standing.model) / MADE
    if found.answer is not Answer.FOUND or found.rows is None:
        return rows
    standing.take(found.rows, f"a stretch by {found.by}")
    ran = run(standing.model, found.rows)
    good = ran is not None and ran.value == standing.value and fits(standing.model, found.rows)
    return found.rows if good else rows


def _kept(model: Model, rows: list[list[int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """What keeps everything in order but what starts from `begin` on and before `end`."""
    ran = run(model, rows)
    assert ran is not None  # orders that were taken
    for order in rows:
        early = [row for row in order if ran.start[row] < begin]
        late = [row for row in order if ran.start[row] >= end]
        between = order[len(early) : len(order) - len(late)]
        yield from pairwise(early)
        yield from pairwise(late)
        yield from ((early[-1], row) for row in between if early)
        yield from ((row, late[0]) for row in between if late)
        if early and late:
            yield early[-1], late[0]


__all__ = ["loosen"]
