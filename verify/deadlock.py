"""Whether every rank reaches its end.

No call chooses whom it meets, so one greedy run decides: take away events whose predecessors are all gone; what
cannot be taken away never happens. Calls made by the safe recipe are proved by their order, which is quicker.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind, Calls
from pipedsl.program import Ints
from verify.events import EventGraph
from verify.matching import RECEIVES, SENDS, channels
from verify.reductions import meetings_of


def mirrored(calls: Calls) -> bool:
    """Whether `calls.order` proves that the calls are safe on every transport, cold and warm.

    It does if on every rank it grows from call to call, both ends of every message have the same place and the same
    tag, all ranks of a reduction have the same place, no call is in a batch or to its own rank, and requests are waited
    for after they are made. Then the events of a place need only what comes earlier in that order: waits are for
    earlier places, streams and hosts go by place, and the first use of anything is the same message on both sides. A
    first receive that holds its host in the compiled executor (`layouts`) waits for the computation that made its
    message, which comes before that place too.
    """
    if calls.order is None or (calls.batch >= 0).any():
        return False
    rank = calls.rank_of()
    issued = np.flatnonzero(np.isin(calls.kind, (*SENDS, *RECEIVES, CallKind.REDUCE)))
    if ((np.diff(calls.order[issued]) <= 0) & (np.diff(rank[issued]) == 0)).any():
        return False
    for meeting in meetings_of(calls):
        if not meeting.complete or len(set(calls.order[list(meeting.rows)].tolist())) > 1:
            return False
    rows = issued[calls.kind[issued] != CallKind.REDUCE]
    order = calls.order[rows]
    if (calls.peer[rows] == rank[rows]).any():
        return False
    sends = np.isin(calls.kind[rows], SENDS)
    ends = []
    for side in (sends, ~sends):
        channel = channels(calls, rows[side])
        by_channel = np.lexsort((order[side], channel))
        ends.append(np.stack((channel, order[side], calls.tag[rows[side]]))[:, by_channel])
    return ends[0].shape == ends[1].shape and bool((ends[0] == ends[1]).all()) and _waits_follow(calls)


def _waits_follow(calls: Calls) -> bool:
    """Whether every wait is for a request that its rank made before."""
    issues = np.isin(calls.kind, (CallKind.ISEND, CallKind.IRECV))
    waits = calls.kind == CallKind.WAIT
    made = np.cumsum(issues)
    before_rank = np.repeat(np.concatenate(([0], made))[calls.offsets[:-1]], np.diff(calls.offsets))
    made = made - before_rank
    numbered = bool((calls.request[issues] == made[issues] - 1).all())
    return numbered and bool(((calls.request[waits] >= 0) & (calls.request[waits] < made[waits])).all())


def stuck_events(graph: EventGraph) -> NDArray[np.bool_]:
    """Which events never happen: (nodes,). Linear in events and edges."""
    return without_end(graph.nodes, graph.later, graph.sooner, graph.never)


def without_end(nodes: int, later: Ints, sooner: Ints, never: Ints) -> NDArray[np.bool_]:
    """What is left of `nodes` after taking away, again and again, those that wait for nothing."""
    waits_for = np.bincount(later, minlength=nodes)
    np.add.at(waits_for, never, 1)
    order = np.argsort(sooner, kind="stable")
    first = np.searchsorted(sooner[order], np.arange(nodes + 1)).tolist()
    followers = later[order].tolist()
    ready = np.flatnonzero(waits_for == 0).tolist()
    left = waits_for.tolist()
    while ready:
        node = ready.pop()
        for follower in followers[first[node] : first[node + 1]]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return np.array(left, np.int64) > 0


def hangs(graph: EventGraph, stuck: NDArray[np.bool_]) -> bool:
    """Whether some rank never reaches its end."""
    return bool(stuck[graph.ends].any())
