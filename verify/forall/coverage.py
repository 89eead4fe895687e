"""Every stage runs F once, and B or both I and W once, for each of the m microbatches; for all q.

The microbatches of one operation of a segment are an arithmetic progression. Where all lie in 0 .. m - 1, no two
progressions share one, and together they have m members, each microbatch is met exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import gcd

from pipedsl.program import Kind
from verify.forall.linear import ZERO, Linear, NeedsPeriod, Threshold, whole
from verify.forall.program import Operation, ParametricProgram

# What must meet every microbatch once. B meets the conditions of both I and W, so I and W meet the same ones.
GROUPS: tuple[tuple[Kind, ...], ...] = ((Kind.F,), (Kind.B, Kind.I), (Kind.B, Kind.W))

MOST_OVERLAPPING = 600
"""Progressions whose ranges overlap, beyond which no proof is tried."""


@dataclass(frozen=True, slots=True)
class _Progression:
    low: Linear
    high: Linear
    stride: int
    count: Linear
    op: Operation


@dataclass(frozen=True)
class Uncovered:
    """What could not be proved, and the operation to look at (None: none in particular)."""

    why: str
    span: int | None


def uncovered(program: ParametricProgram, threshold: Threshold) -> Uncovered | None:
    """None when the coverage is proved for all q >= `threshold.start`. Raises NeedsPeriod and TooLate."""
    found: dict[tuple[Kind, int], list[_Progression]] = {}
    for rank, word in enumerate(program.words):
        for segment in word:
            for op in segment.body:
                if not 0 <= op.stage < program.stages or program.placement[op.stage] != rank:
                    return Uncovered("an operation runs on a rank that does not hold its stage", op.span)
                if segment.count.grows and op.stride == 0:
                    return Uncovered("every round takes the same microbatch", op.span)
                found.setdefault((op.kind, op.stage), []).append(_progression(op, segment.count))
    for stage in range(program.stages):
        for group in GROUPS:
            members = [each for kind in group for each in found.get((kind, stage), [])]
            problem = _not_exact(members, program.microbatches, threshold, group, stage)
            if problem is not None:
                return problem
    return None


def _progression(op: Operation, count: Linear) -> _Progression:
    last = op.first + count.plus(-1).times(op.stride)
    low, high = (op.first, last) if op.stride >= 0 else (last, op.first)
    return _Progression(low, high, abs(op.stride), count, op)


def _not_exact(
    members: list[_Progression], m: Linear, threshold: Threshold, group: tuple[Kind, ...], stage: int
) -> Uncovered | None:
    name = " or ".join(kind.name for kind in group)
    for each in members:
        if not threshold.never_negative(each.low) or not threshold.never_negative(m - each.high.plus(1)):
            return Uncovered(f"{name} of stage {stage} takes a microbatch out of range", each.op.span)
    total = ZERO
    for each in members:
        total = total + each.count
    if not (total - m).is_zero:
        return Uncovered(f"{name} of stage {stage} does not run once per microbatch", None)
    members = sorted(members, key=lambda each: (each.low.slope, each.low.constant))
    reach: Linear | None = None
    clusters: list[list[_Progression]] = []
    for each in members:
        if reach is None or threshold.never_negative(each.low - reach.plus(1)):
            clusters.append([])
        clusters[-1].append(each)
        reach = each.high if reach is None else threshold.largest([reach, each.high])
    for cluster in clusters:
        clash = _clash(cluster, threshold)
        if clash is not None:
            return Uncovered(f"{name} of stage {stage} is not proved to take each microbatch once", clash)
    return None


def _clash(cluster: list[_Progression], threshold: Threshold) -> int | None:
    """The span of an operation that may take a microbatch that another one takes."""
    if len(cluster) > MOST_OVERLAPPING:
        return cluster[0].op.span
    for one, other in combinations(cluster, 2):
        if threshold.never_negative(other.low - one.high.plus(1)):
            continue
        if threshold.never_negative(one.low - other.high.plus(1)):
            continue
        step = gcd(one.stride, other.stride)
        apart = one.low - other.low
        if step == 0:
            return other.op.span
        if whole(apart.slope) % step:
            raise NeedsPeriod(step // gcd(whole(apart.slope), step))
        if whole(apart.constant) % step == 0:
            return other.op.span
    return None
