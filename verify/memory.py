"""Design section 5.4: what every rank holds at its worst moment, against its cap (PD401)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.moments import call_times
from pipedsl.occupancy import Part, Peak, memory_used, parts_at_peaks
from pipedsl.program import Ints, Kind, Program
from pipedsl.simulate import Timeline
from verify.wording import first_few, rank_span

MOST_FINDINGS = 20
NAMES = {
    Part.WEIGHTS: "weights",
    Part.GRADIENTS: "gradients",
    Part.OPTIMIZER: "optimizer state",
    Part.ACTIVATIONS: "activations",
    Part.HELD_BY_W: "held for W",
    Part.INPUTS: "inputs",
    Part.SEND_BUFFERS: "send buffers",
    Part.RECEIVE_BUFFERS: "receive buffers",
}
"""What each part is called in messages."""

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def check_memory(program: Program, calls: Calls, timeline: Timeline) -> list[Diagnostic]:
    """One finding for every rank over its cap, with what is alive at the first peak and which operations carry it."""
    caps = program.memory.cap
    if all(cap is None for cap in caps):
        return []
    used = memory_used(program, calls)
    peaks = [used.peak(rank) for rank in range(program.ranks)]
    over = [rank for rank, cap in enumerate(caps) if cap is not None and peaks[rank].size > cap][:MOST_FINDINGS]
    if not over:
        return []
    parts = parts_at_peaks(program, calls, peaks)
    times = call_times(calls, timeline)
    found = []
    for rank in over:
        peak = peaks[rank]
        time = None if peak.row < 0 else int(times[peak.at_end][peak.row]) * timeline.unit
        found.append(_over(program, calls, rank, peak, parts[rank], time))
    return found


def _over(
    program: Program, calls: Calls, rank: int, peak: Peak, parts: Mapping[Part, Fraction], time: Fraction | None
) -> Diagnostic:
    in_bytes, cap = program.memory.in_bytes, program.memory.cap[rank] or Fraction(0)
    most, limit, excess = (size_text(size, in_bytes) for size in (peak.size, cap, peak.size - cap))
    message = f"rank {rank} holds {most} at its peak, {excess} over its cap of {limit}"
    notes = []
    if time is not None:
        notes.append(f"the peak is at time {time}, {_moment(program, calls, peak)}; alive then:")
    notes += part_lines(program, calls, rank, peak, parts)
    op = -1 if peak.row < 0 else int(calls.op[peak.row])
    if op < 0:
        return Diagnostic("PD401", message, rank_span(program, rank), notes=tuple(notes))
    labels = (Label(program.span_of(op), f"the peak is at {program.label(op)}"),)
    return Diagnostic("PD401", message, program.span_of(op), labels, tuple(notes))


def _moment(program: Program, calls: Calls, peak: Peak) -> str:
    """`when F stage 0 microbatch 4 starts`, `at isend F3@2 to rank 2`."""
    if calls.kind[peak.row] != CallKind.COMPUTE:
        return f"at {calls.label(peak.row)}"
    return f"when {program.label(int(calls.op[peak.row]))} {'ends' if peak.at_end else 'starts'}"


def part_lines(program: Program, calls: Calls, rank: int, peak: Peak, parts: Mapping[Part, Fraction]) -> Iterator[str]:
    """A line for each part of the memory at a peak, with the stages and microbatches that hold it."""
    carried = _carriers(program, calls, rank, peak)
    for part, size in parts.items():
        by = carried.get(part, "")
        yield f"{NAMES[part]}: {size_text(size, program.memory.in_bytes)}{f', {by}' if by else ''}"


def _carriers(program: Program, calls: Calls, rank: int, peak: Peak) -> dict[Part, str]:
    """The operations that hold each part at a moment of a rank."""
    first = int(calls.offsets[rank])
    started = np.arange(first, peak.row + 1)
    done = started if peak.at_end else started[:-1]
    found = {
        part: text
        for part, text in zip(
            (Part.ACTIVATIONS, Part.HELD_BY_W, Part.INPUTS),
            _microbatches(program, _operations(calls, started), _operations(calls, done)),
            strict=True,
        )
        if text
    }
    buffers = _open_buffers(calls, started, done)
    for part, kinds in (
        (Part.SEND_BUFFERS, (CallKind.SEND, CallKind.ISEND)),
        (Part.RECEIVE_BUFFERS, (CallKind.RECV, CallKind.IRECV)),
    ):
        rows = buffers[np.isin(calls.kind[buffers], kinds)]
        if len(rows):
            names = [str(calls.tags[int(tag)]) for tag in calls.tag[rows[:4]]]
            found[part] = _listed(names, len(rows))
    return found


def _operations(calls: Calls, rows: Ints) -> Ints:
    ops: Ints = calls.op[rows[calls.kind[rows] == CallKind.COMPUTE]]
    return ops


def _microbatches(program: Program, started: Ints, done: Ints) -> tuple[str, str, str]:
    """Who holds activations, who is held for W and who keeps inputs, after these operations, stage by stage."""
    memory = program.memory
    texts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for stage in np.unique(program.stage[started]).tolist():
        own, ended = started[program.stage[started] == stage], done[program.stage[done] == stage]
        forward, whole, inputs, weights = (
            program.replica[rows].astype(np.int64) * program.microbatches + program.microbatch[rows]
            for rows in (
                own[program.kind[own] == Kind.F],
                ended[program.kind[ended] == Kind.B],
                ended[program.kind[ended] == Kind.I],
                ended[program.kind[ended] == Kind.W],
            )
        )
        alive = np.setdiff1d(forward, np.union1d(whole, inputs))
        for text, held, size in zip(
            texts,
            (alive, np.setdiff1d(inputs, weights), alive),
            (memory.activation[stage], memory.held_by_w[stage], memory.input[stage]),
            strict=True,
        ):
            if len(held) and size:
                names = first_few([_microbatch(program, key) for key in held[:4].tolist()], len(held))
                each = size_text(size, memory.in_bytes)
                text.append(f"stage {stage}: {len(held)} x {each}, microbatch{'es' if len(held) > 1 else ''} {names}")
    activations, for_w, kept = ("; ".join(text) for text in texts)
    return activations, for_w, kept


def _microbatch(program: Program, key: int) -> str:
    """A microbatch, and of which replica where there are several."""
    replica, number = divmod(key, max(1, program.microbatches))
    return str(number) if len(program.placement) == 1 else f"{number} of {program.replica_name(replica)}"


def _open_buffers(calls: Calls, started: Ints, done: Ints) -> Ints:
    """Rows of messages whose buffers are held: posted, and not yet waited for."""
    kinds = calls.kind[started]
    posted = started[np.isin(kinds, (CallKind.ISEND, CallKind.IRECV))]
    waited = calls.request[done[calls.kind[done] == CallKind.WAIT]]
    blocking = np.setdiff1d(started, done)
    blocking = blocking[np.isin(calls.kind[blocking], (CallKind.SEND, CallKind.RECV))]
    held: Ints = np.concatenate((posted[~np.isin(calls.request[posted], waited)], blocking))
    return held


def _listed(names: list[str], count: int) -> str:
    shown = names if count <= 4 else names[:3]
    return f"{', '.join(shown)}{f' (and {count - len(shown)} more)' if count > len(shown) else ''}"


def size_text(size: Fraction, in_bytes: bool, rounding: str = ROUND_HALF_EVEN) -> str:
    """A size as people read it: `7`, `5/2`, `1.5 GiB`, of which six digits are said; `rounding` as in `decimal`."""
    if in_bytes:
        for unit, value in _UNITS:
            if abs(size) >= value:
                part = size / value
                said = Context(prec=6, rounding=rounding).divide(Decimal(part.numerator), Decimal(part.denominator))
                return f"{said.normalize():f} {unit}"
        return f"{size} byte{'' if size == 1 else 's'}"
    return str(size)
