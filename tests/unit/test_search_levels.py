"""The values that the largest of several sums can have."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from problems import EQUAL, random_problem, vee

from pipedsl import smallest_cap
from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.program import Kind
from pipedsl.search_problem import tasks
from pipedsl.search_runs import effort_of
from pipedsl.searching import search
from pipedsl.syntax import Schedule
from verify import Verdict
from verify.search.levels import MOST_LISTED, holdings, levels_of
from verify.search.problem import Operation
from verify.search.solve import solve


def test_levels_are_those_that_counting_finds() -> None:
    for fixed, unit in product(
        [(Fraction(0),), (Fraction(0), Fraction(3, 4)), (Fraction(1, 3), Fraction(7, 2), Fraction(1, 3))],
        [Fraction(1), Fraction(1, 2), Fraction(5)],
    ):
        levels = levels_of(fixed, unit)
        every = sorted({part + n * unit for part in fixed for n in range(-40, 40)})
        for value in (Fraction(n, 12) for n in range(-30, 100)):
            assert levels.at_most(value) == max(each for each in every if each <= value)
            assert levels.above(value) == min(each for each in every if each > value)
            inside = [each for each in every if value < each < value + 2]
            between = levels.between(value, value + 2)
            assert between in inside if inside else between is None


@pytest.mark.parametrize("seed", range(30))
def test_whatever_a_rank_holds_is_listed(seed: int) -> None:
    problem = random_problem(seed)
    fixed = [Fraction(rank, 3) for rank in range(problem.ranks)]
    halves = holdings(problem, fixed)
    assert halves is not None
    draw = random.Random(seed)
    for rank, strands in enumerate(problem.strands):
        rest = [list(strand) for strand in strands if strand]
        order: list[Operation] = []
        while rest:  # any order: also one that would wait for ever
            strand = draw.choice(rest)
            order.append(strand.pop(0))
            rest = [each for each in rest if each]
        for at in range(len(order) + 1):
            begun = {(op.kind, op.stage, op.microbatch) for op in order[:at]}
            whole = sum(
                problem.activation[s]
                for kind, s, i in begun
                if kind == Kind.F and not {(Kind.I, s, i), (Kind.B, s, i)} & begun
            )
            late = sum(problem.held_by_w[s] for kind, s, i in begun if kind == Kind.I and (Kind.W, s, i) not in begun)
            value = fixed[rank] + (whole + late) * problem.size_unit
            near = value - Fraction(1, 10**9), value + Fraction(1, 10**9)
            assert halves.between(*near) == value


def test_too_many_are_not_listed() -> None:
    """Of eight sizes of their own, from one microbatch on to too many."""
    many = vee(2, 30, EQUAL, 4)
    assert holdings(many, [Fraction(0)] * 2) is not None  # sizes that are all the same
    many = replace(many, activation=(10**9, 10**9 + 7, 10**9 + 13, 10**9 + 101), held_by_w=(10**6, 11, 5, 3))
    found = holdings(many, [Fraction(0)] * 2)
    assert found is not None
    assert max(len(each) for _, *lists in found.ranks for each in lists) <= MOST_LISTED
    assert holdings(replace(many, microbatches=MOST_LISTED), [Fraction(0)] * 2) is None
    assert holdings(replace(many, activation=(1 << 70,) * 4), [Fraction(0)] * 2) is None, "too large for the lists"
    assert holdings(many, [None, None]) is None


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_two_lists_are_those_that_counting_finds(seed: int) -> None:
    draw = random.Random(seed)
    sizes = draw.sample(range(1, 60), 8)  # each another one, so that each counts for itself
    activation, held_by_w = tuple(sizes[:4]), tuple(sizes[4:])
    problem = replace(vee(2, draw.randint(1, 4), EQUAL, 4), activation=activation, held_by_w=held_by_w)
    fixed = [Fraction(draw.randint(-40, 10), 3), draw.choice((None, Fraction(draw.randint(-40, 10), 4)))]
    halves = holdings(problem, fixed)
    assert halves is not None
    counts = range(problem.microbatches + 1)
    every = sorted(
        {
            part + problem.size_unit * sum(n * size for n, size in zip(numbers, own, strict=True))
            for part, stages in zip(fixed, ((0, 3), (1, 2)), strict=True)
            if part is not None
            for own in [[size for s in stages for size in (activation[s], held_by_w[s])]]
            for numbers in product(counts, repeat=4)
        }
    )
    for low in (Fraction(n, 2) for n in range(-60, 60, 7)):
        for more in (Fraction(1, 3), Fraction(2), Fraction(9)):
            inside = [value for value in every if low < value < low + more]
            between = halves.between(low, low + more)
            if not inside:
                assert between is None
                continue
            first = [value for value in inside if value <= low + more / 2]
            assert between == (first[-1] if first else inside[0])


@pytest.mark.parametrize(
    ("place", "word", "p", "m", "most"),
    [
        (
            "stages 2 * p\nplace s -> min(s, 2 * p - 1 - s)",
            "F@0*m || F@1*m || I@0*m || I@1*m || W@0*m || W@1*m",
            3,
            16,
            14,
        ),
        ("stages p\nplace s -> s", "(F * 3 (F I) * (m - 3) I * 3) || W * m", 2, 256, 10),
    ],
)
def test_few_questions_find_the_smallest_of_very_many_sizes(
    place: str, word: str, p: int, m: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of a hundred million that differ by a little, so that there are more than can be listed."""
    sizes = "activation(s) = 123456789 + 1000003 * s  held_by_w(s) = 23456789 + 10007 * s  cap(r) = 200000000"
    asked = parse_text(f"schedule x(p, m)\n{place}\nrank r {{ {word} }}\nmemory {{ {sizes} }}\n")
    [task] = tasks(asked, {"p": p, "m": m})
    effort = effort_of(20, None, 0, 1, None, None)
    answers, questions = [], [0]

    def counted(*problem: Any, **more: Any) -> Any:
        questions[-1] += 1
        return solve(*problem, **more)

    monkeypatch.setattr(smallest_cap, "solve", counted)
    for halves in (holdings, lambda *_: None):
        monkeypatch.setattr(smallest_cap, "holdings", halves)
        answers.append(smallest_cap.smallest(task, effort))
        questions.append(0)
    assert [each.sure for each in answers] == [True, True]
    assert answers[0].by == answers[1].by
    assert questions[0] <= most
    assert questions[1] > 20, "one unit at a time it takes more"


