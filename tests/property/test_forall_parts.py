"""The parts of a proof for all m, each against brute force at many sizes."""

from __future__ import annotations

import operator
from fractions import Fraction
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.parametric.values import Growing, Scope, Unanalysable, of_line
from pipedsl.program import Kind
from verify.forall import Linear, NeedsPeriod, Operation, Threshold, TooLate
from verify.forall.statements import Statement, meeting

OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    min,
    max,
    lambda x, y: x if x < y else y + 1,
    lambda x, y: x if x == y else y - 1,
    lambda x, y: 1 if x >= y else 2,
)


def value(random: Random, m: object, depth: int) -> object:
    """A random expression of m; the same for every m, given the same state of `random`."""
    if depth == 0:
        number = random.choice((1, 2, 3, 5, 7, Fraction(1, 2)))
        return random.choice((m, m, number))
    apply = random.choice(OPERATORS)
    left, right = value(random, m, depth - 1), value(random, m, random.randrange(depth))
    # Exact, as the language has it.
    return apply(Fraction(left) if isinstance(left, int) else left, right)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), period=st.sampled_from((1, 2, 6, 60)), depth=st.integers(1, 4))
def test_growing_values_are_right_from_the_threshold_on(seed: int, period: int, depth: int) -> None:
    residue = seed % period
    threshold = Threshold(1, 3000)
    try:
        open_value = value(Random(seed), of_line(Scope(threshold), Linear(period, residue)), depth)
    except (NeedsPeriod, Unanalysable, TooLate, ZeroDivisionError):
        return
    for size in (threshold.start, threshold.start + 1, threshold.start + 17, 10_000):
        expected = value(Random(seed), period * size + residue, depth)
        if isinstance(open_value, Growing):
            above, below = (
                sum(c * size**k for k, c in enumerate(part)) for part in (open_value.above, open_value.below)
            )
            assert Fraction(above) / below == expected
        else:
            assert open_value == expected


def statement(random: Random) -> Statement:
    first = Linear(random.randint(0, 2), random.randint(-3, 6))
    if random.random() < 0.3:
        return Statement(0, Operation(Kind.F, 0, first, 0, 0), Linear(0, 1))
    stride = random.choice((1, 1, 2, 3, -1, -2))
    return Statement(0, Operation(Kind.F, 0, first, stride, 0), Linear(random.randint(1, 2), random.randint(0, 3)))


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_meetings_are_all_pairs_with_the_same_microbatch(seed: int) -> None:
    random = Random(seed)
    target, source = statement(random), statement(random)
    if not (target.count.grows or source.count.grows):
        return
    threshold = Threshold(2, 10_000)
    try:
        ends = meeting(target, source, threshold)
    except NeedsPeriod:
        return
    for size in range(threshold.start, threshold.start + 6):

        def microbatches(each: Statement, q: int = size) -> list[object]:
            return [each.op.first.at(q) + each.op.stride * j for j in range(int(each.count.at(q)))]

        at_source = {microbatch: k for k, microbatch in enumerate(microbatches(source))}
        pairs = [(j, at_source[mb]) for j, mb in enumerate(microbatches(target)) if mb in at_source]
        if ends is None:
            assert not pairs
        else:
            assert {(j.at(size), k.at(size)) for j, k in ends} == {min(pairs), max(pairs)}
