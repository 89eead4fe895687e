"""Calls as lists of entries, to move and to join, and back: requests are numbered anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.occupancy import requests_waited
from pipedsl.program import Ints

BLOCKING = (CallKind.SEND, CallKind.RECV)


@dataclass(frozen=True)
class Entry:
    """One step of a rank, or a row that is no communication.

    `rows`: of the original calls; several in a batch. `waits`: of a WAIT, the row whose request it is for. `order`:
    see `Calls.order`.
    """

    kind: CallKind
    rows: tuple[int, ...]
    batched: bool = False
    waits: int = -1
    order: int = -1

    @property
    def issues(self) -> bool:
        """Whether it starts a communication."""
        return self.kind in (*BLOCKING, CallKind.ISEND, CallKind.IRECV)


Script = list[Entry]


def read_script(calls: Calls) -> list[Script] | None:
    """Every rank's entries; None if some wait is for no request made before it."""
    wait, issue = requests_waited(calls)
    if int((calls.kind == CallKind.WAIT).sum()) > len(np.unique(wait)) or bool((issue > wait).any()):
        return None
    made = dict(zip(wait.tolist(), issue.tolist(), strict=True))
    kinds, batches, scripts = calls.kind.tolist(), calls.batch.tolist(), []
    for rank in range(calls.ranks):
        script: Script = []
        batch = -1
        for row in calls.rows(rank):
            kind = CallKind(kinds[row])
            if batches[row] >= 0 and batches[row] == batch:
                script[-1] = replace(script[-1], rows=(*script[-1].rows, row))
                continue
            batch = batches[row]
            script.append(Entry(kind, (row,), batch >= 0, made.get(row, -1)))
        scripts.append(script)
    return scripts


def write_script(calls: Calls, scripts: Sequence[Script]) -> Calls:
    """The calls that the entries write. A second wait for one request, as where its batch was joined, is left out."""
    kinds: list[int] = []
    rows: list[int] = []
    requests: list[int] = []
    batches: list[int] = []
    order: list[int] = []
    offsets = [0]
    for script in scripts:
        number: dict[int, int] = {}
        waited: set[int] = set()
        made = batch = 0
        for entry in script:
            request = -1
            if entry.kind is CallKind.WAIT:
                request = number[entry.waits]
                if request in waited:
                    continue
                waited.add(request)
            elif entry.issues and entry.kind not in BLOCKING:
                request, made = made, made + 1
                number.update(dict.fromkeys(entry.rows, request))
            for original in entry.rows:
                kinds.append(int(calls.kind[original]) if entry.batched else entry.kind)
                rows.append(original)
                requests.append(request)
                batches.append(batch if entry.batched else -1)
                order.append(entry.order)
            batch += entry.batched
        offsets.append(len(rows))
    kind: Ints = np.array(kinds, calls.kind.dtype)
    row: Ints = np.array(rows, np.int64)
    talks = np.isin(kind, (*BLOCKING, CallKind.ISEND, CallKind.IRECV))
    known = all(place >= 0 for place in order)

    def column(values: Ints, only: Ints) -> Ints:
        found: Ints = np.where(only, values[row], -1)
        return found

    return replace(
        calls,
        offsets=np.array(offsets, np.int64),
        kind=kind,
        peer=column(calls.peer, talks),
        tag=column(calls.tag, talks),
        request=np.array(requests, np.int64),
        batch=np.array(batches, np.int64),
        op=calls.op[row],
        order=np.array(order, np.int64) if known else None,
        buffers=None if calls.buffers is None else calls.buffers.of_rows(row, kind),
        reductions=None if calls.reductions is None else calls.reductions.of_rows(row),
    )
