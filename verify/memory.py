"""Design section 5.4: what every rank holds at its worst moment, against its cap (PD401)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.occupancy import memory_used
from pipedsl.program import Ints, Kind, Program
from verify.wording import first_few, rank_span

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def check_memory(program: Program, calls: Calls) -> list[Diagnostic]:
    """One finding for every rank over its cap, with the operations alive at the first peak."""
    caps = program.memory.cap
    if all(cap is None for cap in caps):
        return []
    used = memory_used(program, calls)
    found = []
    for rank, cap in enumerate(caps):
        most, row, at_end = used.peak(rank)
        if cap is not None and most > cap:
            found.append(_over(program, calls, rank, (most, cap), row, at_end))
    return found[:20]


def _over(
    program: Program, calls: Calls, rank: int, sizes: tuple[Fraction, Fraction], row: int, at_end: bool
) -> Diagnostic:
    most, cap = (size_text(size, program.memory.in_bytes) for size in sizes)
    message = f"rank {rank} holds {most} at its peak, over its cap of {cap}"
    fixed = sum(
        (program.memory.weights[stage] + program.memory.gradients[stage] for _, stage in program.chunks(rank)),
        Fraction(0),
    )
    notes = [f"weights and gradients: {size_text(fixed, program.memory.in_bytes)}"] if fixed else []
    if row < 0:
        return Diagnostic("PD401", message, rank_span(program, rank), notes=tuple(notes))
    first = int(calls.offsets[rank])
    done = np.arange(first, row + (1 if at_end else 0))
    started = np.arange(first, row + 1)
    ops = _operations(calls, started), _operations(calls, done)
    notes += _alive(program, *ops)
    buffers = _open_requests(calls, started, done)
    if buffers and any(program.memory.output):
        notes.append(f"buffers of {buffers} messages under way")
    op = int(calls.op[row])
    if op < 0:
        return Diagnostic("PD401", message, rank_span(program, rank), notes=tuple(notes))
    labels = (Label(program.span_of(op), f"the peak is at {program.label(op)}"),)
    return Diagnostic("PD401", message, program.span_of(op), labels, tuple(notes))


def _operations(calls: Calls, rows: Ints) -> Ints:
    ops: Ints = calls.op[rows[calls.kind[rows] == CallKind.COMPUTE]]
    return ops


def _alive(program: Program, started: Ints, done: Ints) -> list[str]:
    """Which microbatches of each stage are held whole, and which for W alone, after these operations."""
    notes = []
    in_bytes, memory = program.memory.in_bytes, program.memory
    for stage in np.unique(program.stage[started]).tolist():
        own, ended = started[program.stage[started] == stage], done[program.stage[done] == stage]
        cell = [
            program.replica[rows].astype(np.int64) * program.microbatches + program.microbatch[rows]
            for rows in (
                own[program.kind[own] == Kind.F],
                ended[np.isin(program.kind[ended], (Kind.B, Kind.W))],
                ended[program.kind[ended] == Kind.I],
            )
        ]
        for held, size, what in (
            (np.setdiff1d(np.setdiff1d(cell[0], cell[1]), cell[2]), memory.activation[stage], "activations"),
            (np.setdiff1d(cell[2], cell[1]), memory.held_by_w[stage], "held for W"),
        ):
            if len(held) and size:
                names = first_few((held[:4] % program.microbatches).tolist(), len(held))
                each = size_text(size, in_bytes)
                notes.append(f"{what} of stage {stage}: {len(held)} x {each}, microbatches {names}")
    return notes


def _open_requests(calls: Calls, started: Ints, done: Ints) -> int:
    issued = int(np.isin(calls.kind[started], (CallKind.ISEND, CallKind.IRECV)).sum())
    return issued - int((calls.kind[done] == CallKind.WAIT).sum())


def size_text(size: Fraction, in_bytes: bool) -> str:
    """A size as people read it: `7`, `5/2`, `1.5 GiB`."""
    if in_bytes:
        for unit, value in _UNITS:
            if abs(size) >= value:
                return f"{float(size / value):.6g} {unit}"
        return f"{size} bytes"
    return str(size)
