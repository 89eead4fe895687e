"""A search over the habits of list scheduling: change some ranks' habits, keep what is no worse.

Ranks may also act as if some kinds took longer or shorter than they do. Only the order they come to is kept, and it is
often better: a rank that expects data at once does not fill its wait with what delays those that wait for it.

The work is counted in list schedules times operations, so that the same work gives the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from time import monotonic
from typing import Any

from pipedsl.program import Kind
from verify.search.greedy import Habit, list_schedule
from verify.search.model import Model, run

Score = tuple[int, int]

MOST_BELIEVED = 24  # models with other durations that are kept
BELIEFS = 0.15  # how often a change is one of what durations are taken to be


@dataclass(frozen=True)
class AsIf:
    """What durations are taken to be while orders are made, in hundredths of what they are."""

    send: int = 100
    forward: int = 100
    inputs: int = 100
    weights: int = 100


@dataclass(frozen=True)
class Manner:
    """How all ranks behave: their habits, and the durations that they go by."""

    habits: tuple[Habit, ...]
    as_if: AsIf = AsIf()


@dataclass(frozen=True, eq=False)
class Tuned:
    """`rows`: the best orders, `score`: their objective and the sum of all ranks' ends. `tried`: how many schedules."""

    rows: list[list[int]]
    manner: Manner
    score: Score
    tried: int


STARTS = (AsIf(), AsIf(send=0), AsIf(send=0, weights=70), AsIf(send=0, inputs=80, weights=70))


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
    first: Manner | None = None,
    notice: Callable[[Tuned], None] | None = None,
) -> Tuned | None:
    """Up to `tries` schedules, or until one meets `goal`, or until the clock says `stop`. None where none fits."""
    draw = random.Random(seed)
    ranks = len(model.strands)
    best: Tuned | None = None
    current: tuple[Manner, Score] | None = None
    tried = 0
    beliefs = STARTS if any(model.lag) else [one for one in STARTS if one != AsIf(send=0)]
    starts = [first] if first is not None else [Manner((h,) * ranks, one) for h in starting_habits() for one in beliefs]
    believed: dict[AsIf, Model] = {}
    while tried < tries and monotonic() < stop:
        if tried < len(starts):
            manner = starts[tried]
        elif current is None:
            return None
        else:
            manner = _changed(current[0], draw)
        tried += 1
        if manner.as_if not in believed:
            if len(believed) >= MOST_BELIEVED:
                believed.clear()
            believed[manner.as_if] = _as_if(model, manner.as_if)
        rows = list_schedule(believed[manner.as_if], manner.habits)
        score = None if rows is None else score_of(model, rows)
        if rows is None or score is None:
            continue
        if current is None or score <= current[1]:
            current = manner, score
        if best is None or score < best.score:
            best = Tuned(rows, manner, score, tried)
            if notice is not None:
                notice(best)
            if score[0] <= goal:
                break
    return None if best is None else replace(best, tried=tried)


def _as_if(model: Model, believed: AsIf) -> Model:
    if believed == AsIf():
        return model
    share = {Kind.F: believed.forward, Kind.B: believed.inputs, Kind.I: believed.inputs, Kind.W: believed.weights}
    return replace(
        model,
        duration=[length * share[Kind(kind)] for length, kind in zip(model.duration, model.kind, strict=True)],
        lag=[length * believed.send for length in model.lag],
    )


_BELIEFS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("send", (0, 0, 50, 100)),
    ("forward", (80, 100, 100, 120)),
    ("inputs", (70, 80, 90, 100, 120)),
    ("weights", (50, 70, 100, 130)),
)

_CHOICES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("hold_forward", (0, 25, 50, 75, 100)),
    ("wait_for_backward", (0, 25, 50, 75, 100, 150, 300)),
    ("wait_for_forward", (0, 25, 50, 75, 100, 150, 300)),
    ("wait_at_end", (0, 50, 100)),
    ("forward_first", (0, 1)),
    ("shallow_first", (0, 1)),
    ("most_waiting", (0, 1, 2, 4, 1 << 30)),
)


def _changed(manner: Manner, draw: random.Random) -> Manner:
    """The same but for one belief, or one to three choices, each on a stretch of neighbouring ranks."""
    found = list(manner.habits)
    ranks = len(found)
    if draw.random() < BELIEFS:
        name, values = draw.choice(_BELIEFS)
        changes: dict[str, Any] = {name: draw.choice(values)}
        return replace(manner, as_if=replace(manner.as_if, **changes))
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
    return replace(manner, habits=tuple(found))


def _with(habit: Habit, name: str, value: int) -> Habit:
    changes: dict[str, Any] = {name: bool(value) if name.endswith("first") else value}
    return replace(habit, **changes)
