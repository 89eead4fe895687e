"""Better orders from good ones: what runs in a stretch of time is left open, all else stays in its order.

A solver soon says whether the stretch can be made shorter, as few pairs are open; what comes after it moves up. Stretch
by stretch over the whole, until no more is won. (Large neighbourhood search; Shaw 1998.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random

from verify.search.exact import Decision
from verify.search.model import Model, fits, run
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Objective
from verify.search.standing import Standing, Turn, ask

OPEN = (100, 130, 170, 230, 300)  # operations in a stretch, about: the more, the longer nothing was won
QUESTION = 1.0  # work for one question
ASKED = 40_000  # operations of which the windows and the text of the open ones take as long as one unit of work
SEEDS = 1 << 20
WALKS = 4  # that begin in different places, at most
WALK = 8.0  # work for one, at least
FIRST = 0.8  # of the turn goes to them
VAIN = 10  # times over everything in which nothing was won, before a walk ends


@dataclass(frozen=True)
class _Stretch:
    """`kept`: (x, y): x ends before y starts. `narrowed`: what runs before it as early, what runs after it as late as
    it can, since all that they wait for, or that waits for them, is in a known order."""

    kept: list[tuple[int, int]]
    narrowed: Narrowed


def loosen(standing: Standing, part: float, another: Callable[[int], list[list[int]] | None]) -> None:
    """Take better orders, with such a part of what is left at most.

    How far a walk leads depends on where it begins, and soon shows. So first some begin at the best orders and at
    others, which `another` makes of a seed; then the best of all go on.
    """
    best = standing.rows
    if best is None:
        return
    turn, draw = Turn(standing, part), Random(standing.next_seed)
    walks = max(1, int(min(WALKS, turn.left * part * FIRST / WALK)))
    for k in range(walks):
        if standing.done or not turn.more():
            return
        begin = another(draw.randrange(SEEDS)) if k else best
        if begin is not None:
            _walk(standing, partial(turn.more, 1 - (k + 1) * FIRST / walks), begin, draw)
    _walk(standing, turn.more, standing.rows or best, draw)


def _walk(standing: Standing, more: Callable[[], bool], rows: list[list[int]], draw: Random) -> None:
    """From orders to better ones, or others as good, as long as there is `more` work for it."""
    value, vain = _value(standing.model, rows), 0
    while vain < VAIN:
        before = value
        width = max(1, value * OPEN[vain % len(OPEN)] // max(1, len(standing.model)))
        for begin in range(-draw.randrange(width), value, max(1, 2 * width // 3)):
            if standing.done or not more():
                return
            rows, value = _shorten(standing, more, rows, value, begin, begin + width, draw)
        vain = vain + 1 if value == before else 0


def _shorten(
    standing: Standing,
    more: Callable[[], bool],
    rows: list[list[int]],
    value: int,
    begin: int,
    end: int,
    draw: Random,
) -> tuple[list[list[int]], int]:
    """The least less first, then twice as much as the last time; where there is nothing, other orders as good."""
    step = 1
    while not standing.done and more():
        stretch = _stretch(standing.model, rows, begin, end)
        found = _ask(standing, stretch, max(standing.low, value - step))
        # Where orders that are better than the best were not taken, no walk leads on from them.
        if found.rows is not None and standing.value <= (less := _value(standing.model, found.rows)) < value:
            rows, value, step = found.rows, less, 2 * step
        elif step > 1 or found.by == "windows":
            break
        else:
            found = _ask(standing, stretch, value, draw.randrange(SEEDS))
            if found.rows is not None and _value(standing.model, found.rows) == value:
                rows = found.rows
            break
    return rows, value


def _ask(standing: Standing, stretch: _Stretch, limit: int, seed: int | None = None) -> Decision:
    found = ask(standing, standing.model, limit, QUESTION, stretch.kept, seed=seed, narrowed=stretch.narrowed)
    standing.work += len(standing.model) / ASKED
    if found.rows is not None:
        standing.take(found.rows, f"a stretch by {found.by}")
    return found


def _value(model: Model, rows: list[list[int]]) -> int:
    """Of orders that hold water; more than any where they do not."""
    ran = run(model, rows)
    return model.horizon + 1 if ran is None or not fits(model, rows) else ran.value


def _stretch(model: Model, rows: list[list[int]], begin: int, end: int) -> _Stretch:
    """What starts from `begin` on and before `end` is left open."""
    ran = run(model, rows)
    assert ran is not None  # orders that run
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
