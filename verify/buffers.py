"""Named buffers: none is read before its message has arrived, none is written or freed before its message has left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipedsl.calls import Buffers, BufferUse, CallKind, Calls
from pipedsl.diagnostics import Diagnostic
from verify.matching import SENDS
from verify.wording import and_more

BATCH_LIMIT = 2048
"""Operations that NCCL takes between ncclGroupStart and ncclGroupEnd; more fail (NCCL's documentation, "Group Calls",
docs.nvidia.com/deeplearning/nccl/archives/nccl_2114/user-guide/docs/api/group.html)."""

_MOST_FINDINGS = 20
_HELP = "wait for that request first, or use another buffer"


@dataclass
class _State:
    """One buffer: the sends that still read it, the receives that still write it, by row; the row that freed it."""

    sends: dict[int, None] = field(default_factory=dict)
    receives: dict[int, None] = field(default_factory=dict)
    freed: int = -1


def check_buffers(calls: Calls) -> list[Diagnostic]:
    """PD305 for the first misuse of every buffer on every rank."""
    buffers = calls.buffers
    if buffers is None:
        return []
    found: list[Diagnostic] = []
    for rank in range(calls.ranks):
        for (row, what), more in _misuses(calls, buffers, rank):
            message = f"rank {rank}: `{calls.label(row)}` {what}{and_more(more)}"
            found.append(Diagnostic("PD305", message, help=_HELP))
    return found[:_MOST_FINDINGS]


def _misuses(calls: Calls, buffers: Buffers, rank: int) -> list[tuple[tuple[int, str], int]]:
    """The first misuse of every buffer of a rank as row and text, and how many more there are of it."""
    states: dict[int, _State] = {}
    under_way: dict[int, list[tuple[dict[int, None], int]]] = {}  # request -> what its wait settles
    first: dict[int, tuple[int, str]] = {}
    count: dict[int, int] = {}
    for row in calls.rows(rank):
        if calls.kind[row] == CallKind.WAIT:
            for rows, member in under_way.pop(int(calls.request[row]), ()):
                rows.pop(member, None)
            continue
        number = int(buffers.number[row])
        if number < 0:
            continue
        state = states.setdefault(number, _State())
        name = buffers.names[number]
        if (what := _misuse(calls, row, BufferUse(buffers.use[row]), name, state)) is not None:
            first.setdefault(number, (row, what))
            count[number] = count.get(number, -1) + 1
        if buffers.use[row] == BufferUse.FREE:
            states[number] = _State(freed=row)
        elif buffers.use[row] == BufferUse.WRITE:
            state.freed = -1
        elif calls.kind[row] in (CallKind.ISEND, CallKind.IRECV):
            rows = state.sends if calls.kind[row] == CallKind.ISEND else state.receives
            rows[row] = None
            under_way.setdefault(int(calls.request[row]), []).append((rows, row))
    return sorted((first[number], count[number]) for number in first)


def _misuse(calls: Calls, row: int, use: BufferUse, name: str, state: _State) -> str | None:
    """What is wrong with using the buffer at `row`, if anything."""
    reads = use is BufferUse.READ or (use is BufferUse.NONE and bool(np.isin(calls.kind[row], SENDS)))
    if state.freed >= 0 and use is not BufferUse.WRITE:
        return f"uses buffer {name} after it was freed"
    if state.receives:
        other = calls.label(next(iter(state.receives)))
        if reads:
            return f"reads buffer {name} before the wait for `{other}`: the message may not have arrived"
        return f"{_verb(use)} buffer {name} before the wait for `{other}`: two writers, one buffer"
    if state.sends and not reads:
        other = calls.label(next(iter(state.sends)))
        return f"{_verb(use)} buffer {name} before its send has completed: `{other}` is not waited for yet"
    return None


def _verb(use: BufferUse) -> str:
    return {BufferUse.FREE: "frees", BufferUse.WRITE: "writes"}.get(use, "receives into")


def check_batches(calls: Calls, limit: int) -> list[Diagnostic]:
    """PD304 for the first batch of each rank with more than `limit` operations."""
    rows = np.flatnonzero(calls.batch >= 0)
    if not len(rows):
        return []
    rank = calls.rank_of()[rows].astype(np.int64)
    key = rank * (int(calls.batch.max()) + 1) + calls.batch[rows]
    _, first, sizes = np.unique(key, return_index=True, return_counts=True)
    over = np.flatnonzero(sizes > limit)
    ranks, firsts, counts = np.unique(rank[first[over]], return_index=True, return_counts=True)
    found = []
    for number, at, count in zip(ranks.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        batch = over[at]
        shown = calls.label(int(rows[first[batch]]))
        message = f"rank {number}: the batch that begins with `{shown}` has {sizes[batch]:,} operations"
        more = and_more(count - 1)
        found.append(Diagnostic("PD304", f"{message}, and NCCL takes {limit:,}{more}", help="split the batch in two"))
    return found[:_MOST_FINDINGS]
