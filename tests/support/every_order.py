"""Every order of tiny problems, run; and whether what is shown of orders within a limit leaves one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from brute import interleavings

from verify.search import Problem, model_of
from verify.search.lost import Lost
from verify.search.model import Model, Run, fits, run
from verify.search.narrowed import Narrowed
from verify.search.press import press


def all_there_are(problem: Problem) -> list[Run]:
    """That keep to the caps."""
    model = model_of(problem)
    return [
        ran
        for orders in product(*(interleavings(strands, 2) for strands in problem.strands))
        if fits(model, rows := model.rows(orders)) and (ran := run(model, rows)) is not None
    ]


def latest_starts(model: Model, found: Run, limit: int) -> list[int]:
    """Of the same order, with everything as late as the limit allows."""
    late = press(model, found.start, found.start, [limit - time for time in model.duration], False)
    assert late is not None
    return late


def holds_for(model: Model, found: Run, shown: Narrowed, limit: int) -> bool:
    """Whether an order within the limit is as what is shown says, however late it runs."""
    late = latest_starts(model, found, limit)
    return (
        all(found.start[row] >= time for row, time in shown.starts)
        and all(late[row] + model.duration[row] + time <= limit for row, time in shown.ends)
        and (shown.lost is None or all(loses(model, start, shown.lost, limit) for start in (found.start, late)))
    )


def loses(model: Model, start: Sequence[int], lost: Lost, limit: int) -> bool:
    """Whether a rank that starts its operations then loses at least as much before and after each of them."""
    before, after = idle_times(model, start, model.rank[min(lost.before)], limit)
    return all(before[row] >= time for row, time in lost.before.items()) and all(
        after[row] >= time for row, time in lost.after.items()
    )


def idle_times(model: Model, start: Sequence[int], r: int, limit: int) -> tuple[dict[int, int], dict[int, int]]:
    """For how long a rank runs nothing until each of its rows starts, and from then until the limit."""
    rows = [row for row in range(len(model)) if model.rank[row] == r]
    done = {row: sum(model.duration[x] for x in rows if start[x] < start[row]) for row in rows}
    left = {row: sum(model.duration[x] for x in rows if start[x] >= start[row]) for row in rows}
    return (
        {row: start[row] - done[row] for row in rows},
        {row: limit - start[row] - left[row] for row in rows},
    )
