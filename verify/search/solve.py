"""The best order that a budget finds, and how good it is: bounds, habits, steady states, moves, and z3 for the rest.

Everything is counted in work, not in seconds, so the same problem, budget and seed give the same answer; `seconds` is
an outer stop that keeps the best so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import partial
from math import ceil
from time import monotonic

from verify.search.bounds import Bound, check_room, load_bound, lower_bound
from verify.search.close import FEW, close
from verify.search.engines import MOST_OPERATIONS, Engine
from verify.search.fill import FILLING
from verify.search.improve import improve
from verify.search.interleave import interleaved
from verify.search.judge import Invalid, Judgement, judge
from verify.search.loosen import loosen
from verify.search.model import Model, fits, model_of, run
from verify.search.modulo import Periods, few_microbatches
from verify.search.narrowed import Narrowed
from verify.search.problem import Infeasible, Orders, Problem
from verify.search.refute import refute
from verify.search.settle import settle
from verify.search.shave import can_shave
from verify.search.shorter import good_manners, short_models
from verify.search.squeeze import STEP, squeeze
from verify.search.steady import Steady, place_weights, steady_states
from verify.search.tune import Manner, Tuned, tune
from verify.search.waves import waves

SCHEDULED = 700_000  # operations put in order by list scheduling that count as one unit of work
EACH = 80  # operations that take as long as what putting few in order costs beside
LARGE = 12_000  # operations; above, habits are first tried on fewer microbatches
BOUNDING = 3  # how much longer the bounds take than the model they are of, about
SHORT = 6  # work that goes into them at most
SQUEEZED = 30_000  # operations; above, the longest rank has too many ways
MOST_FOR_MOVES = 8000  # operations; above, moves of one operation are too slow to matter
PACE = 2.0  # units of work in a second, about; shares are of what the clock leaves, too
MOST_IN_PARTS = 2500  # operations; above, a solver is not even asked about parts of the whole
MOVE = 0.1  # what a move costs, beside putting all operations in order anew
ANEW = 0.7  # work for habits that are no better than the best, but others
SETTLING = 4  # how often idle time is filled in what came of habits, about
PERIODS = 4  # microbatches in one, at most
PERIOD = 4  # work for periods of so many microbatches, at most
KERNELS = 6  # steady states that are unrolled


class Proof(Enum):
    """Why no order is better: the value is a lower bound by an argument, or z3 refuted a smaller one."""

    BOUND = "bound"
    REFUTATION = "refutation"


@dataclass(frozen=True)
class _Shares:
    """`loosened`: the part of what is left that goes to leaving stretches open, at most; `refuted`: the part of the
    rest to refuting limits, of which the first is at so small a part of the gap as `begin`."""

    loosened: float
    refuted: float
    begin: float


class Aim(Enum):
    """What a search does most of. Two of the same problem, one for each, know more in the end than two for both."""

    BOTH = _Shares(0.35, 0.65, 0.4)
    ORDERS = _Shares(0.9, 1.0, 0.4)
    BOUNDS = _Shares(0.05, 1.0, 0.5)


@dataclass(frozen=True)
class Budget:
    """`work`: about seconds of one core of 2024. `seconds`: an outer stop; None for none. `engine`: who decides what
    bounds and heuristics leave open."""

    work: float = 60
    seconds: float | None = None
    engine: Engine = "z3"

    def part(self, share: float) -> Budget:
        return replace(self, work=self.work * share, seconds=None if self.seconds is None else self.seconds * share)


DEFAULT = Budget()


@dataclass(frozen=True)
class Step:
    """One piece of news: `by` what, and how things stand. In the file's units."""

    by: str
    value: Fraction | None
    bound: Fraction
    work: float


@dataclass(frozen=True)
class Solution:
    """Orders that were judged, their value, and the best proven lower bound, in the file's units of time.

    `proof` is None where the value may not be the optimum. `argument`: what the bound rests on.
    """

    problem: Problem = field(repr=False)
    orders: Orders = field(repr=False)
    value: Fraction
    bound: Fraction
    proof: Proof | None
    argument: str
    judgement: Judgement
    work: float
    log: tuple[Step, ...] = field(repr=False)

    @property
    def gap(self) -> Fraction:
        """How far above the bound the value is, as a part of the bound."""
        return (self.value - self.bound) / self.bound if self.bound else Fraction(0)


