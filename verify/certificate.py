"""Certificates: what was proved of a program or of calls, with evidence that `verify/checker.py` can check alone.

docs/certificate.md describes the format. What stands here is read off what the verifier found; whether it is right is
not for this module to say, but for the checker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind, Calls
from pipedsl.memory_json import memory_json
from pipedsl.occupancy import activations_held
from pipedsl.program import COMPUTE, Ints, Kind, Program
from pipedsl.simulate import Metrics
from verify.deadlock import mirrored
from verify.events import Event, event_graph, steps_of
from verify.matching import SENDS, match
from verify.reductions import Meeting, meetings_of
from verify.report import Report, Verdict
from verify.transports import BY_NAME
from verify.waiting import SAFE

FORMAT, VERSION = "pipedsl certificate", 1
_OPERATIONS = np.frombuffer(b"FBIW", np.uint8)  # by Kind
_CALLS = np.frombuffer(b"?SRsrw=", np.uint8)  # by CallKind
_BATCH = ord("[")


def certificate(program: Program | None, calls: Calls, report: Report) -> dict[str, Any]:
    """The certificate of what `report` says of `calls`, which carry out `program` (None for calls alone).

    Raises ValueError for what is not verified, and for what the format cannot say yet.
    """
    if report.verdict is not Verdict.VERIFIED:
        raise ValueError(f"only what is verified gets a certificate, and this is {report.verdict.value}")
    computes = calls.kind == CallKind.COMPUTE
    if (calls.op[computes] < 0).any() or (program is None and computes.any()):
        raise ValueError("calls that name their buffers, or run operations of no program, get no certificate yet")
    if program is not None and _apart(program):
        raise ValueError("a REDUCE of a stage of which one rank holds several copies gets no certificate yet")
    steps, meetings = _Numbering(calls), meetings_of(calls)
    names = _names(calls)
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "program": None if program is None else _head(program),
        "tags": list(names),
        "ranks": _ranks(program, calls, names),
        "orders": _orders(calls, [name for name, state in report.transports.items() if state == SAFE], steps, meetings),
        "memory": None if program is None or report.metrics is None else _memory(program, report.metrics),
    }
    return {**body, "sha256": digest(body)}


def digest(body: dict[str, Any]) -> str:
    """The SHA-256 of a certificate but for its `sha256`, written with sorted keys and without spaces."""
    content = {name: value for name, value in body.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _head(program: Program) -> dict[str, Any]:
    """What `pipedsl expand` says of the program besides its operations."""
    placement = program.placement.tolist()
    return {
        "schedule": program.name,
        "params": dict(program.params),
        "stages": program.stages,
        "placement": placement[0] if len(placement) == 1 else placement,
    }


def _apart(program: Program) -> bool:
    """Whether a REDUCE is of a stage that one rank holds several copies of."""
    summed = np.unique(program.stage[program.kind == Kind.REDUCE])
    return any(len(set(ranks)) < len(ranks) for ranks in program.placement[:, summed].T.tolist())


def _names(calls: Calls) -> dict[str, int]:
    """The names of the messages and sums that occur, numbered."""
    used = [calls.tags[tag] for tag in np.unique(calls.tag[calls.tag >= 0]).tolist()]
    if calls.reductions is not None:
        used += [calls.reductions.names[group] for group in np.unique(calls.reductions.group).tolist() if group >= 0]
    return {name: number for number, name in enumerate(dict.fromkeys(used))}


def _ranks(program: Program | None, calls: Calls, names: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every rank's operations and calls as columns: a letter, x and y each; before a batch a row for it."""
    talks, waits = calls.tag >= 0, calls.kind == CallKind.WAIT
    letter = _CALLS[calls.kind]
    x: NDArray[np.int64] = np.where(waits, calls.request, calls.peer).astype(np.int64)
    y: NDArray[Any] = np.zeros(len(calls), np.int64)
    used, number = np.unique(calls.tag[talks], return_inverse=True)
    y[talks] = np.array([names[calls.tags[tag]] for tag in used.tolist()], np.int64)[number]
    if calls.reductions is not None:
        y = y.astype(object)  # the ranks of a sum as the bits of a number
        for row in np.flatnonzero(calls.kind == CallKind.REDUCE).tolist():
            group = int(calls.reductions.group[row])
            x[row], y[row] = names[calls.reductions.names[group]], sum(1 << r for r in calls.reductions.ranks[group])
    if program is not None:
        rows = np.flatnonzero(calls.kind == CallKind.COMPUTE)
        op = calls.op[rows]
        if not np.isin(program.kind[op], COMPUTE).all():
            raise ValueError("operations other than F, B, I and W get no certificate yet")
        letter[rows] = _OPERATIONS[program.kind[op]]
        x[rows] = program.replica[op].astype(np.int64) * program.stages + program.stage[op]
        y[rows] = program.microbatch[op]
    rank, offsets = calls.rank_of(), calls.offsets
    inside = np.flatnonzero(calls.batch >= 0)
    if len(inside):
        _, first, size = np.unique(
            np.stack((rank[inside], calls.batch[inside])), axis=1, return_index=True, return_counts=True
        )
        at = inside[first]
        letter, x, y = np.insert(letter, at, _BATCH), np.insert(x, at, size), np.insert(y, at, 0)
        offsets = offsets + np.searchsorted(np.sort(at), offsets, "left")
    bounds = offsets.tolist()
    return [
        {"do": letter[a:b].tobytes().decode("ascii"), "x": x[a:b].tolist(), "y": y[a:b].tolist()}
        for a, b in pairwise(bounds)
    ]


