"""The values that the largest of several sums can have: each is a fixed part and a whole number of units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from pipedsl.program import Ints
from verify.search.problem import Problem

MOST_LISTED = 50_000
"""Sums in either of two lists."""

_FAR = 1 << 60
"""More than any size that is compared here."""


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


@dataclass(frozen=True, eq=False)
class Holdings:
    """Those alone that a rank can hold, of which each is a sum of two: of one list and of another.

    `ranks`: the fixed part, and the two lists in whole units, in their order. Some sums may be more than can be held.
    """

    ranks: tuple[tuple[Fraction, Ints, Ints], ...]
    unit: Fraction

    def between(self, low: Fraction, high: Fraction) -> Fraction | None:
        """One that is larger than `low` and smaller than `high`, near the middle; None for none."""
        middle = (low + high) / 2
        below = [value for each in self.ranks if (value := self._next(*each, middle, up=False)) is not None]
        above = [value for each in self.ranks if (value := self._next(*each, low, up=True)) is not None]
        found = max((value for value in below if value > low), default=min(above, default=high))
        return found if found < high else None

    def _next(self, part: Fraction, one: Ints, other: Ints, value: Fraction, *, up: bool) -> Fraction | None:
        """Of one rank the smallest that is larger than a value, or the largest that is no larger; None for none."""
        most = min(max(floor((value - part) / self.unit), -1), _FAR)
        at = np.searchsorted(other, most - one, "right") - (not up)
        there = (at >= 0) & (at < len(other))
        if not there.any():
            return None
        sums = one[there] + other[at[there]]
        return part + int(sums.min() if up else sums.max()) * self.unit


def holdings(problem: Problem, fixed: Sequence[Fraction | None]) -> Holdings | None:
    """What any rank can hold, and a fixed part of each (None: of that one nothing); None where half of it is too much.

    Of each stage there are up to so many whole activations, and so many that wait for W, as microbatches.
    """
    found = []
    for part, alike in dict.fromkeys(
        zip(fixed, (tuple(sorted(each.items())) for each in _alike(problem)), strict=True)
    ):
        if part is None:
            continue
        halves: list[list[int]] = [[0], [0]]
        for size, count in ((size, count) for sizes, count in alike for size in set(sizes) if size):
            halves.sort(key=len)
            if len(halves[0]) * (count + 1) > MOST_LISTED:
                return None
            halves[0] = sorted({x + n * size for x in halves[0] for n in range(count + 1)})
        if halves[0][-1] + halves[1][-1] >= _FAR:
            return None
        found.append((part, np.array(halves[0], np.int64), np.array(halves[1], np.int64)))
    return Holdings(tuple(found), problem.size_unit) if found else None


def _alike(problem: Problem) -> list[dict[tuple[int, int], int]]:
    """Per rank the sizes of its stages, whole and what W holds; and how many microbatches there are with each."""
    found = []
    for chains in problem.chains:
        sizes: dict[tuple[int, int], int] = {}
        for stage in (stage for stages in chains for stage in stages):
            size = problem.activation[stage], problem.held_by_w[stage]
            sizes[size] = sizes.get(size, 0) + problem.microbatches
        found.append(sizes)
    return found
