"""The values that the largest of several sums can have: each is a fixed part and a whole number of units."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from verify.search.problem import Problem

MOST_LISTED = 50_000


@dataclass(frozen=True)
class Levels:
    """`parts`: what is left of each fixed part without its whole units."""

    parts: tuple[Fraction, ...]
    unit: Fraction

    def at_most(self, value: Fraction) -> Fraction:
        """The largest that is no larger."""
        return max(part + floor((value - part) / self.unit) * self.unit for part in self.parts)

    def above(self, value: Fraction) -> Fraction:
        """The smallest that is larger."""
        return min(part + (floor((value - part) / self.unit) + 1) * self.unit for part in self.parts)

    def between(self, low: Fraction, high: Fraction) -> Fraction | None:
        """One that is larger than `low` and smaller than `high`, in the middle if there are many; None for none."""
        middle = self.at_most((low + high) / 2)
        found = middle if middle > low else self.above(low)
        return found if found < high else None


def levels_of(fixed: Iterable[Fraction], unit: Fraction) -> Levels:
    return Levels(tuple(sorted({part % unit for part in fixed} or {Fraction(0)})), unit)


@dataclass(frozen=True)
class Listed:
    """The same where there are so few that they can be listed: `values`, in their order."""

    values: tuple[Fraction, ...]

    def between(self, low: Fraction, high: Fraction) -> Fraction | None:
        first, past = bisect_right(self.values, low), bisect_left(self.values, high)
        return self.values[(first + past) // 2] if first < past else None


def listed(problem: Problem, fixed: Sequence[Fraction | None]) -> Listed | None:
    """What any rank can hold, and a fixed part of each (None: of that one nothing); None where that is too much.

    Of each stage there are so many whole activations and so many that wait for W, together no more than microbatches.
    """
    found: set[Fraction] = set()
    for part, chains in zip(fixed, problem.chains, strict=True):
        if part is None:
            continue
        sums = {0}
        for stage in (stage for stages in chains for stage in stages):
            whole, held = problem.activation[stage], problem.held_by_w[stage]
            some = range(problem.microbatches + 1)
            if len(sums) * len(some) ** 2 > 2 * MOST_LISTED:
                return None
            own = {a * whole + w * held for a in some for w in some[: problem.microbatches - a + 1]}
            sums = {x + y for x in sums for y in own}
        found |= {part + each * problem.size_unit for each in sums}
        if len(found) > MOST_LISTED:
            return None
    return Listed(tuple(sorted(found)))
