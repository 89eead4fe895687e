"""Calls from and to JSON: `{"ranks": [[["isend", peer, tag], ["wait", k], ["batch", [[...], ...]], ...], ...]}`.

`k` counts a rank's non-blocking requests from 0; a batch is one request. Computations are not written. Messages may
name their buffer in a fourth place, and a rank may say what it does with one: `["read" | "write" | "free", name]`.
`["reduce", [rank, ...], name]` sums something over these ranks, each of which says so as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipedsl.calls import Buffers, BufferUse, CallKind, Calls, Reductions
from pipedsl.diagnostics import Diagnostic, DiagnosticError

_MESSAGES = {kind.name.lower(): kind for kind in (CallKind.SEND, CallKind.RECV, CallKind.ISEND, CallKind.IRECV)}
_BLOCKING = (CallKind.SEND, CallKind.RECV)
_USES = {use.name.lower(): use for use in (BufferUse.READ, BufferUse.WRITE, BufferUse.FREE)}


class _Rows:
    """Columns of Calls, filled row by row."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        # kind, peer, tag, request, batch, buffer, its use, reduction
        self.columns: tuple[list[int], ...] = ([], [], [], [], [], [], [], [])
        self.tags: dict[str, int] = {}
        self.buffers: dict[str, int] = {}
        self.reductions: dict[tuple[str, tuple[int, ...]], int] = {}

    def add(self, kind: CallKind, request: int, batch: int, message: _Message | None = None) -> None:
        peer, tag, buffer = (-1, -1, -1) if message is None else self._numbers(message)
        self._append(kind, peer, tag, request, batch, buffer, BufferUse.NONE, -1)

    def use(self, use: BufferUse, buffer: str) -> None:
        self._append(CallKind.COMPUTE, -1, -1, -1, -1, self._buffer(buffer), use, -1)

    def reduce(self, name: str, ranks: tuple[int, ...]) -> None:
        group = self.reductions.setdefault((name, ranks), len(self.reductions))
        self._append(CallKind.REDUCE, -1, -1, -1, -1, -1, BufferUse.NONE, group)

    def reduced(self) -> Reductions | None:
        """What is summed, if anything is."""
        if not self.reductions:
            return None
        names, ranks = zip(*self.reductions, strict=True)
        return Reductions(np.array(self.columns[7], np.int64), names, ranks)

    def named(self) -> Buffers | None:
        """The buffers, if there are any."""
        if not self.buffers:
            return None
        return Buffers(np.array(self.columns[5], np.int64), np.array(self.columns[6], np.int8), tuple(self.buffers))

    def _numbers(self, message: _Message) -> tuple[int, int, int]:
        tag = self.tags.setdefault(message.tag, len(self.tags))
        return message.peer, tag, -1 if message.buffer is None else self._buffer(message.buffer)

    def _buffer(self, name: str) -> int:
        return self.buffers.setdefault(name, len(self.buffers))

    def _append(self, *values: int) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)


@dataclass(frozen=True)
class _Message:
    """One `["isend", peer, tag]`, with its buffer if it names one."""

    kind: CallKind
    peer: int
    tag: str
    buffer: str | None


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
                    rows.add(CallKind.WAIT, k, -1)
                case [str(use), str(buffer)] if use in _USES:
                    rows.use(_USES[use], buffer)
                case ["reduce", list(group), str() | int() as name]:
                    rows.reduce(str(name), _group(group, number, rows.ranks, where))
                case ["batch", list(members)] if members:
                    for member in members:
                        message = _message(member, rows.ranks, f"{where} (a batch)")
                        if message.kind in _BLOCKING:
                            raise _error(f"{where}: a batch takes isend and irecv, not {message.kind.name.lower()}")
                        rows.add(message.kind, requests, batches, message)
                    requests, batches = requests + 1, batches + 1
                case _:
                    message = _message(call, rows.ranks, where)
                    blocks = message.kind in _BLOCKING
                    rows.add(message.kind, -1 if blocks else requests, -1, message)
                    requests += not blocks
        offsets.append(len(rows.columns[0]))
    kinds, peers, tags, request, batch = (np.array(column, np.int64) for column in rows.columns[:5])
    op = np.full(len(kinds), -1, np.int64)
    at = np.array(offsets, np.int64)
    return Calls(at, kinds, peers, tags, request, batch, op, tuple(rows.tags), None, rows.named(), rows.reduced())


def write_calls(calls: Calls) -> dict[str, Any]:
    """The JSON value of calls; computations are left out."""
    return {"ranks": [rank_calls(calls, rank) for rank in range(calls.ranks)]}


def _message(call: Any, ranks: int, where: str) -> _Message:
    match call:
        case [str(name), int(peer), str() | int() as tag, *buffer] if name in _MESSAGES and type(peer) is int:
            if not 0 <= peer < ranks:
                raise _error(f"{where}: there is no rank {peer}, only {ranks} ranks")
            match buffer:
                case []:
                    return _Message(_MESSAGES[name], peer, str(tag), None)
                case [str(buffer_name)]:
                    return _Message(_MESSAGES[name], peer, str(tag), buffer_name)
            raise _error(f'{where}: expected the name of a buffer, as in ["{name}", {peer}, "{tag}", "buffer"]')
        case _:
            forms = '["send" | "recv" | "isend" | "irecv", peer, tag], ["wait", k] or ["batch", [calls]]'
            raise _error(f"{where}: expected {forms}")


def _group(ranks: list[Any], own: int, count: int, where: str) -> tuple[int, ...]:
    """The ranks of a reduction, in order."""
    if not all(type(rank) is int and 0 <= rank < count for rank in ranks) or ranks != sorted(set(ranks)):
        raise _error(f"{where}: a reduce names ranks from 0 to {count - 1}, in order")
    if own not in ranks:
        raise _error(f"{where}: a reduce names its own rank too")
    return tuple(ranks)


def rank_calls(calls: Calls, rank: int) -> list[Any]:
    """One rank's part of it."""
    written: list[Any] = []
    last_batch, buffers = -1, calls.buffers
    for row in calls.rows(rank):
        kind = CallKind(calls.kind[row])
        if kind is CallKind.COMPUTE:
            if buffers is not None and buffers.use[row] != BufferUse.NONE:
                written.append([BufferUse(buffers.use[row]).name.lower(), buffers.names[buffers.number[row]]])
            continue
        if kind is CallKind.WAIT:
            written.append(["wait", int(calls.request[row])])
            continue
        if kind is CallKind.REDUCE and calls.reductions is not None:
            group = int(calls.reductions.group[row])
            written.append(["reduce", list(calls.reductions.ranks[group]), calls.reductions.names[group]])
            continue
        message = [kind.name.lower(), int(calls.peer[row]), calls.tags[int(calls.tag[row])]]
        if buffers is not None and buffers.number[row] >= 0:
            message.append(buffers.names[buffers.number[row]])
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
