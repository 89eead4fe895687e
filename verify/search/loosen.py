"""Better orders from good ones: what runs in a stretch of time is left open, all else stays in its order.

A solver soon says whether the stretch can be made shorter, as few pairs are open; what comes after it moves up. Stretch
by stretch over the whole, until no more is won. (Large neighbourhood search; Shaw 1998.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from verify.search.exact import Answer, Decision
from verify.search.model import Model, fits, run
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Objective
from verify.search.standing import Standing, Turn, ask

OPEN = (100, 130, 170, 230, 300)  # operations in a stretch, about: the more, the longer nothing was won
QUESTION = 1.0  # work for one question
ASKED = 40_000  # operations of which the windows and the text of the open ones take as long as one unit of work
SEEDS = 1 << 20
VAIN = 10  # times over everything in which nothing was won, before it ends


@dataclass(frozen=True)
class _Stretch:
    """`kept`: (x, y): x ends before y starts. `narrowed`: what runs before it as early, what runs after it as late as
    it can, since all that they wait for, or that waits for them, is in a known order."""

    kept: list[tuple[int, int]]
    narrowed: Narrowed


def loosen(standing: Standing, part: float) -> None:
    """Take better orders, with such a part of what is left at most."""
    rows = standing.rows
    if rows is None:
        return
    turn = Turn(standing, part)
    draw = Random(standing.next_seed)
    vain = 0
    while vain < VAIN:
        value = standing.value
        width = max(1, value * OPEN[vain % len(OPEN)] // max(1, len(standing.model)))
        for begin in range(-draw.randrange(width), value, max(1, 2 * width // 3)):
            if standing.done or not turn.more():
                return
            rows = _shorten(standing, turn, rows, begin, begin + width, draw)
        vain = vain + 1 if standing.value == value else 0


def _shorten(
    standing: Standing, turn: Turn, rows: list[list[int]], begin: int, end: int, draw: Random
) -> list[list[int]]:
    """The least less first, then twice as much as the last time; where there is nothing, other orders as good."""
    model, step = standing.model, 1
    while not standing.done and turn.more():
        before = standing.value
        stretch = _stretch(model, rows, begin, end)
        limit = max(standing.low, before - step)
        found = _ask(standing, stretch, limit)
        if found.answer is Answer.FOUND and found.rows is not None:
            standing.take(found.rows, f"a stretch by {found.by}")
        if standing.value < before and found.rows is not None:
            rows, step = found.rows, 2 * step
        elif step > 1 or found.by == "windows":
            break
        else:
            return _other(standing, rows, stretch, draw.randrange(SEEDS))
    return rows


def _ask(standing: Standing, stretch: _Stretch, limit: int, seed: int | None = None) -> Decision:
    found = ask(standing, standing.model, limit, QUESTION, stretch.kept, seed=seed, narrowed=stretch.narrowed)
    standing.work += len(standing.model) / ASKED
    return found


def _other(standing: Standing, rows: list[list[int]], stretch: _Stretch, seed: int) -> list[list[int]]:
    """Orders that are as good, from which the next stretch may be shorter; the same where none are found."""
    found = _ask(standing, stretch, standing.value, seed)
    if found.answer is not Answer.FOUND or found.rows is None:
        return rows
    standing.take(found.rows, f"a stretch by {found.by}")
    ran = run(standing.model, found.rows)
    good = ran is not None and ran.value == standing.value and fits(standing.model, found.rows)
    return found.rows if good else rows


def _stretch(model: Model, rows: list[list[int]], begin: int, end: int) -> _Stretch:
    """What starts from `begin` on and before `end` is left open."""
    ran = run(model, rows)
    assert ran is not None  # orders that were taken
    kept: list[tuple[int, int]] = []
    before, after = list[int](), list[int]()
    for order in rows:
        early = [row for row in order if ran.start[row] < begin]
        late = [row for row in order if ran.start[row] >= end]
        between = order[len(early) : len(order) - len(late)]
        kept += (*pairwise(early), *pairwise(late))
        kept += [(early[-1], row) for row in between if early]
        kept += [(row, late[0]) for row in between if late]
        kept += [(early[-1], late[0])] if early and late else []
        before += early
        after += late
    if model.problem.objective is not Objective.MAKESPAN:
        return _Stretch(kept, NOTHING)
    return _Stretch(kept, Narrowed(early=tuple(before), late=tuple(after)))


__all__ = ["loosen"]