class NothingFound(Exception):
    """No order was found within the budget, and none was shown to be impossible."""


class _Search:
    """What is known so far."""

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        seed: int,
        progress: Callable[[Step], None] | None,
        goal: Fraction | None,
        known: Solution | None,
        accept: Callable[[Orders], bool] | None,
        aim: Aim = Aim.BOTH,
    ) -> None:
        self.problem, self.seed, self.progress, self.accept = problem, seed, progress, accept
        self.engine = budget.engine
        began = monotonic()
        self.stop = began + budget.seconds if budget.seconds is not None else float("inf")
        self.model: Model = model_of(problem)
        self.budget = budget
        self.work = 0.0
        self.log: list[Step] = []
        self.rows: list[list[int]] | None = None
        self.value = self.model.horizon + 1
        self.settled: list[list[int]] | None = None
        self.manner: Manner | None = None
        # With few operations z3 needs no such help; of many it is not asked.
        shaves = FEW < len(self.model) <= MOST_IN_PARTS and can_shave(self.model)
        self.shown: dict[int, Narrowed] | None = {} if shaves else None
        self.shares = (aim if shaves else Aim.BOTH).value
        self.goal = None if goal is None else int(goal / problem.time_unit)
        now = monotonic()
        hurried = len(self.model) > LARGE and now + BOUNDING * (now - began) > self.stop
        if hurried:
            check_room(problem)
        bound: Bound = load_bound(problem) if hurried else lower_bound(self.model)
        self.low = bound.value
        self.proof, self.argument = Proof.BOUND, bound.argument
        if known is not None and known.bound > self.low * problem.time_unit:
            self.low = ceil(known.bound / problem.time_unit)
            self.proof, self.argument = known.proof or Proof.REFUTATION, known.argument
        self.note(f"bound: {bound.argument}, rank {bound.rank}")

    def note(self, by: str) -> None:
        unit = self.problem.time_unit
        step = Step(by, None if self.rows is None else self.value * unit, self.low * unit, round(self.work, 3))
        self.log.append(step)
        if self.progress is not None:
            self.progress(step)

    @property
    def enough(self) -> int:
        """The value at which the search ends."""
        return self.low if self.goal is None else max(self.low, self.goal)

    @property
    def hopeless(self) -> bool:
        """Whether the goal is refuted."""
        return self.goal is not None and self.low > self.goal

    @property
    def done(self) -> bool:
        return self.value <= self.enough or self.hopeless

    @property
    def next_seed(self) -> int:
        return self.seed + len(self.log)

    @property
    def left(self) -> float:
        return max(0.0, min(self.budget.work - self.work, PACE * (self.stop - monotonic())))

    def take(self, rows: list[list[int]], by: str) -> None:
        """Keep orders that are better than what there is. What does not hold water is dropped."""
        found = run(self.model, rows)
        if found is None or found.value >= self.value or not fits(self.model, rows):
            return
        if self.accept is not None and not self.accept(self.model.orders(rows)):
            return
        self.rows, self.value = rows, found.value
        self.note(by)

    def raise_bound(self, low: int, by: str) -> None:
        if low > self.low:
            self.low, self.proof, self.argument = low, Proof.REFUTATION, f"refutation by {by.split()[-1]}"
            self.note(by)


