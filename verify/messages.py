"""Design section 5.3: every message arrives where it is wanted, nothing is left over, requests are waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.occupancy import requests_waited
from pipedsl.program import Ints, Program
from verify.matching import RECEIVES, SENDS, channels, match, without
from verify.naming import span_of
from verify.transports import BY_NAME, Transport
from verify.wording import and_more

_MOST_FINDINGS = 20
_NEVER_WAITED = "is never waited for"


def check_requests(calls: Calls, program: Program | None) -> list[Diagnostic]:
    """Every wait is for a request made before, and not waited for yet; one finding per rank and kind of fault."""
    wait, issue = requests_waited(calls)
    rank = calls.rank_of()
    waits = np.flatnonzero(calls.kind == CallKind.WAIT)
    order = np.lexsort((waits, calls.request[waits], rank[waits]))
    again = waits[order][1:][(np.diff(rank[waits][order]) == 0) & (np.diff(calls.request[waits][order]) == 0)]
    idle = without(calls, waits, wait)
    faults = (
        (idle, "waits for a request that is never made"),
        (without(calls, np.sort(again), idle), "waits for a request that was waited for before"),
        (np.sort(wait[wait < issue]), "comes before the request that it waits for"),
    )
    return _by_rank(calls, faults, program)


def check_unwaited(calls: Calls, program: Program | None) -> list[Diagnostic]:
    """Requests that nobody waits for: no hang, but nobody knows when their buffers are free."""
    issues = np.flatnonzero(np.isin(calls.kind, (CallKind.ISEND, CallKind.IRECV)))
    return _by_rank(calls, ((without(calls, issues, requests_waited(calls)[1]), _NEVER_WAITED),), program)


def _by_rank(calls: Calls, faults: Sequence[tuple[Ints, str]], program: Program | None) -> list[Diagnostic]:
    rank, found = calls.rank_of(), []
    for rows, what in faults:
        for number in sorted(set(rank[rows].tolist()))[:_MOST_FINDINGS]:
            own = rows[rank[rows] == number]
            first = int(own[0])
            message = f"rank {number}: `{calls.label(first)}` {what}{and_more(len(own) - 1)}"
            notes = _lifetime(calls, first) if what == _NEVER_WAITED else ()
            found.append(Diagnostic("PD303", message, span_of(program, calls, first), notes=notes))
    return found[:_MOST_FINDINGS]


def _lifetime(calls: Calls, row: int) -> tuple[str]:
    """What may happen to the buffer of a request that nobody waits for."""
    tag = calls.tags[int(calls.tag[row])]
    sends = calls.kind[row] in SENDS
    early = "released before its send has completed" if sends else "read before its message has arrived"
    return (f"not a hang of its own, but a lifetime error: the buffer of {tag} may be {early}",)


def crossed(calls: Calls, transport: Transport) -> bool:
    """Whether some receive gets another message than it wants."""
    met = match(calls, transport)
    return bool((calls.tag[met.send] != calls.tag[met.recv]).any())


def check_messages(calls: Calls, transports: Sequence[Transport], program: Program | None) -> list[Diagnostic]:
    """Messages left over (PD303), and messages that cross where order alone counts (PD302); one finding a channel.

    What is left over shifts all that follows it, so a channel where order alone leaves some over is not searched for
    crossings.
    """
    by_tag = match(calls, BY_NAME["gloo"])
    found = _left_over(calls, by_tag.left, "", program)
    faulty, told = np.unique(channels(calls, by_tag.left)), np.empty(0, np.int64)
    for transport in transports:
        if transport.by_tag:
            continue
        met = match(calls, transport)
        left = met.left[~np.isin(channels(calls, met.left), faulty)]
        why = f" on {transport.name}: a batched call never meets an unbatched one"
        found += _left_over(calls, left, why, program)
        faulty = np.union1d(faulty, channels(calls, left))
        wrong = np.flatnonzero(calls.tag[met.send] != calls.tag[met.recv])
        shifted = np.union1d(told, channels(calls, met.left))
        wrong = wrong[~np.isin(channels(calls, met.send[wrong]), shifted)]
        found += _crossings(calls, met.send[wrong], met.recv[wrong], program)
        told = np.union1d(told, channels(calls, met.send[wrong]))
    return found[:_MOST_FINDINGS]


def _left_over(calls: Calls, left: Ints, why: str, program: Program | None) -> list[Diagnostic]:
    rank, channel, found = calls.rank_of(), channels(calls, left), []
    for number in np.unique(channel)[:_MOST_FINDINGS]:
        rows = left[channel == number]
        first = int(rows[0])
        sends = bool(np.isin(calls.kind[first], SENDS))
        what = "is never received" if sends else "is never sent"
        message = f"rank {rank[first]}: the message of `{calls.label(first)}` {what}{why}{and_more(len(rows) - 1)}"
        side = "receive" if sends else "send"
        help_ = f"write the {side} on rank {calls.peer[first]}, or remove this call" if not why else None
        others = rows[np.isin(calls.kind[rows], RECEIVES if sends else SENDS)]
        if len(others) and not why:
            other = int(others[0])
            help_ = f"`{calls.label(other)}` on rank {rank[other]} names another message: let both name the same"
        found.append(Diagnostic("PD303", message, span_of(program, calls, first), help=help_))
    return found


def _crossings(calls: Calls, send: Ints, recv: Ints, program: Program | None) -> list[Diagnostic]:
    rank, channel, found = calls.rank_of(), channels(calls, send), []
    for number in np.unique(channel)[:_MOST_FINDINGS]:
        at = np.flatnonzero(channel == number)
        a, b = int(send[at[0]]), int(recv[at[0]])
        got, wanted = calls.tags[int(calls.tag[a])], calls.tags[int(calls.tag[b])]
        message = f"rank {rank[b]} receives {got} from rank {rank[a]} where it wants {wanted}: NCCL goes by order alone"
        spans = (span_of(program, calls, b), span_of(program, calls, a))
        labels = () if spans[1] is None else (Label(spans[1], f"rank {rank[a]} sends {got} here"),)
        help_ = "send and receive in the same order"
        found.append(Diagnostic("PD302", message + and_more(len(at) - 1), spans[0], labels, help=help_))
    return found
