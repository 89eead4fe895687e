"""What each rank holds in memory at every moment of its program: exact running sums over its operations in order.

A rank runs its operations one after another, so what it holds depends on their order alone, not on durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.program import Ints, Kind, Program


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Sizes held, in multiples of `unit`, at the two moments of every row of a Program or Calls.

    `during`: from the start of the row; `after`: from its end; (rows,), without the rank's constant part `base`.
    """

    offsets: Ints
    during: Ints
    after: Ints
    base: tuple[Fraction, ...]
    unit: Fraction

    def peak(self, rank: int) -> tuple[Fraction, int, bool]:
        """The most that a rank holds, the first row where it does (-1 if it has none), and if that is at its end."""
        rows = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        during, after = self.during[rows], self.after[rows]
        if not len(during):
            return self.base[rank], -1, False
        moments = np.stack((during, after), axis=1).ravel()
        best = int(np.argmax(moments))
        if moments[best] < 0:
            return self.base[rank], -1, False
        return self.base[rank] + int(moments[best]) * self.unit, rows.start + best // 2, best % 2 == 1

    def peaks(self) -> tuple[Fraction, ...]:
        """The most that every rank holds."""
        return tuple(self.peak(rank)[0] for rank in range(len(self.base)))


def released_by_input(activation: Fraction, held_by_w: Fraction) -> Fraction:
    """The fraction of an activation that I releases; W releases the rest."""
    return 1 - held_by_w / activation if activation else Fraction(0)


def activations_held(program: Program) -> Occupancy:
    """Activations held, counted in microbatches: F takes one, B gives one back, I and W share that."""
    memory = program.memory
    early = tuple(released_by_input(a, h) for a, h in zip(memory.activation, memory.held_by_w, strict=True))
    one = (Fraction(1),) * program.stages
    unit, gain, loss = _compute_changes(program, one, tuple(1 - part for part in early), ())
    return _running(program.offsets, gain, loss, (Fraction(0),) * program.ranks, unit)


def memory_used(program: Program, calls: Calls | None = None) -> Occupancy:
    """Memory in the unit of `program.memory`: weights, gradients, activations, and with `calls` message buffers.

    Rows are those of `calls` where they are given, else of the program. A buffer lives from its ISEND or IRECV until
    the WAIT for it.
    """
    memory = program.memory
    base = tuple(
        sum((memory.weights[stage] + memory.gradients[stage] for _, stage in program.chunks(rank)), Fraction(0))
        for rank in range(program.ranks)
    )
    unit, gain, loss = _compute_changes(program, memory.activation, memory.held_by_w, memory.output)
    if calls is None:
        return _running(program.offsets, gain, loss, base, unit)
    computes = calls.kind == CallKind.COMPUTE
    op = np.where(calls.op >= 0, calls.op, 0)
    gain, loss = np.where(computes, gain[op], 0), np.where(computes, loss[op], 0)
    size = _buffer_sizes(program, calls, unit)
    is_message = np.isin(calls.kind, (CallKind.SEND, CallKind.RECV, CallKind.ISEND, CallKind.IRECV))
    gain = np.where(is_message, size, gain)
    loss = np.where(np.isin(calls.kind, (CallKind.SEND, CallKind.RECV)), size, loss)
    rows, requests = requests_waited(calls)
    waited_size = np.zeros_like(loss)
    np.add.at(waited_size, rows, size[requests])
    return _running(calls.offsets, gain, loss + waited_size, base, unit)


def requests_waited(calls: Calls) -> tuple[Ints, Ints]:
    """Every (WAIT row, row of a member of the request that it waits for), as two arrays."""
    rank = calls.rank_of().astype(np.int64)
    issues = np.flatnonzero(np.isin(calls.kind, (CallKind.ISEND, CallKind.IRECV)))
    waits = np.flatnonzero(calls.kind == CallKind.WAIT)
    stride = int(calls.request.max(initial=0)) + 2
    issued, wanted = rank[issues] * stride + calls.request[issues], rank[waits] * stride + calls.request[waits]
    order = np.argsort(issued, kind="stable")
    first = np.searchsorted(issued[order], wanted, "left")
    counts = np.searchsorted(issued[order], wanted, "right") - first
    inner = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(waits, counts), issues[order[np.repeat(first, counts) + inner]]


def _compute_changes(
    program: Program, whole: Sequence[Fraction], held: Sequence[Fraction], others: Sequence[Fraction]
) -> tuple[Fraction, Ints, Ints]:
    """The unit that makes all sizes integers; what every row takes at its start and gives back at its end."""
    common = lcm(*{value.denominator for value in (*whole, *held, *others)})

    def scale(values: Sequence[Fraction]) -> list[int]:
        return [int(value * common) for value in values]

    wholes, helds = scale(whole), scale(held)
    largest = max((abs(value) for value in (*wholes, *helds, *scale(others))), default=0)
    dtype = np.int64 if largest * 8 * (len(program) + 1) < 2**62 else object
    none = [0] * program.stages
    lost = {Kind.B: wholes, Kind.I: [a - b for a, b in zip(wholes, helds, strict=True)], Kind.W: helds}
    loss: Ints = np.zeros(len(program), dtype)
    for kind, sizes in lost.items():
        loss = np.where(program.kind == kind, np.array(sizes or none, dtype)[program.stage], loss)
    gain = np.where(program.kind == Kind.F, np.array(wholes or none, dtype)[program.stage], np.zeros(1, dtype))
    return Fraction(1, common), gain, loss


def _buffer_sizes(program: Program, calls: Calls, unit: Fraction) -> Ints:
    """The size of every row's message, 0 for rows that are none: (calls,), in multiples of `unit`."""
    sizes = [int(value / unit) for value in program.memory.output]
    if not any(sizes):
        return np.zeros(len(calls), np.int64)
    dtype = np.int64 if max(sizes) * 8 * (len(calls) + 1) < 2**62 else object
    op = np.where(calls.op >= 0, calls.op, 0)
    forward = np.isin(program.kind[op], (Kind.F, Kind.SEND_F, Kind.RECV_F))
    sends = np.isin(calls.kind, (CallKind.SEND, CallKind.ISEND))
    stage = np.clip(program.stage[op] - (forward != sends), 0, program.stages - 1)
    is_message = np.isin(calls.kind, (CallKind.SEND, CallKind.RECV, CallKind.ISEND, CallKind.IRECV))
    return np.where(is_message & (calls.op >= 0), np.array(sizes, dtype)[stage], np.zeros(1, dtype))


def _running(offsets: Ints, gain: Ints, loss: Ints, base: tuple[Fraction, ...], unit: Fraction) -> Occupancy:
    """Running sums over the rows, anew for every rank."""
    after = np.cumsum(gain - loss)
    before_rank = np.concatenate((after[:0], [0], after))[np.asarray(offsets[:-1], np.int64)]
    after = after - np.repeat(before_rank, np.diff(offsets))
    return Occupancy(offsets, after + loss, after, base, unit)
