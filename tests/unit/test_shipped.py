"""The shipped schedules are verified over the grid, and their known values hold."""

from __future__ import annotations

from fractions import Fraction

import pytest
from closed import closed

import pipedsl
from pipedsl.api import Result

NAMES = closed()


def admitted(name: str, p: int) -> list[dict[str, int]]:
    """The grid of microbatch counts for `p` ranks, as far as the schedule admits them."""
    microbatches = sorted({1, p - 1, p, p + 1, 2 * p, 3 * p + 1, 8 * p} - {0})
    match name:
        case "interleaved_1f1b":
            return [{"p": p, "m": m, "v": v} for m in microbatches if m % p == 0 for v in (1, 2, 3)]
        case "zb_h1":
            return [{"p": p, "m": m} for m in microbatches if m >= p]
        case "zb_h2":
            return [{"p": p, "m": m} for m in microbatches if m >= 2 * p - 1]
        case _:
            return [{"p": p, "m": m} for m in microbatches]


def verified(name: str, **params: int) -> Result:
    result = pipedsl.verify(pipedsl.load(name), params)
    assert result.verdict is pipedsl.Verdict.VERIFIED, [d.message for d in result.diagnostics]
    assert result.metrics is not None
    return result


@pytest.mark.parametrize("p", [1, *range(2, 9), 16, 64])
@pytest.mark.parametrize("name", NAMES)
def test_verified_with_all_claims(name: str, p: int) -> None:
    grid = admitted(name, p)
    assert grid
    for params in grid:
        result = verified(name, **params)
        assert result.claims >= 3
        assert set(result.report.transports.values()) == {"safe"}


@pytest.mark.parametrize("name", ["interleaved_1f1b", "zb_h1", "zb_h2"])
def test_others_are_refused_with_the_reason(name: str) -> None:
    result = pipedsl.verify(pipedsl.load(name), {"p": 4, "m": 3})
    assert [d.code for d in result.diagnostics] == ["PD112"]


@pytest.mark.parametrize(
    ("name", "makespan", "bubble", "peaks"),
    [
        ("naive", 96, Fraction(3, 4), [1, 1, 1, 1]),
        ("gpipe", 33, Fraction(3, 11), [8, 8, 8, 8]),
        ("1f1b", 33, Fraction(3, 11), [4, 3, 2, 1]),
        ("zb_h1", 27, Fraction(1, 9), [4, 4, 4, 4]),
        ("zb_h2", 27, Fraction(1, 9), [7, 7, 7, 7]),
    ],
)
def test_four_ranks_eight_microbatches(name: str, makespan: int, bubble: Fraction, peaks: list[int]) -> None:
    metrics = verified(name, p=4, m=8).metrics
    assert metrics is not None
    assert (metrics.makespan, metrics.bubble, list(metrics.peak_activations)) == (makespan, bubble, peaks)


def test_bubble_of_1f1b_as_published() -> None:
    found = [verified("1f1b", p=4, m=m).metrics for m in (4, 8, 16, 32)]
    assert [f"{float(metrics.bubble):.1%}" for metrics in found if metrics] == ["42.9%", "27.3%", "15.8%", "8.6%"]


@pytest.mark.parametrize(("v", "m"), [(1, 8), (2, 8), (4, 4), (3, 32)])
def test_bubble_of_interleaving(v: int, m: int) -> None:
    metrics = verified("interleaved_1f1b", p=4, m=m, v=v).metrics
    assert metrics is not None
    assert metrics.bubble == Fraction(3, v * m + 3)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 7), (4, 20), (8, 64)])
def test_zb_h2_has_no_bubble_in_its_span(p: int, m: int) -> None:
    metrics = verified("zb_h2", p=p, m=m).metrics
    assert metrics is not None
    assert (metrics.span, metrics.span_bubble) == (3 * m, 0)
