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

The same is done with how much time the slowest rank loses before and after each of its operations (`lost`), where they
are near enough to either end that a question has all that comes before, or after. What it knows of this, and of all
that busy ranks run before and after the few microbatches, is told to the solver (`load`): so a limit that took 115
units of work is refuted in 20.

What is shown of orders within a limit holds for those within a lower one: they are among them, also where all of them
is done so much later. So a limit that turns out too high is lowered, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pipedsl.program import Kind
from verify.search.busy import busy_ranks, later_starts, sooner_starts, spread
from verify.search.engines import keeps
from verify.search.exact import Answer, Decision
from verify.search.formula import Formula
from verify.search.kept import Kept
from verify.search.load import Literal, Load, lost_anyway
from verify.search.lost import Lost
from verify.search.model import Model, model_of
from verify.search.narrowed import Narrowed
from verify.search.press import press
from verify.search.problem import Infeasible, Objective
from verify.search.shorter import shorter
from verify.search.standing import MADE, Standing, ask
from verify.search.windows import Window, narrow

QUESTION = 1.5  # work for one question
PART = 27  # so small a part of a window is tried first
STEP = 4  # microbatches from one question's first to the next's: the fewer, the more questions a solver is kept for
ROUNDS = 5  # of narrowing windows
LOST_PART = 8  # so small a part of the time that may be lost is tried first
GROWTH = 3  # so many times as much after each that is refuted, and so small a part of one that is not


