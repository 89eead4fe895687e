"""When the calls of a rank happen, as far as the times of the computations tell."""

from __future__ import annotations

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.occupancy import requests_waited
from pipedsl.program import Ints
from pipedsl.simulate import Timeline


def call_times(calls: Calls, timeline: Timeline) -> tuple[Ints, Ints]:
    """Start and end of every call, in multiples of `timeline.unit`: (calls,) each, growing within every rank.

    A computation or REDUCE takes its time. Any other call is made as soon as the one of these before it on its rank has
    ended, and ends at once; only the wait for a receive lasts until the next of them starts, which is what it holds up.
    """
    computes = np.isin(calls.kind, (CallKind.COMPUTE, CallKind.REDUCE))
    op = np.where(calls.op >= 0, calls.op, 0)
    if not computes.any():
        nothing: Ints = np.zeros(len(calls), np.int64)
        return nothing, nothing
    start = np.where(computes, timeline.start[op], 0)
    end = np.where(computes, timeline.end[op], 0)
    following = _next_start(calls, computes, start)
    waits, requests = requests_waited(calls)
    data = np.zeros(len(calls), bool)
    data[waits[calls.kind[requests] == CallKind.IRECV]] = True
    end = np.where(data, following, end)
    for rank in range(calls.ranks):
        rows = slice(int(calls.offsets[rank]), int(calls.offsets[rank + 1]))
        if rows.start < rows.stop:
            latest = np.maximum.accumulate(end[rows])
            start[rows] = np.where(computes[rows], start[rows], np.concatenate((latest[:1] * 0, latest[:-1])))
            end[rows] = latest
    return start, end


def _next_start(calls: Calls, computes: Ints, start: Ints) -> Ints:
    """The start of the next computation of every call's rank, 0 where none follows."""
    at = np.flatnonzero(computes)
    index = np.searchsorted(at, np.arange(len(calls)))
    found = at[np.minimum(index, len(at) - 1)]
    same = (index < len(at)) & (calls.rank_of()[found] == calls.rank_of())
    return np.where(same, start[found], 0)
