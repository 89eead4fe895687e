"""What each rank holds in memory at every moment of its program: exact running sums over its operations in order.

A rank runs its operations one after another, so what it holds depends on their order alone, not on durations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import lcm

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.program import Ints, Kind, Program


class Part(Enum):
    """What memory is for. The first three are there all the time."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    HELD_BY_W = "held_by_w"
    INPUTS = "inputs"
    SEND_BUFFERS = "send_buffers"
    RECEIVE_BUFFERS = "receive_buffers"


ALL_PARTS = frozenset(Part)
CONSTANT = (Part.WEIGHTS, Part.GRADIENTS, Part.OPTIMIZER)

_SENDS = (CallKind.SEND, CallKind.ISEND)
_RECEIVES = (CallKind.RECV, CallKind.IRECV)


@dataclass(frozen=True)
class Peak:
    """The most that a rank holds, and the first moment when it does.

    `row`: of the Program or Calls that the Occupancy is of; -1 where the rank never holds more than its constant part.
    `at_end`: whether it is at the end of the row instead of at its start.
    """

    size: Fraction
    row: int
    at_end: bool


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

    def peak(self, rank: int) -> Peak:
        rows = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        during, after = self.during[rows], self.after[rows]
        if not len(during):
            return Peak(self.base[rank], -1, False)
        moments = np.stack((during, after), axis=1).ravel()
        best = int(np.argmax(moments))
        if moments[best] < 0:
            return Peak(self.base[rank], -1, False)
        return Peak(self.base[rank] + int(moments[best]) * self.unit, rows.start + best // 2, best % 2 == 1)

    def peaks(self) -> tuple[Fraction, ...]:
        """The most that every rank holds."""
        return tuple(self.peak(rank).size for rank in range(len(self.base)))

    def at(self, rank: int, moment: Peak) -> Fraction:
        """What a rank holds at the moment of a peak, which may be that of another Occupancy of the same rows."""
        if moment.row < 0:
            return self.base[rank]
        held = self.after if moment.at_end else self.during
        return self.base[rank] + int(held[moment.row]) * self.unit


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


def memory_used(program: Program, calls: Calls | None = None, parts: Collection[Part] = ALL_PARTS) -> Occupancy:
    """Memory in the unit of `program.memory`, of these parts together. With `calls`, message buffers count too.

    Rows are those of `calls` where they are given, else of the program. A buffer lives from its ISEND or IRECV until
    the WAIT for it.
    """
    memory, none = program.memory, (Fraction(0),) * program.stages
    whole = memory.activation if Part.ACTIVATIONS in parts else none
    if Part.INPUTS in parts and any(memory.input):
        whole = tuple(a + b for a, b in zip(whole, memory.input, strict=True))
    held = memory.held_by_w if Part.HELD_BY_W in parts else none
    base = constant_part(program, parts)
    unit, gain, loss = _compute_changes(program, whole, held, memory.output)
    if calls is None:
        return _running(program.offsets, gain, loss, base, unit)
    computes = calls.kind == CallKind.COMPUTE
    op = np.where(calls.op >= 0, calls.op, 0)
    gain, loss = np.where(computes, gain[op], 0), np.where(computes, loss[op], 0)
    counted = (*(_SENDS if Part.SEND_BUFFERS in parts else ()), *(_RECEIVES if Part.RECEIVE_BUFFERS in parts else ()))
    if any(memory.output) and counted:
        size = _buffer_sizes(program, calls, unit, counted)
        loss = loss + np.where(np.isin(calls.kind, (CallKind.SEND, CallKind.RECV)), size, 0)
        rows, requests = requests_waited(calls)
        waited_size = np.zeros_like(size)
        np.add.at(waited_size, rows, size[requests])
        gain, loss = gain + size, loss + waited_size
    return _running(calls.offsets, gain, loss, base, unit)


def constant_part(program: Program, parts: Collection[Part] = ALL_PARTS) -> tuple[Fraction, ...]:
    """Weights, gradients and optimizer state of every rank, as far as they are among `parts`."""
    memory = program.memory
    sizes = [values for part, values in zip(CONSTANT, (memory.weights, memory.gradients, memory.optimizer), strict=True)
             if part in parts]  # fmt: skip
    base = [Fraction(0)] * program.ranks
    if any(map(any, sizes)):
        each = [sum(values, Fraction(0)) for values in zip(*sizes, strict=True)]
        for replica in program.placement.tolist():
            for stage, rank in enumerate(replica):
                base[rank] += each[stage]
    return tuple(base)


def parts_at_peaks(program: Program, calls: Calls | None, peaks: Sequence[Peak]) -> list[dict[Part, Fraction]]:
    """For every rank, what the memory at the moment of its peak is for; parts that are nothing are left out.

    One part is summed up at a time, so that this needs no more memory than one `memory_used`.
    """
    found: list[dict[Part, Fraction]] = [{} for _ in peaks]
    for part in Part:
        if not _may_be_held(program, calls, part):
            continue
        used = memory_used(program, calls, (part,))
        for rank, peak in enumerate(peaks):
            size = used.at(rank, peak)
            if size:
                found[rank][part] = size
    return found


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


def _may_be_held(program: Program, calls: Calls | None, part: Part) -> bool:
    memory = program.memory
    if part in (Part.SEND_BUFFERS, Part.RECEIVE_BUFFERS):
        return calls is not None and any(memory.output)
    sizes = {
        Part.WEIGHTS: memory.weights,
        Part.GRADIENTS: memory.gradients,
        Part.OPTIMIZER: memory.optimizer,
        Part.ACTIVATIONS: memory.activation,
        Part.HELD_BY_W: memory.held_by_w,
        Part.INPUTS: memory.input,
    }
    return any(sizes[part])


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


def _buffer_sizes(program: Program, calls: Calls, unit: Fraction, kinds: Sequence[CallKind]) -> Ints:
    """The size of every row's message, 0 for rows that are none of `kinds`: (calls,), in multiples of `unit`."""
    sizes = [int(value / unit) for value in program.memory.output]
    dtype = np.int64 if max(sizes) * 8 * (len(calls) + 1) < 2**62 else object
    op = np.where(calls.op >= 0, calls.op, 0)
    forward = np.isin(program.kind[op], (Kind.F, Kind.SEND_F, Kind.RECV_F))
    sends = np.isin(calls.kind, _SENDS)
    stage = np.clip(program.stage[op] - (forward != sends), 0, program.stages - 1)
    counted = np.isin(calls.kind, kinds) & (calls.op >= 0)
    return np.where(counted, np.array(sizes, dtype)[stage], np.zeros(1, dtype))


def _running(offsets: Ints, gain: Ints, loss: Ints, base: tuple[Fraction, ...], unit: Fraction) -> Occupancy:
    """Running sums over the rows, anew for every rank."""
    after = np.cumsum(gain - loss)
    before_rank = np.concatenate((after[:0], [0], after))[np.asarray(offsets[:-1], np.int64)]
    after = after - np.repeat(before_rank, np.diff(offsets))
    return Occupancy(offsets, after + loss, after, base, unit)
