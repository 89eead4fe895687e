"""Orders whose middle may run more often: the same schedule for more microbatches, with no limit to how many.

A cut says for every rank how far it has come. It is *possible* when no operation before it needs one behind it; then
the ranks can all stand at it at once. Where from one possible cut to a later one every rank runs each kind of each
stage for equally many microbatches, `period`, the ranks stand at the later cut as they stood at the earlier, so they
may run that part again, any number of times: it ends, and what they hold is what they held. Both hold for each cut
whose operations run in microbatch order when they do for its counts of F and of backwards, which is what is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

from pipedsl.program import Kind
from verify.search.model import fits, model_of, run
from verify.search.problem import Operation, Orders, Problem, Strand
from verify.search.solve import DEFAULT, Budget, NothingFound, Solution, Step, solve

Name = tuple[Kind, int]

CUTS = 24  # times at which a cut is tried, for each period
MOST_PERIODS = 16  # microbatches that a part is long at most
RUN = 500_000  # operations that all comparisons of parts together may run, about


@dataclass(frozen=True)
class Repeat:
    """A part of each rank's order that may run more often, `period` microbatches of every kind and stage.

    In the order of rank r it stands at `first[r]`, is `length[r]` operations long, and comes `rounds[r]` times in
    succession. `slope`: how much later all ends for each microbatch more, in the file's unit of time.
    """

    problem: Problem
    orders: Orders
    period: int
    first: tuple[int, ...]
    length: tuple[int, ...]
    rounds: tuple[int, ...]
    slope: Fraction

    def longer(self, rounds: int) -> tuple[Problem, Orders]:
        """The orders with the part run `rounds` times more, and the problem that they answer."""
        return _longer(self.problem, self.orders, self.period, self.first, rounds)


@dataclass(frozen=True)
class Repeating:
    """A solution, and which part of it may run more often."""

    solution: Solution
    repeat: Repeat


def repeat_of(problem: Problem, orders: Orders) -> Repeat | None:
    """The part that costs the least for each microbatch more, the shortest of those; None where there is no such part.

    `orders` are an answer to the problem. None too where some stage does not run in microbatch order.
    """
    return next(iter(repeats_of(problem, orders)), None)


def repeats_of(problem: Problem, orders: Orders) -> list[Repeat]:
    """All such parts, the best first."""
    found: list[tuple[Fraction, int, tuple[int, ...]]] = []
    left = RUN
    for period, first in _parts(problem, orders):
        left -= 2 * problem.operations
        slope = _slope(problem, orders, period, first)
        if slope is not None:
            found.append((slope, period, first))
        if left < 0:
            break
    found.sort(key=lambda each: each[0])
    shown = [_shown(problem, orders, period, first, slope) for slope, period, first in found]
    return [each for at, each in enumerate(shown) if each not in shown[:at]]


def repeating(
    problem: Problem,
    *,
    budget: Budget = DEFAULT,
    seed: int = 0,
    progress: Callable[[Step], None] | None = None,
    start: Orders | None = None,
) -> Repeating | None:
    """The best orders found of those that have a part that may run more often, None where none was found.

    Raises what `solve` raises.
    """
    accept = partial(_has_part, problem)
    try:
        solution = solve(problem, budget=budget, seed=seed, progress=progress, start=start, accept=accept)
    except NothingFound:
        return None
    repeat = repeat_of(problem, solution.orders)
    return None if repeat is None else Repeating(solution, repeat)


def _has_part(problem: Problem, orders: Orders) -> bool:
    return next(_parts(problem, orders), None) is not None


def _in_turn(problem: Problem, orders: Orders) -> bool:
    """Whether each kind that a stage has runs for all microbatches, in their order."""
    for order in orders:
        count: dict[Name, int] = {}
        for kind, stage, microbatch in order:
            if microbatch != count.get((kind, stage), 0):
                return False
            count[kind, stage] = microbatch + 1
        if any(value != problem.microbatches for value in count.values()):
            return False
    return problem.microbatches > 0


def _parts(problem: Problem, orders: Orders) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Periods, and where a part begins in each rank's order that leads from one possible cut to another."""
    if not _in_turn(problem, orders):
        return
    model = model_of(replace(problem, strands=_fixed(orders), fences=()))
    rows = model.rows(orders)
    found = run(model, rows)
    if found is None:
        return
    for period in range(1, min(MOST_PERIODS, problem.microbatches) + 1):
        windows = [_windows(order, period) for order in orders]
        if any(order and not items for order, items in zip(rows, windows, strict=True)):
            continue
        seen: set[tuple[int, ...]] = set()
        for at in range(CUTS):
            time = found.value * at / CUTS
            begin = [
                next((k for k, (first, _) in enumerate(items) if found.start[order[first]] >= time), len(items))
                for order, items in zip(rows, windows, strict=True)
            ]
            cut = _possible(problem, windows, begin)
            if cut is None:
                break
            first = tuple(items[k][0] if items else 0 for items, k in zip(windows, cut, strict=True))
            if first not in seen:
                seen.add(first)
                yield period, first


