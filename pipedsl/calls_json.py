"""Calls from and to JSON: `{"ranks": [[["isend", peer, tag], ["wait", k], ["batch", [[...], ...]], ...], ...]}`.

`k` counts a rank's non-blocking requests from 0; a batch is one request. Computations are not written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, DiagnosticError

_MESSAGES = {kind.name.lower(): kind for kind in (CallKind.SEND, CallKind.RECV, CallKind.ISEND, CallKind.IRECV)}
_BLOCKING = (CallKind.SEND, CallKind.RECV)


class _Rows:
    """Columns of Calls, filled row by row."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.columns: tuple[list[int], ...] = ([], [], [], [], [])  # kind, peer, tag, request, batch
        self.tags: dict[str, int] = {}

    def add(self, kind: CallKind, peer: int, tag: str | None, request: int, batch: int) -> None:
        number = -1 if tag is None else self.tags.setdefault(tag, len(self.tags))
        for column, value in zip(self.columns, (kind, peer, number, request, batch), strict=True):
            column.append(value)


def read_calls(document: Any) -> Calls:
    """The calls of a JSON value. Raises DiagnosticError (PD103) that says where it is not as described above."""
    ranks = document.get("ranks") if isinstance(document, dict) else None
    if not isinstance(ranks, list) or not all(isinstance(rank, list) for rank in ranks):
        raise _error('expected {"ranks": [...]} with a list of calls for every rank')
    rows, offsets = _Rows(len(ranks)), [0]
    for number, calls in enumerate(ranks):
        requests = batches = 0
        for place, call in enumerate(calls):
            where = f"rank {number}, call {place}"
            match call:
                case ["wait", int(k)] if type(k) is int and 0 <= k < 2**31:
                    rows.add(CallKind.WAIT, -1, None, k, -1)
                case ["batch", list(members)] if members:
                    for member in members:
                        kind, peer, tag = _message(member, rows.ranks, f"{where} (a batch)")
                        if kind in _BLOCKING:
                            raise _error(f"{where}: a batch takes isend and irecv, not {kind.name.lower()}")
                        rows.add(kind, peer, tag, requests, batches)
                    requests, batches = requests + 1, batches + 1
                case _:
                    kind, peer, tag = _message(call, rows.ranks, where)
                    rows.add(kind, peer, tag, -1 if kind in _BLOCKING else requests, -1)
                    requests += kind not in _BLOCKING
        offsets.append(len(rows.columns[0]))
    kinds, peers, tags, request, batch = (np.array(column, np.int64) for column in rows.columns)
    op = np.full(len(kinds), -1, np.int64)
    return Calls(np.array(offsets, np.int64), kinds, peers, tags, request, batch, op, tuple(rows.tags))


def write_calls(calls: Calls) -> dict[str, Any]:
    """The JSON value of calls; computations are left out."""
    return {"ranks": [rank_calls(calls, rank) for rank in range(calls.ranks)]}


def _message(call: Any, ranks: int, where: str) -> tuple[CallKind, int, str]:
    match call:
        case [str(name), int(peer), str() | int() as tag] if name in _MESSAGES and type(peer) is int:
            if not 0 <= peer < ranks:
                raise _error(f"{where}: there is no rank {peer}, only {ranks} ranks")
            return _MESSAGES[name], peer, str(tag)
        case _:
            forms = '["send" | "recv" | "isend" | "irecv", peer, tag], ["wait", k] or ["batch", [calls]]'
            raise _error(f"{where}: expected {forms}")


def rank_calls(calls: Calls, rank: int) -> list[Any]:
    """One rank's part of it."""
    written: list[Any] = []
    last_batch = -1
    for row in calls.rows(rank):
        kind = CallKind(calls.kind[row])
        if kind is CallKind.COMPUTE:
            continue
        if kind is CallKind.WAIT:
            written.append(["wait", int(calls.request[row])])
            continue
        message = [kind.name.lower(), int(calls.peer[row]), calls.tags[int(calls.tag[row])]]
        batch = int(calls.batch[row])
        if batch < 0:
            written.append(message)
        elif batch == last_batch:
            written[-1][1].append(message)
        else:
            written.append(["batch", [message]])
            last_batch = batch
    return written


def _error(message: str) -> DiagnosticError:
    return DiagnosticError([Diagnostic("PD103", message)])
