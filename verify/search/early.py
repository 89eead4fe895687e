"""Where it is open what a rank runs first, spans depend on when that starts: as early as it can, and not later to seem
shorter. So what may come before it must not wait without a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verify.search.model import Model
from verify.search.windows import Window

MOST = 6000
"""Reasons in all. Above, they are left out: what is found may then be longer than was asked for."""


@dataclass(frozen=True)
class Prompt:
    """`row` starts at 0, or when one of its rank's `others` ends, or when what `upstream` makes arrives, `lag` after it
    ends (-1: nothing arrives)."""

    row: int
    upstream: int
    lag: int
    others: Sequence[int]


def prompt_rows(model: Model, window: Window) -> list[Prompt]:
    """The rows of which a rank's first start is made, those of `window.spans`. None where they are too many."""
    rows_of = [[row for a, b in pairs for row in range(a, b)] for pairs in model.strands]
    first = {a for r in window.spans for a, b in model.strands[r] if a < b and model.local[a] < 0}
    before, stack = set[int](), [model.upstream[row] for row in first if model.upstream[row] >= 0]
    others = {row: _others(model, window, rows_of, row) for row in first}
    while stack:
        row = stack.pop()
        if row in before:
            continue
        before.add(row)
        others[row] = _others(model, window, rows_of, row)
        stack += [each for each in (model.upstream[row], *others[row]) if each >= 0]
    if sum(map(len, others.values())) > MOST:
        return []
    return [Prompt(row, model.upstream[row], model.lag[row], others[row]) for row in sorted(others)]


def _others(model: Model, window: Window, rows_of: list[list[int]], row: int) -> list[int]:
    """What may run right before it on its rank."""
    found = []
    for each in rows_of[model.rank[row]]:
        if model.strand[each] == model.strand[row]:
            may = each == row - 1
        else:
            may = model.local[each] != row and window.known(each, row) is not False
        if may and each != row:
            found.append(each)
    return found