def solve(
    problem: Problem,
    *,
    budget: Budget = DEFAULT,
    seed: int = 0,
    progress: Callable[[Step], None] | None = None,
    start: Orders | None = None,
    goal: Fraction | None = None,
    known: Solution | None = None,
    accept: Callable[[Orders], bool] | None = None,
    aim: Aim = Aim.BOTH,
) -> Solution:
    """The best orders found. Raises `Infeasible` where there are none, `NothingFound` where the budget finds none.

    `start`: orders to begin from, such as the answer under a smaller cap. They are judged anew, and dropped where they
    are no answer to this problem. `goal`: a value that is good enough, at which the search ends; where it is refuted
    and there are no orders, `Infeasible` is raised. `known`: an answer to the same problem under caps that are no
    smaller, whose bound is believed. `accept`: which orders may be the answer; the bound stays that of all.
    `aim`: what it does most of, where both can be done.
    """
    search = _Search(problem, budget, seed, progress, goal, known, accept, aim)
    if start is not None:
        _begin(search, start)
    try:
        _rounds(search)
        if search.rows is None and not search.hopeless and monotonic() >= search.stop:
            _try_one(search)
    except KeyboardInterrupt:
        if search.rows is None:
            raise
        search.note("interrupted")
    if search.rows is None and search.hopeless:
        raise Infeasible(-1, 0, "no order that keeps to the caps is as good as the goal")
    if search.rows is None:
        raise NothingFound("no order was found within the budget")
    orders = search.model.orders(search.rows)
    judgement = judge(problem, orders)
    value = judgement.value(problem.objective)
    bound = search.low * problem.time_unit
    proof = search.proof if value <= bound else None
    return Solution(problem, orders, value, bound, proof, search.argument, judgement, search.work, tuple(search.log))


def _begin(search: _Search, start: Orders) -> None:
    try:
        judge(search.problem, start)
    except Invalid:
        return
    search.take(search.model.rows(start), "start")


def _try_one(search: _Search) -> None:
    """The first habits that all start with, for where the clock left no time for any."""
    found = tune(search.model, search.enough, 1, search.seed, float("inf"))
    search.work += (EACH + len(search.model)) / SCHEDULED
    if found is not None:
        search.take(found.rows, "habits")


def _tune(search: _Search, share: float) -> None:
    settling = SETTLING * FILLING * len(search.model) / SCHEDULED
    found = _try_habits(search, share - settling if share > 2 * settling else share, search.next_seed, search.manner)
    if found is not None:
        search.manner = found.manner
        _settle(search, found.rows)


def _start_anew(search: _Search, seed: int) -> list[list[int]] | None:
    """Orders of other habits than the best that are known."""
    found = _try_habits(search, ANEW, seed)
    return None if found is None else _fill(search, found.rows)


def _try_habits(search: _Search, share: float, seed: int, manner: Manner | None = None) -> Tuned | None:
    cost = (EACH + len(search.model)) / SCHEDULED
    tries = max(1, int(share / cost))

    def notice(found: Tuned) -> None:
        search.take(found.rows, "habits")

    found = tune(search.model, search.enough, tries, seed, search.stop, manner, notice)
    search.work += cost * (tries if found is None else found.tried)
    return found


def _fill(search: _Search, rows: list[list[int]]) -> list[list[int]]:
    """Idle time filled."""
    better, turns = settle(search.model, rows, search.stop)
    search.take(better, "idle time filled")
    search.work += FILLING * turns * len(search.model) / SCHEDULED
    return better


def _tune_short(search: _Search, short: Model, share: float) -> None:
    """Habits on fewer microbatches, and on all those that did well there."""
    cost = (EACH + len(short)) / SCHEDULED
    low = lower_bound(short).value
    stop = search.stop if search.stop == float("inf") else (monotonic() + search.stop) / 2
    manners, tried = good_manners(short, low, max(1, int(share / cost)), search.next_seed, stop)
    search.work += cost * tried
    best = search.value
    for manner in manners:
        if search.done:
            return
        found = tune(search.model, search.enough, 1, search.next_seed, search.stop, manner)
        search.work += (EACH + len(search.model)) / SCHEDULED
        if found is not None:
            search.take(found.rows, "habits of fewer microbatches")
            if search.value < best:
                best, search.manner = search.value, manner


def _ride_waves(search: _Search) -> None:
    rows = interleaved(search.model)
    if rows is not None:
        search.take(rows, "interleaved 1F1B")
    rows = waves(search.model, search.stop)
    search.work += (EACH + len(search.model)) / SCHEDULED
    if rows is not None:
        search.take(rows, "waves")


