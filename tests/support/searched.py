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
