"""A problem seen from its end: what ran last runs first, and what it needed waits for it.

Orders of the one, back to front, are orders of the other, of the same makespan and the same memory. So what works on
orders from their begin works from their end. What follows the operations of a rank is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verify.search.model import NONE, Model


def mirrored(model: Model) -> Model | None:
    """The model from its end. None with fences: several operations may wait for one there."""
    if model.problem.fences:
        return None
    last = len(model) - 1
    followers = [NONE] * len(model)
    for row, source in enumerate(model.local):
        if source >= 0:
            followers[source] = row

    def renumbered(rows: list[int]) -> list[int]:
        return [NONE if row < 0 else last - row for row in reversed(rows)]

    return replace(
        model,
        operations=model.operations[::-1],
        rank=model.rank[::-1],
        kind=model.kind[::-1],
        duration=model.duration[::-1],
        take=model.give[::-1],
        give=model.take[::-1],
        local=renumbered(followers),
        upstream=renumbered(model.feeds),
        lag=[0 if other < 0 else model.lag[other] for other in reversed(model.feeds)],
        feeds=renumbered(model.upstream),
        closing=[0] * len(model),
        strand=model.strand[::-1],
        strands=tuple(tuple((last + 1 - b, last + 1 - a) for a, b in pairs) for pairs in model.strands),
    )


def turned(model: Model, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Orders of a model as orders of the mirrored one, and back."""
    last = len(model) - 1
    return [[last - row for row in reversed(order)] for order in rows]
