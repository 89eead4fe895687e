"""A limit refuted few microbatches at a time, where the whole is too much for one question.

Suppose that some order is within the limit. Every operation then starts in its window (`windows`), and those of some
microbatches in a row, looked at alone, start as in an order of the same problem with so few, each in its own window.
So where no such order has F[j] of the first stage in the first part of its window, no order of the whole has it there,
and the window may begin after that part; in the same way it may end before its last part. What is cut off one window
narrows others, on all ranks and for all microbatches, and where one is used up no order is within the limit. From left
to right windows begin later, as what came before is known; from right to left they end sooner. (Shaving: Martin and
Shmoys 1996; here each question is about a part of the problem, which leaves more orders, so it may only miss some.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from verify.search.exact import Answer
from verify.search.model import Model, model_of
from verify.search.shorter import shorter
from verify.search.spacing import Spacing, first_rows
from verify.search.standing import LEAST, MADE, Standing, ask
from verify.search.windows import Window, narrow

SIZES = (190, 240, 310)  # operations in a question, about; the larger, the more is refuted, and the longer it takes
QUESTION = 1.0  # work for one question
PART = 3  # so small a part of a window is the first that is tried, and of that the next
ENOUGH = 10  # so small a part of all windows must be cut off for larger questions to be worth their work
PARTS = 3  # how many sizes of parts are tried


def shave(
    standing: Standing, spacing: Spacing, limit: int, work: float, sizes: Sequence[int] = SIZES
) -> Iterator[Spacing]:
    """What is known of orders within the limit, more each time, as long as that leads on.

    Raises `Infeasible` where there are none. Only where `can_nest` of `nested` holds: for makespans, where orders are
    fully open and no operation is an instant. `spacing`: what is known of all orders. `work`: about how much, with what
    is done between two answers. `sizes`: about how many operations a question is about, one after the other.
    """
    found = _Shaving(standing, spacing, limit, standing.work + work)
    yield spacing
    model = standing.model
    count = model.problem.microbatches
    for size in dict.fromkeys(max(1, min(count - 1, size * count // len(model))) for size in sizes):
        short = shorter(model.problem, size)
        assert short is not None  # `can_nest`
        few = model_of(short)
        before = found.width
        for early in (True, False):
            if found.done:
                return
            found.sweep(few, early)
            yield found.spacing
        if found.width * ENOUGH > before * (ENOUGH - 1):
            return


class _Shaving:
    """`window`: when each operation of the whole starts in orders within the limit. `spacing`: what made it so."""

    def __init__(self, standing: Standing, spacing: Spacing, limit: int, stop: float) -> None:
        self.standing, self.spacing, self.limit, self.stop = standing, spacing, limit, stop
        self.window: Window = narrow(standing.model, limit, spacing=spacing)
        self.number = {operation: row for row, operation in enumerate(standing.model.operations)}

    @property
    def done(self) -> bool:
        return self.standing.work >= self.stop or self.standing.left < LEAST

    @property
    def width(self) -> int:
        """Of all windows of F of the first stage."""
        window = self.window
        return sum(window.latest[row] - window.earliest[row] for row in first_rows(self.standing.model))

    def sweep(self, few: Model, early: bool) -> None:
        """Once from left to right, or back. Raises `Infeasible`."""
        rows = first_rows(self.standing.model)
        size, count = few.problem.microbatches, len(rows)
        for j in range(count) if early else reversed(range(count)):
            self._cut(few, rows[j], max(0, j + 1 - size) if early else min(j, count - size), early)

    def _cut(self, few: Model, row: int, first: int, early: bool) -> None:
        """Cut parts off one end of the window of `row`, with microbatches from `first` on."""
        low, high = self.window.earliest[row], self.window.latest[row]
        part, tried = max(1, (high + 1 - low) // PART), 1
        rows = self._rows(few, first)
        while low <= high and part and tried <= PARTS:
            if self.done:
                break
            inside = (low, min(high, low + part - 1)) if early else (max(low, high - part + 1), high)
            if self._possible(few, rows, row, *inside):
                part, tried = part // PART, tried + 1
            elif early:
                low = inside[1] + 1
            else:
                high = inside[0] - 1
        if low > self.window.earliest[row]:
            self.spacing = replace(self.spacing, starts=(*self.spacing.starts, (row, low)))
        elif high < self.window.latest[row]:
            self.spacing = replace(self.spacing, ends=(*self.spacing.ends, (row, self._tail(row, high))))
        else:
            return
        self.window = narrow(self.standing.model, self.limit, spacing=self.spacing)

    def _tail(self, row: int, latest: int) -> int:
        """What has to follow the end of a row if it starts at its latest."""
        return self.limit - latest - self.standing.model.duration[row]

    def _rows(self, few: Model, first: int) -> list[int]:
        """The rows of the whole that those of the few microbatches from `first` on stand for."""
        later = (each._replace(microbatch=each.microbatch + first) for each in few.operations)
        return [self.number[each] for each in later]

    def _possible(self, few: Model, rows: list[int], row: int, low: int, high: int) -> bool:
        """Whether the few microbatches may run in their windows, and `row` between `low` and `high`."""
        window = self.window
        starts = [(x, low if y == row else window.earliest[y]) for x, y in enumerate(rows)]
        ends = [(x, self._tail(y, high if y == row else window.latest[y])) for x, y in enumerate(rows)]
        known = Spacing(self.spacing.apart, starts=tuple(starts), ends=tuple(ends))
        work = min(QUESTION, self.stop - self.standing.work)
        found = ask(self.standing, few, self.limit, work, spacing=known)
        self.standing.work += len(few) / MADE
        return found.answer is not Answer.REFUTED


__all__ = ["shave"]
