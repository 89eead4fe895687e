"""One loop of a shipped schedule is wrong: the finding is at that loop, wherever counting can tell."""

from __future__ import annotations

import itertools

import pytest
from closed import closed

from pipedsl import api
from pipedsl.diagnostics import Span
from pipedsl.shape import words
from pipedsl.syntax import For, Op, RankBlock, Repeat, Schedule, Sequence

PARAMS = {"p": 4, "m": 8}


def loops(schedule: Schedule) -> list[Repeat | For]:
    (block,) = (item for item in schedule.items if isinstance(item, RankBlock))
    return [word for word in words(block.body) if isinstance(word, Repeat | For)]


def changed(schedule: Schedule, span: Span, new: str) -> str:
    text = span.source.text
    assert schedule.header.span.source is span.source
    return text[: span.start] + new + text[span.end :]


def first_finding(text: str) -> tuple[str, Span]:
    found = api.verify(api.parse_text(text), PARAMS).diagnostics[0]
    assert found.span is not None
    return found.code, found.span


@pytest.mark.parametrize(("name", "by"), list(itertools.product(closed(), ("+ 1", "- 1", "+ 3"))))
def test_a_loop_that_runs_too_often_or_not_often_enough(name: str, by: str) -> None:
    schedule = api.load(name)
    pointed = 0
    for loop in loops(schedule):
        if name == "interleaved_1f1b" and loop is loops(schedule)[0]:
            continue  # the warm-up's rounds are of other chunks than the ones that are missing
        span = loop.count.span if isinstance(loop, Repeat) else loop.stop.span
        text = changed(schedule, span, f"({span.text} {by})")
        code, found = first_finding(text)
        if code == "PD114":
            continue  # less than none at all
        assert code in ("PD205", "PD206"), text
        assert found.line == span.line, text
        pointed += 1
    assert pointed


@pytest.mark.parametrize("name", closed())
def test_an_operation_that_is_forgotten_in_a_loop(name: str) -> None:
    """Where the loop is the first to run what the operation needs, it may also be a line that is missing at the end."""
    schedule = api.load(name)
    every = loops(schedule)
    for loop in every:
        if not isinstance(loop.body, Sequence):
            continue
        for op in loop.body.items[1:]:
            assert isinstance(op, Op)
            needs = {"B": "F", "I": "F", "W": "I"}[op.kind]
            runs = [each for each in every for word in words(each) if isinstance(word, Op) and word.kind == needs]
            code, found = first_finding(changed(schedule, op.span, " " * len(op.span.text)))
            if code == "PD205" or name == "interleaved_1f1b":
                continue
            assert code == "PD206"
            last = every[-1]
            assert found.line == (last if loop is runs[0] else loop).span.line, (op.span.text, loop.span.text)


def test_nothing_is_moved_that_counting_cannot_tell() -> None:
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r {\n  F * (m - 1)\n  B * (m - 2)\n}\n"
    _, found = first_finding(text)
    assert found.text.startswith("rank r {")
