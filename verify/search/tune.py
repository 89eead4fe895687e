"""A search over the habits of list scheduling: change some ranks' habits, keep what is no worse.

The work is counted in list schedules times operations, so that the same work gives the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import monotonic
from typing import Any

from verify.search.greedy import Habit, list_schedule
from verify.search.model import Model, run

Score = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Tuned:
    """`rows`: the best orders, `score`: their objective and the sum of all ranks' ends. `tried`: how many schedules."""

    rows: list[list[int]]
    habits: tuple[Habit, ...]
    score: Score
    tried: int


def starting_habits() -> Iterator[Habit]:
    """Those that all ranks share at first."""
    for hold, wait_b, wait_f, end in product((0, 50, 100), (100, 50, 0), (100, 0), (100,)):
        yield Habit(hold, wait_b, wait_f, end)
    yield Habit(0, 50, 0, 0)
    yield Habit(0, 100, 100, 100, True)
    yield Habit(0, 0, 0, 0, True)
    yield Habit(0, 100, 100, 100, False, True)
    yield Habit(0, 100, 100, 100, most_waiting=0)
    yield Habit(0, 0, 0, 0, most_waiting=0)
    yield Habit(0, 100, 100, 100, True, most_waiting=0)
    yield Habit(0, 0, 0, 0, True, most_waiting=0)
    yield Habit(0, 0, 0, 0, most_waiting=1)


def score_of(model: Model, rows: list[list[int]]) -> Score | None:
    found = run(model, rows)
    return None if found is None else (found.value, sum(found.last))


def tune(
    model: Model,
    goal: int,
    tries: int,
    seed: int,
    stop: float,
    first: Sequence[Habit] | None = None,
    notice: Callable[[Tuned], None] | None = None,
) -> Tuned | None:
    """Up to `tries` schedules, or until one meets `goal`, or until the clock says `stop`. None where none fits."""
    draw = random.Random(seed)
    ranks = len(model.strands)
    best: Tuned | None = None
    current: tuple[tuple[Habit, ...], Score] | None = None
    tried = 0
    starts = [tuple(first)] if first is not None else [(habit,) * ranks for habit in starting_habits()]
    while tried < tries and monotonic() < stop:
        if tried < len(starts):
            habits = starts[tried]
        elif current is None:
            return None
        else:
            habits = _changed(current[0], draw)
        tried += 1
        rows = list_schedule(model, habits)
        score = None if rows is None else score_of(model, rows)
        if rows is None or score is None:
            continue
        if current is None or score <= current[1]:
            current = habits, score
        if best is None or score < best.score:
            best = Tuned(rows, habits, score, tried)
            if notice is not None:
                notice(best)
            if score[0] <= goal:
                break
    return None if best is None else replace(best, tried=tried)


_CHOICES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("hold_forward", (0, 25, 50, 75, 100)),
    ("wait_for_backward", (0, 25, 50, 75, 100, 150, 300)),
    ("wait_for_forward", (0, 25, 50, 75, 100, 150, 300)),
    ("wait_at_end", (0, 50, 100)),
    ("forward_first", (0, 1)),
    ("shallow_first", (0, 1)),
    ("most_waiting", (0, 1, 2, 4, 1 << 30)),
)


def _changed(habits: tuple[Habit, ...], draw: random.Random) -> tuple[Habit, ...]:
    """The same but for one to three choices, each on a stretch of neighbouring ranks."""
    found = list(habits)
    ranks = len(found)
    for _ in range(draw.choice((1, 1, 2, 3))):
        length = min(ranks, draw.choice((1, 1, 2, max(1, ranks // 4), ranks)))
        start = draw.randrange(ranks - length + 1)
        pick = draw.randrange(len(_CHOICES) + 2)
        if pick >= len(_CHOICES):
            most = draw.choice((1 << 30, draw.randrange(1, 2 * ranks + 2)))
            slope = draw.choice((0, 0, 1, 2))
            for r in range(start, start + length):
                found[r] = replace(found[r], most_in_flight=max(1, most - slope * (r - start)))
            continue
        name, values = _CHOICES[pick]
        value = draw.choice(values)
        for r in range(start, start + length):
            found[r] = _with(found[r], name, value)
    return tuple(found)


def _with(habit: Habit, name: str, value: int) -> Habit:
    changes: dict[str, Any] = {name: bool(value) if name.endswith("first") else value}
    return replace(habit, **changes)
