"""The operations of a parametric program as statements, and the edges between them, for all q.

The first and last `peel` rounds of every growing segment become single statements; its middle stays one statement per
operation of its body, with a round number j. An edge joins instances of two statements; over all of its instances
both round numbers are affine in one parameter t between two lines in q, so what is affine in the rounds and q is
least at one of the two `ends`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from pipedsl.program import Kind
from verify.forall.linear import ONE, ZERO, Linear, NeedsPeriod, Number, Threshold, floor_divided, whole
from verify.forall.program import Operation, ParametricProgram, Segment, shifted, single

End = tuple[Linear, Linear]
"""The rounds of target and source at one end of an edge."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An operation in rounds 0 .. count - 1 of a block; single ones have count 1 and stride 0."""

    rank: int
    op: Operation
    count: Linear


@dataclass(frozen=True, slots=True)
class Block:
    """Statements `first` .. `first + size - 1`, `count` rounds of them, one after another on one rank."""

    first: int
    size: int
    count: Linear


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` needs `source`, for the instances from one end to the other."""

    target: int
    source: int
    ends: tuple[End, ...]


@dataclass(frozen=True, eq=False)
class Statements:
    """All statements with their edges: along each rank, from the same stage, and from the neighbouring stage."""

    program: ParametricProgram
    statements: tuple[Statement, ...]
    blocks: tuple[tuple[Block, ...], ...]
    along: tuple[Edge, ...]
    local: tuple[Edge, ...]
    upstream: tuple[Edge, ...]


def build(program: ParametricProgram, peel: int, threshold: Threshold) -> Statements:
    """Statements and edges for all q >= `threshold.start`. The coverage must be proved before.

    Raises NeedsPeriod and TooLate.
    """
    statements: list[Statement] = []
    blocks: list[tuple[Block, ...]] = []
    for rank, word in enumerate(program.words):
        own: list[Block] = []
        for count, body in (part for segment in word for part in _peeled(segment, peel, threshold)):
            own.append(Block(len(statements), len(body), count))
            statements.extend(Statement(rank, op, count) for op in body)
        blocks.append(tuple(own))
    along = [edge for own in blocks for edge in _along(own)]
    sources = _Sources(statements)
    local: list[Edge] = []
    upstream: list[Edge] = []
    for number, statement in enumerate(statements):
        kind, stage = statement.op.kind, statement.op.stage
        if kind is Kind.F:
            if stage > 0:
                upstream += sources.edges(number, (Kind.F,), stage - 1, threshold)
        elif kind is Kind.W:
            local += sources.edges(number, (Kind.I,), stage, threshold)
        else:
            local += sources.edges(number, (Kind.F,), stage, threshold)
            if stage < program.stages - 1:
                upstream += sources.edges(number, (Kind.B, Kind.I), stage + 1, threshold)
    return Statements(program, tuple(statements), tuple(blocks), tuple(along), tuple(local), tuple(upstream))


def _peeled(segment: Segment, peel: int, threshold: Threshold) -> Iterable[tuple[Linear, list[Operation]]]:
    count, body = segment.count, segment.body
    if not count.grows:
        yield ONE, [single(op, ZERO) for op in body]
        return
    middle = count.plus(-2 * peel)
    threshold.never_negative(middle.plus(-2))
    if peel:
        yield ONE, [single(op, Linear(0, i)) for i in range(peel) for op in body]
    yield middle, [shifted(op, Linear(0, peel)) for op in body]
    if peel:
        yield ONE, [single(op, count.plus(i - peel)) for i in range(peel) for op in body]


def _along(blocks: tuple[Block, ...]) -> Iterable[Edge]:
    """From each operation of a rank to the next one."""
    before: Block | None = None
    for block in blocks:
        if before is not None:
            yield Edge(block.first, before.first + before.size - 1, ((ZERO, before.count.plus(-1)),))
        last = block.count.plus(-1)
        ends: tuple[End, ...] = ((ZERO, ZERO),) if last.is_zero else ((ZERO, ZERO), (last, last))
        for number in range(block.first, block.first + block.size - 1):
            yield Edge(number + 1, number, ends)
        if not last.is_zero:
            wrap = ((ONE, ZERO), (last, last.plus(-1)))
            yield Edge(block.first, block.first + block.size - 1, wrap)
        before = block


class _Sources:
    """Statements by kind, stage and microbatch."""

    def __init__(self, statements: list[Statement]) -> None:
        self.statements = statements
        self.single: dict[tuple[Kind, int], dict[Linear, int]] = {}
        self.repeated: dict[tuple[Kind, int], list[int]] = {}
        for number, statement in enumerate(statements):
            key = (statement.op.kind, statement.op.stage)
            if statement.count.grows:
                self.repeated.setdefault(key, []).append(number)
            else:
                self.single.setdefault(key, {})[statement.op.first] = number
        # The constants of single microbatches, sorted, by slope.
        self.constants: dict[tuple[Kind, int], dict[Number, list[Number]]] = {}
        for key, singles in self.single.items():
            slopes = self.constants.setdefault(key, {})
            for first in sorted(singles, key=lambda line: line.constant):
                slopes.setdefault(first.slope, []).append(first.constant)

    def edges(self, target: int, kinds: tuple[Kind, ...], stage: int, threshold: Threshold) -> Iterable[Edge]:
        statement = self.statements[target]
        last = statement.op.first + statement.count.plus(-1).times(statement.op.stride)
        low, high = (statement.op.first, last) if statement.op.stride >= 0 else (last, statement.op.first)
        for key in ((kind, stage) for kind in kinds):
            inside = [self.single[key][line] for line in self._singles(key, low, high, threshold)]
            if not statement.count.grows:
                for source in inside:
                    yield Edge(target, source, ((ZERO, ZERO),))
                inside = []
            for source in (*self.repeated.get(key, ()), *inside):
                ends = meeting(statement, self.statements[source], threshold)
                if ends is not None:
                    yield Edge(target, source, ends)

    def _singles(self, key: tuple[Kind, int], low: Linear, high: Linear, threshold: Threshold) -> Iterable[Linear]:
        """The single microbatches from `low` to `high`. The threshold rises past where others cross those lines."""
        for slope, constants in self.constants.get(key, {}).items():
            first, end = 0, len(constants)
            if slope == low.slope:
                first = bisect_left(constants, low.constant)
            elif slope > low.slope:
                threshold.never_negative(Linear(slope, constants[0]) - low)
            else:
                threshold.never_negative(low - Linear(slope, constants[-1] + 1))
                end = 0
            if slope == high.slope:
                end = min(end, bisect_right(constants, high.constant))
            elif slope < high.slope:
                threshold.never_negative(high - Linear(slope, constants[-1]))
            else:
                threshold.never_negative(Linear(slope, constants[0] - 1) - high)
                end = 0
            for constant in constants[first:end]:
                yield Linear(slope, constant)


def meeting(target: Statement, source: Statement, threshold: Threshold) -> tuple[End, ...] | None:
    """The ends of the instances of two statements that have the same microbatch; None where there are none.

    Not both may be single. With target round j and source round k: a * j - b * k = apart(q).
    """
    a, b = target.op.stride, source.op.stride
    divisor = gcd(a, b)
    slope = whole(source.op.first.slope) - whole(target.op.first.slope)
    constant = whole(source.op.first.constant) - whole(target.op.first.constant)
    if slope % divisor:
        raise NeedsPeriod(divisor // gcd(slope, divisor))
    if constant % divisor:
        return None
    apart = Linear(slope // divisor, constant // divisor)
    a, b = a // divisor, b // divisor
    if a == 0 or b == 0:  # the other is 1 or -1
        own, other = (ZERO, apart.times(-b)) if a == 0 else (apart.times(a), ZERO)
        repeated = source if a == 0 else target
        at = other if a == 0 else own
        inside = threshold.never_negative(at) and threshold.never_negative(repeated.count - at.plus(1))
        return ((own, other),) if inside else None
    # j = |b| * t + j0 solves it modulo |b|; then k follows.
    modulus = abs(b)
    if whole(apart.slope) % modulus:
        raise NeedsPeriod(modulus // gcd(whole(apart.slope), modulus))
    j0 = (pow(a, -1, modulus) * whole(apart.constant)) % modulus if modulus > 1 else 0
    sign = 1 if b > 0 else -1
    k0 = floor_divided((Linear(0, a * j0) - apart).times(sign), modulus)
    per_j, per_k = modulus, a * sign
    lows, highs = [], []
    for factor, start, count in ((per_j, Linear(0, j0), target.count), (per_k, k0, source.count)):
        for coefficient, line in ((factor, start), (-factor, count - start.plus(1))):  # coefficient * t + line >= 0
            bound = floor_divided(line, abs(coefficient))
            if coefficient > 0:
                lows.append(bound.times(-1))
            else:
                highs.append(bound)
    low, high = threshold.largest(lows), threshold.smallest(highs)
    if not threshold.never_negative(high - low):
        return None
    ends = [(low.times(per_j).plus(j0), low.times(per_k) + k0)]
    if not (high - low).is_zero:
        ends.append((high.times(per_j).plus(j0), high.times(per_k) + k0))
    return tuple(ends)
