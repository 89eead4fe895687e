"""Every order of tiny problems, run; and whether what is shown of orders within a limit leaves one of them."""

from __future__ import annotations

from itertools import product

from brute import interleavings

from verify.search import Problem, model_of
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
    return all(found.start[row] >= time for row, time in shown.starts) and all(
        late[row] + model.duration[row] + time <= limit for row, time in shown.ends
    )
