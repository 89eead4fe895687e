"""Exact numbers as people and as JSON read them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

# Longer fractions are shown rounded: they say nothing to a reader.
READABLE_DENOMINATOR = 10_000
# Python refuses to write out integers of more than 4300 digits.
WRITABLE_BITS = 4_000

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: Fraction) -> str:
    """`33`, `67/2`; rounded and marked by `~` when exact it would be unreadable."""
    if value.denominator == 1 and abs(value.numerator) < 10**15:
        return str(value.numerator)
    if value.denominator <= READABLE_DENOMINATOR and abs(value) < 10**9:
        return str(value)
    rounded = approximate(value)
    return "~inf" if rounded is None else f"~{rounded:.6g}"


def percent(value: Fraction) -> str:
    """A share as an exact fraction and in percent: `3/11 = 27.3 %`."""
    share = f"{float(value * 100):.1f} %"
    return share if value.denominator == 1 or value.denominator > READABLE_DENOMINATOR else f"{value} = {share}"


def size(value: Fraction) -> str:
    """A number of bytes: `3 GiB`, `1.5 MiB`."""
    rounded, step = approximate(value), 0
    if rounded is None:
        return number(value)
    while abs(rounded) >= 1024 and step < len(UNITS) - 1:
        rounded, step = rounded / 1024, step + 1
    return f"{rounded:.4g} {UNITS[step]}"


def per_rank(values: Sequence[Fraction], in_bytes: bool = False, most: int = 16) -> str:
    """One value a rank, shortened in the middle; `4 on every rank` when they are equal."""
    texts = [size(value) if in_bytes else number(value) for value in values]
    separator = ", " if in_bytes else " "
    if len(texts) > 1 and sum(1 for _ in groupby(texts)) == 1:
        return f"{texts[0]} on every rank"
    if len(texts) <= most:
        return separator.join(texts)
    largest = max(range(len(values)), key=values.__getitem__)
    shown = [*texts[: most // 2], "...", *texts[-most // 2 :]]
    return f"{separator.join(shown)} (most: {texts[largest]} on rank {largest})"


def approximate(value: Fraction) -> float | None:
    """The nearest float; None beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return None


def json_number(value: Fraction) -> int | float | None:
    """An integer where the value is one, else the nearest float (None beyond its range)."""
    if value.denominator == 1 and value.numerator.bit_length() <= WRITABLE_BITS:
        return value.numerator
    return approximate(value)


def json_exact(value: Fraction) -> str | None:
    """`33`, `3/11`; None where it has thousands of digits."""
    writable = max(value.numerator.bit_length(), value.denominator.bit_length()) <= WRITABLE_BITS
    return str(value) if writable else None