def _windows(order: Sequence[Operation], period: int) -> list[tuple[int, dict[Name, int]]]:
    """Each stretch of an order that has `period` of each kind and stage: where it begins, and how many came before."""
    names = _names(order)
    before = dict.fromkeys(names, 0)
    inside = dict.fromkeys(names, 0)
    length = period * len(before)
    wrong = len(before)
    found = []
    for at, name in enumerate(names):
        wrong += (inside[name] == period) - (inside[name] + 1 == period)
        inside[name] += 1
        if at >= length:
            old = names[at - length]
            wrong += (inside[old] == period) - (inside[old] - 1 == period)
            inside[old] -= 1
            before[old] += 1
        if not wrong:
            found.append((at + 1 - length, dict(before)))
    return found


def _possible(problem: Problem, windows: list[list[tuple[int, dict[Name, int]]]], begin: list[int]) -> list[int] | None:
    """The first windows from `begin` on whose beginnings are a possible cut; None where there are none.

    A rank that is not far enough for another moves on to its next window. Each must, so what is found is the earliest.
    """
    cut = list(begin)
    if any(k == len(items) and items for k, items in zip(cut, windows, strict=True)):
        return None
    backward = {
        stage: kind for items in windows for kind, stage in (items[0][1] if items else ()) if kind in (Kind.B, Kind.I)
    }
    needs = []
    for s, (here, there) in enumerate(pairwise(problem.placement)):
        if (s + 1) % problem.depth == 0:
            continue
        needs.append((here, (Kind.F, s), there, (Kind.F, s + 1)))
        needs.append((there, (backward[s + 1], s + 1), here, (backward[s], s)))
    moved = True
    while moved:
        moved = False
        for giver, given, taker, taken in needs:
            wanted = windows[taker][cut[taker]][1][taken]
            while windows[giver][cut[giver]][1][given] < wanted:
                cut[giver] += 1
                moved = True
                if cut[giver] == len(windows[giver]):
                    return None
    return cut


def _names(order: Sequence[Operation]) -> list[Name]:
    return [(operation.kind, operation.stage) for operation in order]


def _fixed(orders: Orders) -> tuple[tuple[Strand, ...], ...]:
    """Strands that leave nothing open."""
    return tuple((order,) if order else () for order in orders)


def _longer(problem: Problem, orders: Orders, period: int, first: Sequence[int], rounds: int) -> tuple[Problem, Orders]:
    longer = []
    for order, at in zip(orders, first, strict=True):
        names = _names(order)
        size = period * len(set(names))
        count: Counter[Name] = Counter()
        counted = []
        for kind, stage in names[:at] + names[at : at + size] * (rounds + 1) + names[at + size :]:
            counted.append(Operation(kind, stage, count[kind, stage]))
            count[kind, stage] += 1
        longer.append(tuple(counted))
    microbatches = problem.microbatches + period * rounds
    strands = _fixed(tuple(longer))
    return replace(problem, microbatches=microbatches, strands=strands, fences=()), tuple(longer)


def _slope(problem: Problem, orders: Orders, period: int, first: Sequence[int]) -> Fraction | None:
    """How much later all ends for a microbatch more. None where the longer orders are wrong, which should not be."""
    rounds = -(-problem.ranks // period)
    values = []
    for times in (rounds, 2 * rounds):
        longer = model_of(_longer(problem, orders, period, first, times)[0])
        rows = [[row for a, b in pairs for row in range(a, b)] for pairs in longer.strands]
        found = run(longer, rows)
        if found is None or not fits(longer, rows):
            return None
        values.append(found.value)
    return (values[1] - values[0]) * problem.time_unit / (rounds * period)


def _shown(problem: Problem, orders: Orders, period: int, first: Sequence[int], slope: Fraction) -> Repeat:
    """The part as early as it can be shown to begin, and how often it comes from there."""
    begins, lengths, rounds = [], [], []
    for order, at in zip(orders, first, strict=True):
        names = _names(order)
        size = period * len(set(names))
        while at and names[at - 1] == names[at - 1 + size]:
            at -= 1
        times = 0
        while size and names[at + times * size : at + (times + 1) * size] == names[at : at + size]:
            times += 1
        begins.append(at)
        lengths.append(size)
        rounds.append(times)
    return Repeat(problem, orders, period, tuple(begins), tuple(lengths), tuple(rounds), slope)
