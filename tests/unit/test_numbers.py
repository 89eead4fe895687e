"""Exact numbers for people and for programs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipedsl.render.numbers import json_exact, json_number, number, per_rank, percent, size

HUGE = Fraction(10**5000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(33), "33"),
        (Fraction(-7, 2), "-7/2"),
        (Fraction(1, 10_001), "~9.999e-05"),
        (Fraction(10**20), "~1e+20"),
        (HUGE, "~inf"),
    ],
)
def test_number(value: Fraction, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(Fraction(3, 11), "3/11 = 27.3 %"), (Fraction(0), "0.0 %"), (Fraction(1, 10_001), "0.0 %")],
)
def test_percent(value: Fraction, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 29, "1.5 GiB"),
        (80 << 30, "80 GiB"),
        (1 << 70, "1.049e+06 PiB"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert size(Fraction(value)) == text


def test_per_rank() -> None:
    assert per_rank([Fraction(4)]) == "4"
    assert per_rank([Fraction(4)] * 64) == "4 on every rank"
    assert per_rank([Fraction(1 << 30), Fraction(1 << 29)], in_bytes=True) == "1 GiB, 512 MiB"
    assert per_rank([Fraction(each) for each in (1, 9, 3, 4, 5)], most=4) == "1 9 ... 4 5 (most: 9 on rank 1)"


def test_json() -> None:
    assert (json_number(Fraction(3)), json_number(Fraction(1, 4))) == (3, 0.25)
    assert isinstance(json_number(Fraction(3)), int)
    assert json_exact(Fraction(3, 11)) == "3/11"
    assert (json_number(HUGE), json_exact(HUGE)) == (None, None)
