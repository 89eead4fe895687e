"""Rational functions in costs, exact: what an expression of a claim is when its costs are left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

Number = int | Fraction
Monomial = tuple[int, ...]
"""The exponent of each variable."""

MAX_TERMS = 400
"""Terms of a polynomial beyond which no proof is tried."""


class Undecidable(Exception):
    """The expression is no rational function in the costs (`max(F, B)`), or too large a one."""


@dataclass(frozen=True)
class Polynomial:
    """`terms`: the coefficient of each monomial, none of them zero. What is combined has the same variables."""

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def of(terms: Mapping[Monomial, Fraction]) -> Polynomial:
        if len(terms) > MAX_TERMS:
            raise Undecidable("it has too many terms")
        return Polynomial({monomial: value for monomial, value in terms.items() if value})

    @staticmethod
    def constant(value: Number, variables: int) -> Polynomial:
        return Polynomial.of({(0,) * variables: Fraction(value)})

    @staticmethod
    def linear(coefficients: tuple[Fraction, ...], constant: Fraction) -> Polynomial:
        """`constant + sum(coefficients[k] * x_k)`."""
        count = len(coefficients)
        units = {tuple(int(i == k) for i in range(count)): value for k, value in enumerate(coefficients)}
        return Polynomial.of({(0,) * count: constant, **units})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + value
        return Polynomial.of(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({monomial: -value for monomial, value in self.terms.items()})

    def __mul__(self, other: Polynomial) -> Polynomial:
        if len(self.terms) * len(other.terms) > MAX_TERMS**2:
            raise Undecidable("it has too many terms")
        terms: dict[Monomial, Fraction] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                monomial = tuple(i + j for i, j in zip(a, b, strict=True))
                terms[monomial] = terms.get(monomial, Fraction(0)) + x * y
        return Polynomial.of(terms)

    def affine(self) -> tuple[tuple[Fraction, ...], Fraction] | None:
        """The coefficients and the constant, where no term is of a higher degree. The zero polynomial has none."""
        if not self.terms:
            return None
        count = len(next(iter(self.terms)))
        coefficients, constant = [Fraction(0)] * count, Fraction(0)
        for monomial, value in self.terms.items():
            degree = sum(monomial)
            if degree > 1:
                return None
            if degree == 0:
                constant = value
            else:
                coefficients[monomial.index(1)] = value
        return tuple(coefficients), constant

    def never_negative(self) -> bool:
        """Sufficient: no coefficient is negative, so the value is >= 0 wherever all variables are."""
        return all(value > 0 for value in self.terms.values())

    def positive(self, origin: bool) -> bool:
        """Sufficient: > 0 wherever all variables are >= 0; with `origin` False, but not all of them 0."""
        if not self.terms or not self.never_negative():
            return False
        count = len(next(iter(self.terms)))
        powers = {max(range(count), key=monomial.__getitem__) for monomial in self.terms if _one_variable(monomial)}
        return (0,) * count in self.terms or (not origin and len(powers) == count)


def _one_variable(monomial: Monomial) -> bool:
    return sum(exponent > 0 for exponent in monomial) == 1


@dataclass(frozen=True)
class Ratio:
    """`numerator / denominator`. Has Python's operators, with numbers too; comparisons and rounding are Undecidable."""

    numerator: Polynomial
    denominator: Polynomial

    @property
    def variables(self) -> int:
        return len(next(iter(self.denominator.terms)))

    def lift(self, other: Any) -> Ratio:
        if isinstance(other, Ratio):
            return other
        if isinstance(other, bool):
            self._undecidable()
        one = Polynomial.constant(1, self.variables)
        return Ratio(Polynomial.constant(other, self.variables), one)

    def __add__(self, other: Any) -> Ratio:
        right = self.lift(other)
        if self.denominator.terms == right.denominator.terms:
            return Ratio(self.numerator + right.numerator, self.denominator)
        numerator = self.numerator * right.denominator + right.numerator * self.denominator
        return Ratio(numerator, self.denominator * right.denominator)

    def __radd__(self, other: Any) -> Ratio:
        return self.__add__(other)

    def __neg__(self) -> Ratio:
        return Ratio(-self.numerator, self.denominator)

    def __sub__(self, other: Any) -> Ratio:
        return self + -self.lift(other)

    def __rsub__(self, other: Any) -> Ratio:
        return self.lift(other).__sub__(self)

    def __mul__(self, other: Any) -> Ratio:
        right = self.lift(other)
        return Ratio(self.numerator * right.numerator, self.denominator * right.denominator)

    def __rmul__(self, other: Any) -> Ratio:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Ratio:
        right = self.lift(other)
        if not right.numerator.terms:
            raise ZeroDivisionError
        return Ratio(self.numerator * right.denominator, self.denominator * right.numerator)

    def __rtruediv__(self, other: Any) -> Ratio:
        return self.lift(other) / self

    def _undecidable(self, *_: Any) -> NoReturn:
        raise Undecidable("it compares or rounds costs")

    __lt__ = __le__ = __gt__ = __ge__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _undecidable
    __abs__ = __ceil__ = __floor__ = __bool__ = _undecidable

    def __eq__(self, other: object) -> bool:
        self._undecidable()

    __hash__ = None  # type: ignore[assignment]

    def affine(self) -> tuple[tuple[Fraction, ...], Fraction] | None:
        """The coefficients and the constant, where this is an affine form over a constant."""
        below = self.denominator.affine()
        if below is None or any(below[0]):
            return None
        above = self.numerator.affine() if self.numerator.terms else ((Fraction(0),) * self.variables, Fraction(0))
        if above is None:
            return None
        return tuple(value / below[1] for value in above[0]), above[1] / below[1]
