"""The values that the largest of several sums can have: each is a fixed part and a whole number of units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import floor


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
