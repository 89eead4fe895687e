"""Advice (PD9xx): what a verified program could do better. Never a reason to reject one.

Every move that is named has been simulated, and keeps the order legal and the memory under its caps.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.dependencies import arrives_late, dependencies
from pipedsl.diagnostics import Diagnostic, Label, Severity
from pipedsl.lower import lower
from pipedsl.occupancy import memory_used
from pipedsl.program import COMPUTE, Program
from pipedsl.simulate import Metrics, Timeline, measure
from verify.memory import check_memory, size_text
from verify.moves import Budget, Move, at_its_shortest, relieving_moves, shortening_moves, simulate_move
from verify.wording import and_more

QUICK, THOROUGH = 40_000, 10_000_000
"""How much simulating advice may cost, in operations simulated: about 50 ms, about 10 s."""

LARGE_BUBBLE = Fraction(1, 10)


def advise(
    program: Program, calls: Calls, timeline: Timeline, metrics: Metrics, thorough: bool = False
) -> list[Diagnostic]:
    """Advice on a verified program. `thorough`: look further than costs next to nothing."""
    found: list[Diagnostic | None] = []
    budget = Budget(THOROUGH if thorough else QUICK)
    if program.explicit_communication:
        if thorough or len(calls) <= QUICK:
            found.append(_early_receive(program, calls, timeline))
    elif budget.allows(program):
        found += [_shorter(program, timeline, metrics, budget), _lighter(program, calls, timeline, budget)]
    return [each for each in found if each is not None]


def few_microbatches(program: Program, metrics: Metrics, more: Metrics | None) -> Diagnostic | None:
    """PD904. `more`: the metrics with four microbatches a rank, where they are known."""
    p, m = program.ranks, program.microbatches
    if p == 1 or m >= 4 * p or min(metrics.bubble, metrics.span_bubble) < LARGE_BUBBLE:
        return None
    help = f"in most schedules it is smaller with {4 * p} microbatches, 4 for every rank"
    if more is not None:
        if more.bubble >= metrics.bubble:
            return None
        help = f"with {4 * p} microbatches, 4 for every rank, it is {_percent(more.bubble)}"
    message = f"{m} microbatch{'' if m == 1 else 'es'} on {p} ranks: {_percent(metrics.bubble)} of the time is bubble"
    return _advice("PD904", message, program, None, help=help)


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):.1f} %"


def _advice(code: str, message: str, program: Program, row: int | None, labels: tuple[Label, ...] = (),
            notes: tuple[str, ...] = (), help: str | None = None) -> Diagnostic:  # fmt: skip
    span = program.header_span if row is None else program.span_of(row)
    return Diagnostic(code, message, span, labels, notes, help, Severity.ADVICE)


# ------------------------------------------------------------------ PD901, PD902: moves


def _shorter(program: Program, timeline: Timeline, metrics: Metrics, budget: Budget) -> Diagnostic | None:
    """The move of one operation that shortens the makespan most."""
    if at_its_shortest(program, timeline):
        return None
    better: list[tuple[Fraction, Move, Program, Timeline]] = []
    for move in shortening_moves(program, timeline):
        if not budget.take(program):
            break
        done = simulate_move(program, move)
        if done is not None and done[1].makespan < timeline.makespan:
            better.append((done[1].makespan, move, *done))
    for _, move, changed, after in sorted(better, key=lambda each: (each[0], each[1].row)):
        calls = lower(changed, after)
        if check_memory(changed, calls, after):
            continue
        found = measure(changed, after, calls)
        message = (
            f"{_where(program, move)} shortens the makespan from {metrics.makespan} to {found.makespan}, "
            f"the bubble from {_percent(metrics.bubble)} to {_percent(found.bubble)}"
        )
        return _advice("PD901", message, program, move.row, _labels(program, move), _peaks(program, metrics, found))
    return None


def _lighter(program: Program, calls: Calls, timeline: Timeline, budget: Budget) -> Diagnostic | None:
    """The move of one operation that lowers a rank's peak most, in parts of it, and costs no time nor memory."""
    used, needs = memory_used(program, calls), dependencies(program)
    before_peaks = used.peaks()
    best: tuple[Fraction, int, Move, Fraction, Fraction] | None = None
    others = 0
    for rank in range(program.ranks):
        peak = used.peak(rank)
        if peak.row < 0 or not peak.size:
            continue
        for move in relieving_moves(program, needs, rank, _operation_at(calls, rank, peak.row)):
            if not budget.take(program):
                break
            done = simulate_move(program, move)
            if done is None or done[1].makespan > timeline.makespan:
                continue
            moved_calls = lower(*done)
            peaks = memory_used(done[0], moved_calls).peaks()
            if any(new > old for new, old in zip(peaks, before_peaks, strict=True)):
                continue
            lower_peak = peaks[rank]
            if lower_peak < peak.size and not check_memory(done[0], moved_calls, done[1]):
                others += best is not None
                gain = 1 - lower_peak / peak.size
                if best is None or gain > best[0]:
                    best = (gain, rank, move, peak.size, lower_peak)
                break
    if best is None:
        return None
    _, rank, move, before, after = best
    sizes = tuple(size_text(size, program.memory.in_bytes) for size in (before, after))
    message = f"{_where(program, move)} lowers the peak of rank {rank} from {sizes[0]} to {sizes[1]} and costs no time"
    notes = (f"{others} more rank{'' if others == 1 else 's'} could hold less in the same way",) if others else ()
    return _advice("PD902", message, program, move.row, _labels(program, move), notes)