def held(weights: str, cap: str, m: int = 3) -> Schedule:
    """Ranks that hold different amounts all the time, which differ by less than an activation."""
    return parse_text(
        f"schedule x(p = 2, m = {m})\nstages p\nplace s -> s\nrank r {{ F * m || I * m || W * m }}\n"
        f"memory {{ activation(s) = 1  held_by_w(s) = 1  weights(s) = {weights}  gradients(s) = 0  {cap} }}\n"
        "minimize span\n"
    )


@pytest.mark.parametrize(
    ("weights", "smallest"),
    [("0 if s == 0 else 3/4", "7/4"), ("3/4 if s == 0 else 0", "7/4"), ("1/3 if s == 0 else 3/4", "7/4")],
)
def test_the_smallest_cap_counts_what_is_held_all_the_time(weights: str, smallest: str) -> None:
    """One microbatch at a time needs one activation beside the weights; no less will do."""
    with pytest.raises(DiagnosticError) as raised:
        search(held(weights, "cap(r) = 1"), {}, budget=2.0)
    assert f"the smallest that one keeps to is {smallest}" in raised.value.diagnostics[0].message
    assert search(held(weights, f"cap(r) = {smallest}"), {}, budget=2.0).verdict is Verdict.VERIFIED


def test_no_less_memory_is_said_of_the_least_there_is() -> None:
    """Under every smaller cap that anything keeps to, the smallest span is longer."""
    answer = search(held("0 if s == 0 else 3/4", "", m=4), {}, budget=2.0)
    assert answer.report.metrics is not None
    most = max(answer.report.metrics.memory)
    assert answer.least
    assert answer.optimal
    tried = 0
    for cap in (Fraction(n, 4) for n in range(1, 40) if Fraction(n, 4) < most):
        try:
            other = search(held("0 if s == 0 else 3/4", f"cap(r) = {cap}", m=4), {}, budget=2.0)
        except DiagnosticError:
            continue
        tried += 1
        assert other.optimal
        assert other.value > answer.value
    assert tried
