"""Operations in the order of given starts, each as early, or each as late, as windows allow: no solver is needed.

What a solver found for some microbatches is often an answer too one microbatch later, or in a window a little narrower.
"""

from __future__ import annotations

from collections.abc import Sequence

from verify.search.model import Model, fits


def press(
    model: Model, like: Sequence[int], earliest: Sequence[int], latest: Sequence[int], early: bool
) -> list[int] | None:
    """Starts within the windows, in the order of `like`; None where that order has none or does not keep to the caps.

    Only without fences, which `Model.local` would hold.
    """
    order = sorted(range(len(model)), key=lambda row: (like[row], row))
    rows: list[list[int]] = [[] for _ in model.strands]
    for row in order:
        rows[model.rank[row]].append(row)
    if not fits(model, rows):
        return None
    return _early(model, order, earliest, latest) if early else _late(model, order, earliest, latest)


def _early(model: Model, order: Sequence[int], earliest: Sequence[int], latest: Sequence[int]) -> list[int] | None:
    start, end, free = [-1] * len(model), [-1] * len(model), [0] * len(model.strands)
    for row in order:
        source, local, r = model.upstream[row], model.local[row], model.rank[row]
        if source >= 0 > end[source] or local >= 0 > end[local]:
            return None
        at = max(earliest[row], free[r], end[source] + model.lag[row] if source >= 0 else 0)
        if at > latest[row]:
            return None
        start[row], end[row] = at, at + model.duration[row]
        free[r] = end[row]
    return start


def _late(model: Model, order: Sequence[int], earliest: Sequence[int], latest: Sequence[int]) -> list[int] | None:
    start, until = [-1] * len(model), [at + time for at, time in zip(latest, model.duration, strict=True)]
    free = [max(until, default=0)] * len(model.strands)
    for row in reversed(order):
        source, local, r = model.upstream[row], model.local[row], model.rank[row]
        at = min(until[row], free[r]) - model.duration[row]
        if at < earliest[row] or (source >= 0 and start[source] >= 0) or (local >= 0 and start[local] >= 0):
            return None
        start[row] = free[r] = at
        if source >= 0:
            until[source] = min(until[source], at - model.lag[row])
    return start


__all__ = ["press"]
