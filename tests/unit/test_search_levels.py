"""The values that the largest of several sums can have."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from problems import EQUAL, random_problem, vee

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.program import Kind
from pipedsl.searching import search
from pipedsl.syntax import Schedule
from verify import Verdict
from verify.search.levels import Listed, levels_of, listed
from verify.search.problem import Operation


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
    every = listed(problem, fixed)
    assert every is not None
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
            assert every.between(value - Fraction(1, 10**9), value + Fraction(1, 10**9)) == value


def test_too_many_are_not_listed() -> None:
    problem = vee(2, 30, EQUAL, 4)
    assert listed(problem, [Fraction(0)] * 2) is not None  # sizes that are all the same
    many = replace(problem, activation=(10**9, 10**9 + 7, 10**9 + 13, 10**9 + 101), held_by_w=(10**6, 11, 5, 3))
    assert listed(many, [Fraction(0)] * 2) is None
    assert listed(many, [None, None]) == Listed(())


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
