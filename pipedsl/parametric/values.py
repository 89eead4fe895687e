"""Values of expressions when m is open: m = period * q + residue, for every integer q from a start on.

A `Growing` value is a quotient of polynomials in q, plus a multiple of the round j of the loop around it. It has
Python's operators, so `pipedsl.evaluate` computes with it as with numbers. A comparison is decided for all q from some
size on (the threshold rises to it) and for every round of the loop; where rounds differ, the range is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from verify.forall import Linear, NeedsPeriod, Threshold

Coefficients = tuple[Fraction, ...]
"""Of a polynomial in q, lowest power first; no zero at the end. () is 0."""

MAX_DEGREE = 12


class Unanalysable(Exception):
    """No rule here says what the value is for all m. The string says why."""


class NeedsRounds(Exception):
    """The value depends on the round modulo `factor`: that many rounds must be taken as one."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        super().__init__(f"needs the round modulo {factor}")


class Split(Exception):
    """The answer changes at round `at`: the range must be split there."""

    def __init__(self, at: Linear) -> None:
        self.at = at
        super().__init__("the range must be split")


@dataclass
class Scope:
    """What decisions are made under: the sizes q, and the number of rounds of the loop around, if one grows."""

    threshold: Threshold
    rounds: Linear | None = None


@dataclass(frozen=True, eq=False)
class Growing:
    """`above(q) / below(q) + per_round * j`; not a constant. `below` is 1 where `per_round` is not 0."""

    scope: Scope
    above: Coefficients
    below: Coefficients
    per_round: Fraction

    def __str__(self) -> str:
        return "an expression in m"

    # ---------------------------------------------------------------- ring

    def __add__(self, other: Any) -> Any:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        rounds = self.per_round + right.per_round
        if self.below == right.below:
            return self._make(_add(self.above, right.above), self.below, rounds)
        above = _add(_multiply(self.above, right.below), _multiply(right.above, self.below))
        return self._make(above, _multiply(self.below, right.below), rounds)

    def __neg__(self) -> Growing:
        return Growing(self.scope, _scale(self.above, Fraction(-1)), self.below, -self.per_round)

    def __sub__(self, other: Any) -> Any:
        right = self._lift(other)
        return NotImplemented if right is None else self + -right

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        for one, factor in ((self, right), (right, self)):
            if one.per_round:
                if factor.per_round or factor.below != _ONE or len(factor.above) > 1:
                    raise Unanalysable("it multiplies two values that grow")
                by = factor.above[0] if factor.above else Fraction(0)
                return self._make(_scale(one.above, by), one.below, one.per_round * by)
        return self._make(_multiply(self.above, right.above), _multiply(self.below, right.below), Fraction(0))

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        if right.per_round:
            raise Unanalysable("it divides by a value that grows with the loop")
        if not right.above:
            raise ZeroDivisionError
        if self.per_round and (len(right.above) > 1 or right.below != _ONE):
            raise Unanalysable("it divides two values that grow")
        if self.per_round:
            return self * (1 / right.above[0])
        _past_roots(right.above, self.scope.threshold)
        above, below = _multiply(self.above, right.below), _multiply(self.below, right.above)
        return self._make(above, below, Fraction(0))

    def __rtruediv__(self, other: Any) -> Any:
        left = self._lift(other)
        return NotImplemented if left is None else left / self

    # -------------------------------------------------------------- integers

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Growing):
            return self._divide_by_line(other)
        if isinstance(other, bool) or not isinstance(other, int | Fraction):
            return NotImplemented
        if other == 0:
            raise ZeroDivisionError
        return self._floor(Fraction(other))

    def __rfloordiv__(self, other: Any) -> Any:
        left = self._lift(other)
        return NotImplemented if left is None else left._divide_by_line(self)

    def __mod__(self, other: Any) -> Any:
        quotient = self.__floordiv__(other)
        return NotImplemented if quotient is NotImplemented else self - quotient * other

    def __rmod__(self, other: Any) -> Any:
        return other - self.__rfloordiv__(other) * self

    def __floor__(self) -> Any:
        return self._floor(Fraction(1))

    def __ceil__(self) -> Any:
        return -(-self)._floor(Fraction(1))

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def _floor(self, divisor: Fraction) -> Any:
        """floor(self / divisor): a line again where the slopes are divisible."""
        slope, constant = self._line("it rounds")
        per_round, slope, constant = self.per_round / divisor, slope / divisor, constant / divisor
        if per_round.denominator > 1:
            raise NeedsRounds(per_round.denominator)
        if slope.denominator > 1:
            raise NeedsPeriod(slope.denominator)
        return self._make(_trim((Fraction(constant // 1), slope)), _ONE, per_round)

    def _divide_by_line(self, other: Growing) -> Any:
        """floor(self / other) for lines in q, where it is the same from some q on."""
        if other.per_round:
            raise Unanalysable("it divides by a value that grows with the loop")
        slope, constant = self._line("it rounds a quotient of values that grow")
        below_slope, below_constant = other._line("it rounds a quotient of values that grow")
        if below_slope == 0 and below_constant:
            return self._floor(below_constant)
        if below_slope < 0:
            return (-self)._divide_by_line(-other)
        other > 0  # noqa: B015  (raises the threshold past the root)
        quotient = (slope / below_slope) // 1
        first = self._make(_trim((constant, slope)), _ONE, Fraction(0))
        if first - quotient * other < 0:
            quotient -= 1
        if not (self >= quotient * other and self < (quotient + 1) * other):
            raise Unanalysable("it rounds a quotient of values that grow")
        return int(quotient)

    def _line(self, why: str) -> tuple[Fraction, Fraction]:
        """Slope and constant in q, without the part in j."""
        if self.below != _ONE or len(self.above) > 2:
            raise Unanalysable(why)
        padded = (*self.above, Fraction(0), Fraction(0))
        return padded[1], padded[0]

    def fractional_line(self, why: str) -> Linear:
        """The line in q that this is; Unanalysable where it is none."""
        if self.per_round:
            raise Unanalysable(why)
        return Linear(*self._line(why))

    def plane(self, why: str) -> tuple[int, Linear]:
        """The integers that this is: multiple of the round, and line in q. ValueError where they are not integers."""
        slope, constant = self._line(why)
        if self.per_round.denominator > 1:
            raise NeedsRounds(self.per_round.denominator)
        if slope.denominator > 1:
            raise NeedsPeriod(slope.denominator)
        if constant.denominator > 1:
            raise ValueError("not an integer")
        return int(self.per_round), Linear(int(slope), int(constant))

    # ------------------------------------------------------------ comparisons

    def __lt__(self, other: Any) -> bool:
        return not self._never_negative(self, other)

    def __ge__(self, other: Any) -> bool:
        return self._never_negative(self, other)

    def __gt__(self, other: Any) -> bool:
        return not self._never_negative(other, self)

    def __le__(self, other: Any) -> bool:
        return self._never_negative(other, self)

    def __eq__(self, other: object) -> bool:
        return self._never_negative(self, other) and self._never_negative(other, self)

    __hash__ = None  # type: ignore[assignment]

    def _never_negative(self, left: Any, right: Any) -> bool:
        """Whether left - right >= 0, for all q from the threshold on and all rounds. Raises Split."""
        difference = left - right
        if not isinstance(difference, Growing):
            return bool(difference >= 0)
        if not difference.per_round:
            below = _sign(difference.below, self.scope.threshold)
            return _sign(_scale(difference.above, Fraction(below)), self.scope.threshold) >= 0
        return difference._in_every_round()

    def _in_every_round(self) -> bool:
        rounds, threshold = self.scope.rounds, self.scope.threshold
        if rounds is None:
            raise Unanalysable("it needs the round of a loop that is over")
        slope, constant = self._line("it compares values that grow")
        scale = lcm(self.per_round.denominator, slope.denominator, constant.denominator)
        step, line = int(self.per_round * scale), Linear(int(slope * scale), int(constant * scale))
        first = threshold.never_negative(line)
        last = threshold.never_negative(line + rounds.plus(-1).times(step))
        if first is last:
            return first
        # Rising: the first j with line + step * j >= 0. Falling: the first one with it < 0.
        distance = line.times(-1) if step > 0 else line.plus(1)
        size = abs(step)
        if int(distance.slope) % size:
            raise NeedsPeriod(size // gcd(int(distance.slope), size))
        raise Split(Linear(int(distance.slope) // size, -(-int(distance.constant) // size)))

    # ------------------------------------------------------------------ inner

    def _lift(self, other: Any) -> Growing | None:
        if isinstance(other, Growing):
            return other
        if isinstance(other, bool) or not isinstance(other, int | Fraction):
            return None
        return Growing(self.scope, _trim((Fraction(other),)), _ONE, Fraction(0))

    def _make(self, above: Coefficients, below: Coefficients, per_round: Fraction) -> Any:
        return make(self.scope, above, below, per_round)


_ONE: Coefficients = (Fraction(1),)


def make(scope: Scope, above: Sequence[Fraction], below: Coefficients, per_round: Fraction) -> Any:
    """The value; an int or Fraction where it is constant, as the language has it."""
    above = _trim(above)
    if len(below) > 1:
        above, below = _reduced(above, below)
    if len(below) == 1:
        above, below = _scale(above, 1 / below[0]), _ONE
    if max(len(above), len(below)) > MAX_DEGREE:
        raise Unanalysable("its degree in m is too high")
    if per_round and below != _ONE:
        raise Unanalysable("it divides by a value that grows")
    if per_round or len(above) > 1 or len(below) > 1:
        return Growing(scope, above, below, per_round)
    value = above[0] if above else Fraction(0)
    return value.numerator if value.denominator == 1 else value


def of_line(scope: Scope, line: Linear, per_round: int = 0) -> Any:
    """The value of a line in q, plus a multiple of the round."""
    return make(scope, (Fraction(line.constant), Fraction(line.slope)), _ONE, Fraction(per_round))


def _trim(values: Sequence[Fraction]) -> Coefficients:
    end = len(values)
    while end and not values[end - 1]:
        end -= 1
    return tuple(values[:end])


def _add(left: Coefficients, right: Coefficients) -> Coefficients:
    length = max(len(left), len(right))
    zero = Fraction(0)
    return _trim([(left[i] if i < len(left) else zero) + (right[i] if i < len(right) else zero) for i in range(length)])


def _scale(values: Coefficients, factor: Fraction) -> Coefficients:
    return _trim([value * factor for value in values])


def _multiply(left: Coefficients, right: Coefficients) -> Coefficients:
    if not left or not right:
        return ()
    found = [Fraction(0)] * (len(left) + len(right) - 1)
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            found[i + j] += x * y
    return _trim(found)


def _reduced(above: Coefficients, below: Coefficients) -> tuple[Coefficients, Coefficients]:
    """The quotient in lowest terms, so that one that is a polynomial is seen to be."""
    common, rest = above, below
    while rest:
        common, rest = rest, _divided(common, rest)[1]
    if not above:
        return (), _ONE
    return _divided(above, common)[0], _divided(below, common)[0]


def _divided(left: Coefficients, right: Coefficients) -> tuple[Coefficients, Coefficients]:
    """Quotient and remainder of polynomials; `right` is not 0."""
    rest = list(left)
    quotient = [Fraction(0)] * max(len(left) - len(right) + 1, 0)
    for place in range(len(quotient) - 1, -1, -1):
        factor = rest[place + len(right) - 1] / right[-1]
        quotient[place] = factor
        for i, value in enumerate(right):
            rest[place + i] -= factor * value
    return _trim(quotient), _trim(rest)


def _sign(values: Coefficients, threshold: Threshold) -> int:
    """The sign of a polynomial from the threshold on, which rises past its roots."""
    if not values:
        return 0
    _past_roots(values, threshold)
    return 1 if values[-1] > 0 else -1


def _past_roots(values: Coefficients, threshold: Threshold) -> None:
    """Raise the threshold to a size from which the polynomial has its final sign and is not 0."""
    if len(values) == 2:
        threshold.raise_to((-values[0] / values[1]) // 1 + 1)
    elif len(values) > 2:
        # Cauchy's bound on the absolute value of all roots.
        bound = 1 + max(abs(value / values[-1]) for value in values[:-1])
        threshold.raise_to(bound // 1 + 1)