class Shaving:
    """What is known of orders of which the objective is at most `limit`: `narrowed`, and with it every `window`.

    Only where `can_shave`. `shaved`: the rows whose windows are. `like`: when operations start in what a solver last
    found for some microbatches that have them. `kept`: solvers, by how many microbatches they are asked about and the
    first of these. `slow`: the rank of which lost time is known, with `load` to do. `told`: what solvers know of that.
    """

    def __init__(self, standing: Standing, narrowed: Narrowed, limit: int) -> None:
        """`narrowed`: what was shown before. Raises `Infeasible` where no order is within the limit."""
        self.standing, self.narrowed, self.limit = standing, narrowed, limit
        self.window: Window  # set by what follows
        self.busy = busy_ranks(standing.model)
        self.shaved = shaved_rows(standing.model)
        self.slow = standing.model.rank[self.shaved[0][0]]
        self.load = sum(
            time for time, r in zip(standing.model.duration, standing.model.rank, strict=True) if r == self.slow
        )
        self._narrow()
        self.number = {operation: row for row, operation in enumerate(standing.model.operations)}
        self.like: dict[int, int] = {}
        self.kept: dict[tuple[int, int], Kept] = {}
        self.told: dict[tuple[int, int], Lost] = {}

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
    def lost(self) -> Lost:
        assert self.narrowed.lost is not None  # set by `_narrow`
        return self.narrowed.lost

    @property
    def low(self) -> int:
        """No order is below: at a lower limit every window ends so much sooner, and then one is used up."""
        window = self.window
        room = min(b - a for a, b in zip(window.earliest, window.latest, strict=True))
        return max(self.limit - room, self.load + max(self._lost_in_all(row) for row in self.lost.before))

    def _lost_in_all(self, row: int) -> int:
        return self.lost.before[row] + self.lost.after[row]

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
            near = j < microbatches if early else j >= last
            for row in self.shaved[j] if early else reversed(self.shaved[j]):
                if near and keeps(self.standing.engine):
                    self._lose(few, row, first, early, more)
                self._cut(few, row, first, early, more)

    def passes(self, microbatches: int, early: bool, work: float) -> bool:
        """Whether so many microbatches, the first or the last, may run in their windows, as far as that work tells."""
        short = shorter(self.standing.problem, microbatches)
        assert short is not None  # `can_shave`
        few = model_of(short)
        rows = self._rows(few, 0 if early else len(self.shaved) - microbatches)
        sides = ([side[y] for y in rows] for side in (self.window.earliest, self.window.latest))
        return self._ask(few, rows, self._known(rows, *sides), None, work).answer is not Answer.REFUTED

    def _ask(
        self,
        few: Model,
        rows: list[int],
        known: Narrowed,
        like: Sequence[int] | None,
        work: float = QUESTION,
        also: Sequence[str] = (),
    ) -> Decision:
        """Whether the few microbatches may run as is `known` of them, where `also` this is so."""
        by = partial(self._solver(few, rows, like).decide, also=also) if keeps(self.standing.engine) else None
        found = ask(self.standing, few, self.limit, work, narrowed=known, like=like, loads=False, by=by)
        self.standing.work += len(few) / MADE
        return found

    def _lose(self, few: Model, row: int, first: int, early: bool, more: Callable[[], bool]) -> None:
        """Show that more is lost before (after) `row`, with microbatches from `first` on. Raises `Infeasible`."""
        at_least, room = self.lost.of(row, early), self.limit - self.load - self._lost_in_all(row)
        rows, before = self._rows(few, first), at_least
        part = least = max(1, (room + 1) // LOST_PART)
        growing = True
        while part >= least and more():
            at_most = before + min(room, at_least - before + part - 1)
            if self._may_lose(few, rows, row, at_most, early):
                growing, part = False, part // GROWTH
                continue
            at_least = at_most + 1
            if at_least - before > room:
                raise Infeasible(0, 0, "no order is within the limit")
            part *= GROWTH if growing else 1
        if at_least > before:
            self.narrowed = replace(self.narrowed, lost=self.lost.more(row, early, at_least))
            self._narrow()

    def _may_lose(self, few: Model, rows: list[int], row: int, time: int, early: bool) -> bool:
        """Whether the few microbatches may run in their windows, and no more than that is lost before (after) `row`."""
        like, sides = self._similar(rows), (self.window.earliest, self.window.latest)
        known = self._known(rows, *([side[y] for y in rows] for side in sides))
        also = self._load(self._solver(few, rows, like).formula, rows, self.slow).at_most(row, early, time)
        found = self._ask(few, rows, known, like, also=also)
        if found.start is not None:
            self.like.update(zip(rows, found.start, strict=True))
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
        """By chains, and by what the busy ranks have to do, in turn. Raises `Infeasible`."""
        everything = range(len(self.standing.model))
        for _ in range(ROUNDS):
            window = self.window = narrow(self.standing.model, self.limit, narrowed=self.narrowed)
            earliest, latest = list(window.earliest), list(window.latest)
            lost = self.narrowed.lost or lost_anyway(window, self.slow, self.limit)
            lost = spread(window, self.slow, lost)
            for r in self.busy:
                mine = lost if r == self.slow else None
                for row, at in later_starts(window, r, mine):
                    earliest[row] = at
                for row, at in sooner_starts(window, r, mine):
                    latest[row] = at
            self.narrowed = replace(self._known(everything, earliest, latest), lost=lost)
            if self.load + max(map(self._lost_in_all, lost.before)) > self.limit:
                raise Infeasible(0, 0, "no order is within the limit")
            if (earliest, latest) == (window.earliest, window.latest):
                return

    def _solver(self, few: Model, rows: list[int], like: Sequence[int] | None) -> Kept:
        """For the few microbatches, with all that is known of when they start."""
        earliest, latest = ([side[y] for y in rows] for side in (self.window.earliest, self.window.latest))
        kept = self.kept.get((len(few), rows[0]))
        if kept is None:
            window = narrow(few, self.limit, narrowed=self._known(rows, earliest, latest))
            loads = partial(self._loads, rows=rows)
            kept = self.kept[len(few), rows[0]] = Kept(few, window, self.standing.seed, like, loads)
        else:
            kept.narrow(earliest, latest)
            kept.add(self._news(kept.formula, rows, self.told[len(few), rows[0]]))
        self.told[len(few), rows[0]] = self.lost
        return kept

    def _load(self, formula: Formula, rows: list[int], r: int) -> Load:
        """All that a rank has to run, for a question about some of it."""
        few = {y: x for x, y in enumerate(rows)}
        names = {y: formula.names[x] for y, x in few.items()}
        lost = self.lost if r == self.slow else lost_anyway(self.window, r, self.limit)

        def before(x: int, y: int) -> Literal:
            return formula.literal(few[x], few[y])

        return Load(self.standing.model, self.window, before, names, r, lost, self.limit)

    def _loads(self, formula: Formula, rows: list[int]) -> list[str]:
        """What all that the busy ranks have to run says of the rows."""
        found: list[str] = []
        for load in (self._load(formula, rows, r) for r in self.busy):
            for row in load.rows:
                found += (*load.at_least(row, True), *load.at_least(row, False))
        return found

    def _news(self, formula: Formula, rows: list[int], told: Lost) -> list[str]:
        """The same, where more is known to be lost than was told."""
        load, lost = self._load(formula, rows, self.slow), self.lost
        found: list[str] = []
        for row in load.rows:
            for first in (True, False):
                if lost.of(row, first) > told.of(row, first):
                    found += load.at_least(row, first)
        return found

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
        found = self._ask(few, rows, self._known(rows, earliest, latest), like)
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