def _settle(search: _Search, rows: list[list[int]]) -> None:
    """Idle time filled in orders, where that was not done yet. What is a little worse may become the best.

    Where there are too many operations for moves of one, the longest rank is then put in its best order instead.
    """
    if rows == search.settled or search.done or search.left <= 0.01:
        return
    search.settled = rows
    better = _fill(search, rows)
    if len(search.model) <= SQUEEZED and not search.done and search.left > 0.01:
        better, steps = squeeze(search.model, better, search.enough, search.stop)
        search.take(better, "best order of the longest rank")
        search.work += STEP * steps / SCHEDULED


def _rounds(search: _Search) -> None:
    """Habits, steady states and z3 in turn, each round with twice the work of the one before."""
    reasons = len(search.model) <= MOST_OPERATIONS[search.engine]
    parts = len(search.model) <= MOST_IN_PARTS
    # z3 is soon done with few operations, where habits would be tried in vain.
    share = min(0.5, len(search.model) / 400) if reasons else search.left / 50
    steady: list[Steady] | None = None
    if len(search.model) > LARGE and not search.done and search.left > 0.01:
        _ride_waves(search)
        for short in short_models(search.model):
            if not search.done:
                _tune_short(search, short, min(SHORT, search.left / 12))
    periods = True
    while not search.done and search.left > 0.01:
        before = search.work
        _tune(search, min(share, search.left))
        if len(search.model) > FEW and periods and not search.done:
            periods = False
            _repeat(search)
        if not before and not search.done and len(search.model) <= LARGE:
            _ride_waves(search)
        # Not before z3 had a first look, where it may have one.
        if not search.done and steady is None and search.left > 0.01 and (before or not reasons):
            steady, used = steady_states(search.model, search.stop)
            search.work += used / SCHEDULED
        if not search.done and steady:
            _place(search, steady[:KERNELS], share)
        if not search.done and len(search.model) <= MOST_FOR_MOVES:
            _improve(search, share)
        if parts and len(search.model) > FEW and not search.done:
            loosen(search, search.shares.loosened, partial(_start_anew, search))
        if search.shown is not None and not search.done:
            refute(search, search.shown, search.shares.refuted, search.shares.begin)
        if reasons and not search.done:
            close(search, share)
        if search.work == before:
            break
        share *= 2 if reasons else 8


def _repeat(search: _Search) -> None:
    """Periods of few microbatches, each only where it is shorter than those of fewer."""
    microbatches = search.model.problem.microbatches
    best = Fraction(search.value, microbatches)
    for count in range(1, min(PERIODS, microbatches // 2) + 1):
        few = few_microbatches(search.model, count)
        if few is None or search.done or search.left <= 0.01:
            return
        asked = Periods(few, min(PERIOD, search.left), search.stop, search.seed)
        kernel = asked.shortest(ceil(best * count) - 1)
        search.work += asked.used
        if kernel is None:
            continue
        best = Fraction(kernel.period, count)
        for skipped in range(count):
            rows = kernel.unroll(search.model, skipped)
            search.take(rows, f"{count} microbatches a period")
            _settle(search, rows)


def _improve(search: _Search, share: float) -> None:
    """Local search from the best orders."""
    if search.rows is None:
        return
    cost = max(1, len(search.model)) * MOVE / SCHEDULED
    moves = max(1, int(min(share, search.left) / cost))
    notice = partial(search.take, by="moves")
    used = improve(search.model, search.rows, search.enough, moves, search.next_seed, search.stop, notice)
    search.work += cost * used


def _place(search: _Search, states: list[Steady], share: float) -> None:
    """W around the best steady states, a part of the share for each."""
    cost = (EACH + len(search.model)) / SCHEDULED
    for state in states:
        if search.done or search.left <= 0.01:
            return
        tries = max(1, int(min(share, search.left) / len(states) / cost))
        notice = partial(search.take, by=f"steady state of period {state.pattern.period}")
        used = place_weights(search.model, state, search.enough, tries, search.next_seed, search.stop, notice)
        search.work += cost * (used + 1)


__all__ = ["Aim", "Budget", "Infeasible", "NothingFound", "Proof", "Solution", "Step", "solve"]
