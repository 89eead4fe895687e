"""A program for all sizes q: each rank's word as segments that are repeated a number of times that is linear in q."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from pipedsl.diagnostics import Span
from pipedsl.program import Costs, Ints, Kind, Memory, Program
from verify.forall.linear import ONE, Linear, floor_divided, whole


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a segment: in round j it takes microbatch `first + stride * j`. `span`: index into spans."""

    kind: Kind
    stage: int
    first: Linear
    stride: int
    span: int


@dataclass(frozen=True, slots=True)
class Segment:
    """`body`, `count` times over. `count` grows with q, or is exactly 1."""

    count: Linear
    body: tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class ParametricProgram:
    """Every rank's word for all q. `placement`: the rank of every stage. `caps`: per rank, None for no cap.

    `memory.cap` is not used: a cap may grow with q.
    """

    name: str
    ranks: int
    microbatches: Linear
    placement: tuple[int, ...]
    words: tuple[tuple[Segment, ...], ...]
    costs: Costs = field(repr=False)
    memory: Memory = field(repr=False)
    caps: tuple[Linear | None, ...]
    spans: tuple[Span, ...] = field(repr=False)

    @property
    def stages(self) -> int:
        return len(self.placement)

    def growing(self) -> list[Segment]:
        return [segment for word in self.words for segment in word if segment.count.grows]

    def at(self, size: int) -> Program:
        """The ordinary program at q = `size`."""
        parts: dict[str, list[Ints]] = {"kind": [], "stage": [], "microbatch": [], "span": []}
        lengths = []
        for word in self.words:
            length = 0
            for segment in word:
                rounds = whole(segment.count.at(size))
                for name, column in _rows(segment, rounds, size).items():
                    parts[name].append(column)
                length += rounds * len(segment.body)
            lengths.append(length)
        columns = {name: np.concatenate([*each, np.empty(0, np.int64)]) for name, each in parts.items()}
        m = whole(self.microbatches.at(size))
        return Program(
            name=self.name,
            params={"p": self.ranks, "m": m},
            ranks=self.ranks,
            stages=self.stages,
            microbatches=m,
            placement=np.array([self.placement], np.int32),
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            kind=columns["kind"].astype(np.int8),
            stage=columns["stage"].astype(np.int32),
            microbatch=columns["microbatch"].astype(np.int32),
            replica=np.zeros(len(columns["kind"]), np.int32),
            span=columns["span"].astype(np.int32),
            spans=self.spans,
            costs=self.costs,
            memory=self.memory,
        )

    def unrolled(self, times: int) -> ParametricProgram:
        """The same program with `times` rounds of every growing segment as one. Raises NeedsPeriod."""
        if times == 1:
            return self
        words = tuple(tuple(part for segment in word for part in _unrolled(segment, times)) for word in self.words)
        return ParametricProgram(
            self.name,
            self.ranks,
            self.microbatches,
            self.placement,
            words,
            self.costs,
            self.memory,
            self.caps,
            self.spans,
        )


def _rows(segment: Segment, rounds: int, size: int) -> dict[str, Ints]:
    body = segment.body
    columns: dict[str, Any] = {
        "kind": [int(op.kind) for op in body],
        "stage": [op.stage for op in body],
        "span": [op.span for op in body],
    }
    found = {name: np.tile(np.array(column, np.int64), rounds) for name, column in columns.items()}
    first = np.array([op.first.at(size) for op in body], np.int64)
    stride = np.array([op.stride for op in body], np.int64)
    found["microbatch"] = (first + np.arange(rounds)[:, None] * stride).ravel()
    return found


def shifted(op: Operation, by: Linear, factor: int = 1) -> Operation:
    """The operation with its rounds counted from round `by`, taking every `factor`-th."""
    return Operation(op.kind, op.stage, op.first + by.times(op.stride), op.stride * factor, op.span)


def single(op: Operation, at: Linear) -> Operation:
    """The operation of round `at` alone."""
    return Operation(op.kind, op.stage, op.first + at.times(op.stride), 0, op.span)


def _unrolled(segment: Segment, times: int) -> list[Segment]:
    if not segment.count.grows:
        return [segment]
    rounds = floor_divided(segment.count, times)
    body = tuple(shifted(op, Linear(0, i), times) for i in range(times) for op in segment.body)
    rest = whole((segment.count - rounds.times(times)).constant)
    done = rounds.times(times)
    tail = tuple(single(op, done.plus(i)) for i in range(rest) for op in segment.body)
    return [Segment(rounds, body), *([Segment(ONE, tail)] if tail else [])]


def uniform_costs(stages: int) -> Costs:
    """Every operation takes 1, sending nothing: start times are then depths in the dependency graph."""
    one, none = (Fraction(1),) * stages, (Fraction(0),) * stages
    return Costs(one, one, one, one, none)
