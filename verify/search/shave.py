"""A limit refuted few microbatches at a time, where the whole is too much for one question.

Suppose that some order is within the limit. Every operation then starts in its window (`windows`), and those of some
microbatches in a row, looked at alone, start as in an order of the same problem with so few, each in its own window.
So where no such order has an operation of one of them in the first part of its window, no order of the whole has it
there, and the window may begin after that part; in the same way it may end before its last part. What is cut off one
window narrows others, on all ranks and for all microbatches, and where one is used up no order is within the limit.
From left to right windows begin later, as what came before is known; from right to left they end sooner. (Shaving:
Martin and Shmoys 1996; here each question is about a part of the problem, which leaves more orders, so it may only
miss some.)

It is enough to shave F and I of one stage, a slow one: where its rank must lose little time each of its operations says
much of the others. Windows of F of the first stage, which may run ahead, say so much less that of eight ranks with two
slow ones a limit was not refuted in 400 units of work that these refute in 58.

What is shown of orders within a limit holds for those within a lower one: they are among them, also where all of them
is done so much later. So a limit that turns out too high is lowered, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipedsl.program import Kind
from verify.search.busy import busy_ranks, later_starts, sooner_starts
from verify.search.engines import keeps
from verify.search.exact import Answer
from verify.search.kept import Kept
from verify.search.model import Model, model_of
from verify.search.narrowed import Narrowed
from verify.search.press import press
from verify.search.problem import Objective
from verify.search.shorter import shorter
from verify.search.standing import MADE, Standing, ask
from verify.search.windows import Window, narrow

QUESTION = 1.5  # work for one question
PART = 27  # so small a part of a window is tried first
STEP = 2  # microbatches from one question's first to the next's: the fewer, the more questions a solver is kept for
ROUNDS = 5  # of narrowing windows
GROWTH = 3  # so many times as much after each that is refuted, and so small a part of one that is not


class Shaving:
    """What is known of orders of which the objective is at most `limit`: `narrowed`, and with it every `window`.

    Only where `can_shave`. `shaved`: the rows whose windows are. `like`: when operations start in what a solver last
    found for some microbatches that have them. `kept`: solvers, by how many microbatches they are asked about and the
    first of these.
    """

    def __init__(self, standing: Standing, narrowed: Narrowed, limit: int) -> None:
        """`narrowed`: what was shown before. Raises `Infeasible` where no order is within the limit."""
        self.standing, self.narrowed, self.limit = standing, narrowed, limit
        self.window: Window  # set by what follows
        self.busy = busy_ranks(standing.model)
        self._narrow()
        self.number = {operation: row for row, operation in enumerate(standing.model.operations)}
        self.shaved = shaved_rows(standing.model)
        self.like: dict[int, int] = {}
        self.kept: dict[tuple[int, int], Kept] = {}

    def lower(self, limit: int) -> None:
        """What is known holds for a lower limit. Raises `Infeasible`, as whatever narrows windows."""
        self.limit = limit
        self._narrow()

    @property
    def width(self) -> int:
        """Of all windows that are shaved."""
        window = self.window
        return sum(window.latest[row] - window.earliest[row] for rows in self.shaved for row in rows)

    @property
    def low(self) -> int:
        """No order is below: at a lower limit every window ends so much sooner, and then one is used up."""
        window = self.window
        return self.limit - min(b - a for a, b in zip(window.earliest, window.latest, strict=True))

    def sweep(self, microbatches: int, early: bool, more: Callable[[], bool], asked: int = 0) -> None:
        """From left to right, where windows begin, or back, where they end: with so many microbatches a question.

        As long as there is `more` work for it. `asked`: at the end it begins from, so many need no more questions, as
        they were asked about with all that is before them.
        """
        short = shorter(self.standing.problem, microbatches)
        assert short is not None  # `can_shave`
        few, count = model_of(short), len(self.shaved)
        last, step = count - microbatches, min(STEP, microbatches)
        for j in range(asked, count) if early else range(count - 1 - asked, -1, -1):
            if early:
                first = min(last, -(-max(0, j + 1 - microbatches) // step) * step)
            else:
                first = last if j >= last else j // step * step
            for row in self.shaved[j] if early else reversed(self.shaved[j]):
                self._cut(few, row, first, early, more)

    def passes(self, microbatches: int, early: bool, work: float) -> bool:
        """Whether so many microbatches, the first or the last, may run in their windows, as far as that work tells."""
        short = shorter(self.standing.problem, microbatches)
        assert short is not None  # `can_shave`
        few = model_of(short)
        rows = self._rows(few, 0 if early else len(self.shaved) - microbatches)
        known = self._known(rows, *([side[y] for y in rows] for side in (self.window.earliest, self.window.latest)))
        found = ask(self.standing, few, self.limit, work, narrowed=known, loads=False)
        self.standing.work += len(few) / MADE
        return found.answer is not Answer.REFUTED

    def _cut(self, few: Model, row: int, first: int, early: bool, more: Callable[[], bool]) -> None:
        """Cut parts off one end of the window of `row`, with microbatches from `first` on."""
        low, high = self.window.earliest[row], self.window.latest[row]
        rows = self._rows(few, first)
        part = least = max(1, (high + 1 - low) // PART)
        growing = True
        while low <= high and part >= least and more():
            inside = (low, min(high, low + part - 1)) if early else (max(low, high - part + 1), high)
            if self._possible(few, rows, row, *inside, early):
                growing, part = False, part // GROWTH
                continue
            if early:
                low = inside[1] + 1
            else:
                high = inside[0] - 1
            part *= GROWTH if growing else 1
        if low > self.window.earliest[row]:
            self.narrowed = replace(self.narrowed, starts=(*self.narrowed.starts, (row, low)))
        elif high < self.window.latest[row]:
            self.narrowed = replace(self.narrowed, ends=(*self.narrowed.ends, (row, self._tail(row, high))))
        else:
            return
        self._narrow()

    def _narrow(self) -> None:
        """By chains, and by what the busy ranks have to do, in turn."""
        everything = range(len(self.standing.model))
        for _ in range(ROUNDS):
            window = self.window = narrow(self.standing.model, self.limit, narrowed=self.narrowed)
            earliest, latest = list(window.earliest), list(window.latest)
            for r in self.busy:
                for row, at in later_starts(window, r):
                    earliest[row] = at
                for row, at in sooner_starts(window, r):
                    latest[row] = at
            self.narrowed = self._known(everything, earliest, latest)
            if (earliest, latest) == (window.earliest, window.latest):
                return

    def _solver(self, few: Model, rows: list[int], like: Sequence[int] | None) -> Kept:
        """For the few microbatches, with all that is known of when they start."""
        earliest, latest = ([side[y] for y in rows] for side in (self.window.earliest, self.window.latest))
        kept = self.kept.get((len(few), rows[0]))
        if kept is None:
            window = narrow(few, self.limit, narrowed=self._known(rows, earliest, latest))
            kept = self.kept[len(few), rows[0]] = Kept(few, window, self.standing.seed, like)
        else:
            kept.narrow(earliest, latest)
        return kept

    def _known(self, rows: Sequence[int], earliest: list[int], latest: list[int]) -> Narrowed:
        return Narrowed(
            starts=tuple(enumerate(earliest)),
            ends=tuple((x, self._tail(y, at)) for x, (y, at) in enumerate(zip(rows, latest, strict=True))),
        )

    def _tail(self, row: int, latest: int) -> int:
        """What has to follow the end of a row if it starts at its latest."""
        return self.limit - latest - self.standing.model.duration[row]

    def _rows(self, few: Model, first: int) -> list[int]:
        """The rows of the whole that those of the few microbatches from `first` on stand for."""
        later = (each._replace(microbatch=each.microbatch + first) for each in few.operations)
        return [self.number[each] for each in later]

    def _possible(self, few: Model, rows: list[int], row: int, low: int, high: int, early: bool) -> bool:
        """Whether the few microbatches may run in their windows, and `row` between `low` and `high`."""
        earliest = [low if y == row else self.window.earliest[y] for y in rows]
        latest = [high if y == row else self.window.latest[y] for y in rows]
        like = self._similar(rows)
        pressed = None if like is None else press(few, like, earliest, latest, early)
        if pressed is not None:
            self.like.update(zip(rows, pressed, strict=True))
            return True
        known = self._known(rows, earliest, latest)
        by = self._solver(few, rows, like).decide if keeps(self.standing.engine) else None
        found = ask(self.standing, few, self.limit, QUESTION, narrowed=known, like=like, loads=False, by=by)
        self.standing.work += len(few) / MADE
        if found.start is not None:
            self.like.update(zip(rows, press(few, found.start, earliest, latest, early) or found.start, strict=True))
        return found.answer is not Answer.REFUTED

    def _similar(self, rows: list[int]) -> list[int] | None:
        """The last starts, and what is not among them as far from its neighbour as that from the next."""
        if not self.like:
            return None
        return [self._guess(row) if row not in self.like else self.like[row] for row in rows]

    def _guess(self, row: int) -> int:
        for step in (-1, 1):
            if row + step in self.like and row + 2 * step in self.like:
                return 2 * self.like[row + step] - self.like[row + 2 * step]
        return self.window.earliest[row]


def can_shave(model: Model) -> bool:
    """Whether what holds for few microbatches holds for all, and is likely to say much.

    It holds for fully open orders, where no operation is an instant. Of several chunks on a rank bounds are so far from
    what is found that the work is better spent on that.
    """
    problem = model.problem
    if problem.objective is not Objective.MAKESPAN or len(set(problem.placement)) < problem.stages:
        return False
    return problem.microbatches > 1 and all(model.duration) and shorter(problem, 1) is not None


def shaved_rows(model: Model) -> list[list[int]]:
    """By microbatch, F and I (or B) of the slowest stage; not of the last, where one comes right after the other."""
    problem = model.problem
    load = [0] * problem.stages
    for operation, time in zip(model.operations, model.duration, strict=True):
        load[operation.stage] += time
    slowest = max(range(max(1, problem.stages - 1)), key=load.__getitem__)
    found: list[list[int]] = [[] for _ in range(problem.microbatches)]
    for kinds in ((Kind.F,), (Kind.I, Kind.B)):
        for row, (kind, stage, microbatch) in enumerate(model.operations):
            if stage == slowest and kind in kinds:
                found[microbatch].append(row)
    return found


__all__ = ["Shaving", "can_shave"]
