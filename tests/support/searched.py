"""Sketches as texts, and searches whose answers are held against what is written and verified."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import pipedsl
from pipedsl.api import parse_text
from pipedsl.expand import expand
from pipedsl.search_answer import SearchResult
from pipedsl.searching import search
from pipedsl.syntax import Schedule
from verify import Verdict

WORK = 5.0


def problem(body: str, items: str = "", stages: str = "p", place: str = "s -> s") -> Schedule:
    return parse_text(f"schedule x(p, m, cap = 2)\nstages {stages}\nplace {place}\nrank r {{ {body} }}\n{items}\n")


OPEN = "F * m || I * m || W * m"

SOME_PLACES_TEXT = """schedule x(p, m, k)
stages 4
place ?
rank r where k == 0 { F@0 * m || F@1 * m || B@0 * m || B@1 * m }
rank r where k == 1 and r == 0 { F@1[0] F@0[1] || F@0[0] || F@1[1] || B@0 * m || B@1 * m }
rank r where k == 1 and r == 1 { F@1[1] F@0[0] || F@0[1] || F@1[0] || B@0 * m || B@1 * m }
"""
"""For p=2 and m=2. With k=0 they run with all placements, with k=1 with `linear` alone."""

SOME_PLACES = parse_text(SOME_PLACES_TEXT)


def found(schedule: Schedule, cap: int | Fraction | None = None, **params: int) -> SearchResult:
    result = search(schedule, params, cap=cap, budget=WORK)
    again = expand(parse_text(result.text), {})
    for column in ("placement", "offsets", "kind", "stage", "microbatch"):
        assert np.array_equal(getattr(again, column), getattr(result.program, column)), column
    report = pipedsl.verify(parse_text(result.text), {})
    assert report.verdict is Verdict.VERIFIED
    assert result.verdict is Verdict.VERIFIED
    assert report.metrics is not None
    assert getattr(report.metrics, result.objective) == result.value >= result.bound
    return result
