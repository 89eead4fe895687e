"""Numbers that grow with one size q: exact lines in q, and the size from which what was decided about them holds.

Everything proved "for all m" is proved on a residue class m = period * q + residue, for all integers q >= a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd

Number = int | Fraction


class NeedsPeriod(Exception):
    """The class must be split: what was asked depends on q modulo `factor`. `where`: what whoever asked says."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.where: object = None
        super().__init__(f"needs q modulo {factor}")


class TooLate(Exception):
    """A decision holds only from sizes on that are over the limit."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`slope * q + constant`."""

    slope: Number
    constant: Number

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.slope + other.slope, self.constant + other.constant)

    def __sub__(self, other: Linear) -> Linear:
        return Linear(self.slope - other.slope, self.constant - other.constant)

    def times(self, factor: Number) -> Linear:
        return Linear(self.slope * factor, self.constant * factor)

    def plus(self, number: Number) -> Linear:
        return Linear(self.slope, self.constant + number)

    def at(self, size: int) -> Number:
        return self.slope * size + self.constant

    @property
    def is_zero(self) -> bool:
        return self.slope == 0 and self.constant == 0

    @property
    def grows(self) -> bool:
        return self.slope > 0


ZERO = Linear(0, 0)
ONE = Linear(0, 1)


@dataclass
class Threshold:
    """Collects decisions: each method's answer holds for every integer q >= `start`, which it raises where needed.

    Raises TooLate when `start` would pass `limit`.
    """

    start: int
    limit: int

    def raise_to(self, size: int) -> None:
        if size > self.limit:
            raise TooLate
        self.start = max(self.start, size)

    def never_negative(self, line: Linear) -> bool:
        """Whether the line is >= 0 from `start` on; if not, it is < 0 from `start` on."""
        if line.slope == 0:
            return line.constant >= 0
        root = Fraction(-line.constant) / line.slope
        if line.slope > 0:
            self.raise_to(-(-root.numerator // root.denominator))
            return True
        self.raise_to(root.numerator // root.denominator + 1)
        return False

    def largest(self, lines: list[Linear]) -> Linear:
        """The one that is the largest from `start` on."""
        best = lines[0]
        for line in lines[1:]:
            if not self.never_negative(best - line):
                best = line
        return best

    def smallest(self, lines: list[Linear]) -> Linear:
        """The one that is the smallest from `start` on."""
        return self.largest([line.times(-1) for line in lines]).times(-1)


def floor_divided(line: Linear, divisor: int) -> Linear:
    """floor(line / divisor) for divisor > 0 and a line of integers. Raises NeedsPeriod where that is no line."""
    slope, constant = whole(line.slope), whole(line.constant)
    if slope % divisor:
        raise NeedsPeriod(divisor // gcd(slope, divisor))
    return Linear(slope // divisor, constant // divisor)


def whole(number: Number) -> int:
    """An integer that may come as a Fraction."""
    if isinstance(number, int):
        return number
    if number.denominator != 1:
        raise ValueError(f"{number} is not an integer")
    return number.numerator
