"""Steady states of any costs: a few microbatches in a period as short as it can be, by z3.

Modulo scheduling (Rau 1994): every operation of some microbatches is given a start, no two of a rank meet modulo the
period, and what they need of each other holds as in a single run. So the same starts, one period later each time, are
an order of any number of microbatches. All conditions are differences of two starts, as the period is a number that is
tried. A microbatch counts as held from the start of F to the end of its W (or B), however little W holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from verify.search.model import Model, model_of
from verify.search.shorter import shorter
from verify.search.solver import UNITS, check, counted, new_solver

AHEAD = 2  # microbatches under way for every rank, at most, where no cap says less
MOST_CHOICES = 30_000  # places of one operation among those of another strand, in a formula
FINE = 4  # the first start and the last end are as near as so small a part of the longest operation


@dataclass(frozen=True, eq=False)
class Kernel:
    """`start[row]` of the operations of `few`, a model of few microbatches, that are run again every `period`."""

    few: Model
    period: int
    start: list[int]

    def unroll(self, model: Model, skipped: int = 0) -> list[list[int]]:
        """Orders of all microbatches, of which the first is run as number `skipped` of the few."""
        count = self.few.problem.microbatches
        orders = []
        for pairs, small in zip(model.strands, self.few.strands, strict=True):
            when = {}
            for (first, last), (begin, _) in zip(pairs, small, strict=True):
                for row in range(first, last):
                    periods, i = divmod(row - first + skipped, count)
                    when[row] = self.start[begin + i] + periods * self.period
            orders.append(sorted(when, key=lambda row: (when[row], row)))
        return orders


def few_microbatches(model: Model, count: int) -> Model | None:
    """The problem of a period; None where there is more than one stage on a rank, or orders are not fully open, or an
    operation takes no time, or it is too large for z3."""
    problem = model.problem
    if len(set(problem.placement)) < problem.stages or not all(model.duration):
        return None
    short = shorter(problem, count)
    few = None if short is None else model_of(short)
    if few is None or any(depth < 1 for depth in depths(few)):
        return None
    choices = sum(len(pairs) * count * depth for pairs, depth in zip(few.strands, depths(few), strict=True))
    return few if choices <= MOST_CHOICES else None


def depths(few: Model) -> list[int]:
    """How many microbatches each rank may have under way."""
    most = AHEAD * len(few.strands)
    found = []
    for pairs, room in zip(few.strands, few.room, strict=True):
        whole = max((few.take[row] for first, last in pairs for row in range(first, last)), default=0)
        found.append(most if room is None or not whole else min(most, room // whole))
    return found


class Periods:
    """The shortest period of some microbatches. `used`: z3's work so far, in about seconds."""

    def __init__(self, few: Model, work: float, stop: float, seed: int) -> None:
        self.few, self.most, self.stop, self.seed = few, int(work * UNITS), stop, seed
        self.units = 0
        self.duration = few.duration

    @property
    def used(self) -> float:
        return self.units / UNITS

    def shortest(self, longest: int) -> Kernel | None:
        """One of the shortest periods found that is no longer than `longest`, whose microbatches take little time each;
        None where none is found."""
        low = max(sum(self.duration[row] for row in range(pairs[0][0], pairs[-1][1])) for pairs in self.few.strands)
        best = self._ask(low) if low <= longest else None
        if best is None and low < longest:
            best = self._ask(longest)
        while best is not None and best.period - low > 1 and self.units < self.most:
            found = self._ask((low + best.period) // 2)
            if found is None:
                low = (low + best.period) // 2
            else:
                best = found
        return None if best is None else self._closer(best)

    def _closer(self, best: Kernel) -> Kernel:
        """The same period, with what a microbatch takes from its first start to its last end made short."""
        fine = max(1, max(self.duration) // FINE)
        low, high = 0, self._length(best)
        while high - low > fine and self.units < self.most:
            found = self._ask(best.period, (low + high) // 2)
            if found is None:
                low = (low + high) // 2
            else:
                best, high = found, self._length(found)
        return best

    def _length(self, kernel: Kernel) -> int:
        delay = self._delays(kernel.period)
        ends = [kernel.start[row] + self.duration[row] - delay[row] for row in range(len(self.few))]
        return max(ends) - min(at - late for at, late in zip(kernel.start, delay, strict=True))

    def _delays(self, period: int) -> list[int]:
        """When a row's microbatch is due, were they all as far from each other."""
        count = self.few.problem.microbatches
        return [(operation.microbatch * period) // count for operation in self.few.operations]

    def _ask(self, period: int, length: int | None = None) -> Kernel | None:
        import z3

        solver = new_solver(self.seed)
        solver.from_string("\n".join(self._formula(period, length)))
        answer = check(solver, self.most - self.units, self.stop)
        self.units += counted(solver) or 0
        if answer != z3.sat:
            return None
        model = solver.model()
        found = {declaration.name(): model[declaration] for declaration in model.decls()}
        return Kernel(self.few, period, [found[f"t{row}"].as_long() for row in range(len(self.few))])

    def _formula(self, period: int, length: int | None) -> Iterator[str]:
        few, duration = self.few, self.duration
        yield from (f"(declare-const t{row} Int)" for row in range(len(few)))
        yield "(declare-const origin Int)"

        def after(row: int, other: int, periods: int = 0, lag: int = 0) -> str:
            """`row`, so many periods later, starts no sooner than `lag` after the end of `other`."""
            return f"(>= (- t{row} t{other}) {_number(duration[other] + lag - periods * period)})"

        for row in range(len(few)):
            if few.local[row] >= 0:
                yield f"(assert {after(row, few.local[row])})"
            if few.upstream[row] >= 0:
                yield f"(assert {after(row, few.upstream[row], lag=few.lag[row])})"
        count = few.problem.microbatches
        for pairs, depth in zip(few.strands, depths(few), strict=True):
            for first, last in pairs:
                for row in range(first, last):
                    periods, i = divmod(row - first + 1, count)
                    yield f"(assert {after(first + i, row, periods)})"
            for (first, last), (begin, _) in combinations(pairs, 2):
                for row in range(first, last):
                    places = []
                    # The last one before it is of the microbatch so many earlier: no more than may be under way.
                    for ahead in range(1, depth + 1):
                        periods, i = divmod(row - first - ahead, count)
                        later, k = divmod(row - first - ahead + 1, count)
                        before = after(row, begin + i, -periods)
                        behind = after(begin + k, row, later)
                        places.append(f"(and {before} {behind})")
                    yield f"(assert (or false {' '.join(places)}))"
        if length is not None:
            for row, late in enumerate(self._delays(period)):
                yield f"(assert (>= (- t{row} origin) {_number(late)}))"
                yield f"(assert (<= (- t{row} origin) {_number(length + late - duration[row])}))"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


__all__ = ["Kernel", "Periods", "few_microbatches"]