class _Numbering:
    """Steps as the certificate counts them: sends, receives, sums and batches, but no waits."""

    def __init__(self, calls: Calls) -> None:
        self.steps = steps_of(calls)
        self.number: Ints = np.cumsum(~self.steps.is_wait) - 1
        self.batched = bool((calls.batch >= 0).any())

    def of_rows(self, rows: Ints) -> Ints:
        found: Ints = self.number[self.steps.of_row[rows]]
        return found


def _orders(calls: Calls, names: Sequence[str], steps: _Numbering, meetings: Sequence[Meeting]) -> list[dict[str, Any]]:
    """The evidence for these transports: one order of messages or events for all, else one of events for each."""
    if not names:
        raise ValueError("a certificate is for a transport at least")
    messages = _message_order(calls, steps, meetings)
    if messages is not None:
        return [{"transports": list(names), "messages": messages.tolist()}]
    together = _event_order(calls, names, steps)
    if together is not None:
        return [{"transports": list(names), "events": together.tolist()}]
    found = []
    for name in names:
        alone = _event_order(calls, [name], steps)
        if alone is None:
            raise ValueError(f"the calls have no order of events on {name}, where they are said to be safe")
        found.append({"transports": [name], "events": alone.tolist()})
    return found


def _message_order(calls: Calls, steps: _Numbering, meetings: Sequence[Meeting]) -> Ints | None:
    """The sending steps in an order in which every rank makes its calls, if there is one and no call is in a batch.

    The first step of each sum, by its number, stands among them.
    """
    if steps.batched:
        return None
    sums: Ints = np.array([meeting.rows[0] for meeting in meetings], np.int64)
    if mirrored(calls) and calls.order is not None:
        sends = np.concatenate((np.flatnonzero(np.isin(calls.kind, SENDS)), sums))
        return steps.of_rows(sends[np.argsort(calls.order[sends], kind="stable")])
    met = match(calls, BY_NAME["gloo"])
    if len(met.left):
        return None
    message: Ints = np.full(len(calls), -1, np.int64)
    message[met.send] = message[met.recv] = np.arange(len(met.send))
    for number, meeting in enumerate(meetings, len(met.send)):
        message[list(meeting.rows)] = number
    first = np.concatenate((met.send, sums))
    rows = np.flatnonzero(message >= 0)
    rank = calls.rank_of()[rows]
    follows = rank[1:] == rank[:-1]
    sequence = _sequence(len(first), message[rows[1:]][follows], message[rows[:-1]][follows])
    return None if sequence is None else steps.of_rows(first[sequence])


def _event_order(calls: Calls, names: Sequence[str], steps: _Numbering) -> Ints | None:
    """All events in an order that all of these transports allow: 3 step + (0 launched, 1 started, 2 finished)."""
    count = len(steps.steps)
    nodes, later, sooner = count * Event.BARRIER, list[Ints](), list[Ints]()
    for name in names:
        graph = event_graph(calls, BY_NAME[name])
        shift = nodes - count * Event.BARRIER  # every transport has barriers of its own
        for ends, mine in ((graph.later, later), (graph.sooner, sooner)):
            mine.append(np.where(ends >= count * Event.BARRIER, ends + shift, ends))
        nodes += graph.nodes - count * Event.BARRIER
    sequence = _sequence(nodes, np.concatenate(later), np.concatenate(sooner))
    if sequence is None or not count:
        return sequence
    event, step = np.divmod(sequence, count)
    cold = any(BY_NAME[name].cold for name in names)
    told = np.isin(event, (Event.START, Event.FINISH, *((Event.LAUNCHED,) if cold else ())))
    told[told] &= ~steps.steps.is_wait[step[told]]
    kind = np.select([event == Event.START, event == Event.FINISH], [1, 2], 0)
    order: Ints = 3 * steps.number[step[told]] + kind[told]
    return order


def _sequence(nodes: int, later: Ints, sooner: Ints) -> Ints | None:
    """All nodes, each after those that it waits for; None if some wait for each other. Linear."""
    left = np.bincount(later, minlength=nodes).tolist()
    order = np.argsort(sooner, kind="stable")
    first = np.searchsorted(sooner[order], np.arange(nodes + 1)).tolist()
    followers = later[order].tolist()
    ready = [node for node, count in enumerate(left) if not count]
    for node in ready:  # grows while it is walked
        for follower in followers[first[node] : first[node + 1]]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return np.array(ready, np.int64) if len(ready) == nodes else None


def _memory(program: Program, metrics: Metrics) -> dict[str, Any]:
    """Sizes, and what follows from them: activations after every computation in multiples of 1 / `parts`, and peaks."""
    sizes = memory_json(program.memory)
    held = activations_held(program)
    parts = held.unit.denominator
    computes = np.isin(program.kind, COMPUTE)
    after = [held.after[rows][computes[rows]].tolist() for rows in map(_slice, program.offsets, program.offsets[1:])]
    return {
        **sizes,
        "parts": parts,
        "activations_after": after,
        "peak_activations": [int(peak * parts) for peak in metrics.peak_activations],
        "peak": [int(peak * sizes["unit"]) for peak in metrics.memory],
    }


def _slice(start: int, end: int) -> slice:
    return slice(int(start), int(end))