def _operation_at(calls: Calls, rank: int, row: int) -> int:
    """The operation that runs, or ran last, on a rank at one of its calls; its first one before any has."""
    own = calls.rows(rank)
    computes = own.start + np.flatnonzero(calls.kind[own.start : own.stop] == CallKind.COMPUTE)
    before = int(np.searchsorted(computes, row, "right")) - 1
    return int(calls.op[computes[max(before, 0)]])


def _where(program: Program, move: Move) -> str:
    side = "before" if move.place < move.row else "after"
    return f"moving {program.label(move.row)} {side} {program.label(move.place)}"


def _labels(program: Program, move: Move) -> tuple[Label, ...]:
    side = "before" if move.place < move.row else "after"
    if program.span[move.row] == program.span[move.place]:
        return ()
    return (Label(program.span_of(move.place), f"{side} {program.label(move.place)}"),)


def _peaks(program: Program, before: Metrics, after: Metrics) -> tuple[str, ...]:
    """What a move costs in memory, if anything."""
    in_bytes = program.memory.in_bytes
    return tuple(
        f"the peak of rank {rank} grows from {size_text(old, in_bytes)} to {size_text(new, in_bytes)}"
        for rank, (old, new) in enumerate(zip(before.memory, after.memory, strict=True))
        if new > old
    )


# ------------------------------------------------------------------ PD903: receives that hold sends up


def _early_receive(program: Program, calls: Calls, timeline: Timeline) -> Diagnostic | None:
    """The send that is held up longest by a receive whose data comes later.

    On NCCL the two directions of a pair share one stream, so what is posted first must end first.
    """
    unit = timeline.unit
    arrival = _arrivals(program, timeline)
    worst: tuple[int, int, int] | None = None
    count = 0
    for rank in range(program.ranks):
        behind: dict[int, tuple[int, int]] = {}  # peer -> (when the latest receive so far is done, its operation)
        ready = 0
        for row in calls.rows(rank):
            kind, op, peer = int(calls.kind[row]), int(calls.op[row]), int(calls.peer[row])
            if kind in (CallKind.COMPUTE, CallKind.REDUCE):
                ready = int(timeline.end[op])
            elif kind == CallKind.IRECV and op in arrival:
                behind[peer] = max(behind.get(peer, (0, -1)), (arrival[op], op))
            elif kind == CallKind.ISEND and peer in behind:
                done, receive = behind[peer]
                if done > ready:
                    count += 1
                    if worst is None or done - ready > worst[0]:
                        worst = (done - ready, op, receive)
    if worst is None:
        return None
    delay, send, receive = worst
    message = (
        f"{program.label(send)} stands {delay * unit} behind {program.label(receive)}, which is posted before it and "
        f"has its data later{and_more(count - 1)}"
    )
    return _advice(
        "PD903",
        message,
        program,
        receive,
        (Label(program.span_of(send), "this send is ready, and waits for the receive"),),
        ("on NCCL the messages of two ranks share one stream: what is posted first must end first",),
        "post the receive later, after the sends that are ready before its data comes",
    )


def _arrivals(program: Program, timeline: Timeline) -> dict[int, int]:
    """When the data of every RECV is there, in units of the timeline, by its row."""
    needs = dependencies(program)
    users = np.flatnonzero(arrives_late(program, needs.upstream) & np.isin(program.kind, COMPUTE))
    users = users[needs.posted[users] >= 0]
    sources = needs.upstream[users]
    send = [int(cost / timeline.unit) for cost in program.costs.send]
    stages = program.stage[sources].tolist()
    ends = timeline.end[sources].tolist()
    return {
        posted: end + send[stage] for posted, end, stage in zip(needs.posted[users].tolist(), ends, stages, strict=True)
    }
