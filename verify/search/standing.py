"""What is known while a search goes on, and how a solver is asked on its account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from verify.search.engines import Engine, decider
from verify.search.exact import Answer, Decision
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Problem

MADE = 10_000  # operations whose text takes as long to make as one unit of work
LEAST = 0.001  # work that a solver is asked for; none would be no limit to it


class Standing(Protocol):
    """`low`: no order is below. `stop`: the time by the clock; `left`: work. `next_seed`: another after any news."""

    problem: Problem
    model: Model
    rows: list[list[int]] | None
    value: int
    low: int
    goal: int | None
    seed: int
    engine: Engine
    stop: float
    work: float

    @property
    def done(self) -> bool: ...

    @property
    def left(self) -> float: ...

    @property
    def next_seed(self) -> int: ...

    def take(self, rows: list[list[int]], by: str) -> None: ...

    def raise_bound(self, low: int, by: str) -> None: ...


class Turn:
    """Such a part of the work that is left, or of what the clock leaves."""

    def __init__(self, standing: Standing, part: float) -> None:
        self.standing, self.part = standing, part
        self.left = max(LEAST, standing.left)  # the clock may run out at any time

    @property
    def rest(self) -> float:
        """What is left of it: 1 at first, 0 in the end."""
        return max(0.0, 1 - (1 - self.standing.left / self.left) / self.part)

    @property
    def work(self) -> float:
        """What is left of it."""
        return self.rest * self.part * self.left

    def more(self, reserve: float = 0.0) -> bool:
        """Whether more than that is left."""
        return self.rest > reserve and self.standing.left >= LEAST


def ask(
    standing: Standing,
    model: Model,
    limit: int,
    work: float,
    extra: Sequence[tuple[int, int]] = (),
    seed: int | None = None,
    narrowed: Narrowed = NOTHING,
    like: Sequence[int] | None = None,
    loads: bool = True,
    by: Callable[..., Decision] | None = None,
) -> Decision:
    """`decide` of the engine, in the time and work that are left.

    `by`: who decides instead. What it took is counted; nothing is taken over.
    """
    seconds = 0.0 if standing.stop == float("inf") else max(0.1, standing.stop - monotonic())
    work = min(work, standing.left)
    if work < LEAST:
        return Decision(Answer.UNKNOWN, None, 0.0)
    seed = standing.seed if seed is None else seed
    found = (by or decider(standing.engine))(
        model,
        limit,
        work=work,
        seconds=seconds,
        seed=seed,
        extra=extra,
        narrowed=narrowed,
        like=like,
        loads=loads,
    )
    standing.work += found.work
    return found


__all__ = ["LEAST", "MADE", "Standing", "Turn", "ask"]
