"""Which send meets which receive. There are no wildcards, so the order of the calls alone decides it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.program import Ints
from verify.transports import BY_NAME, Communicators, Transport

SENDS = (CallKind.SEND, CallKind.ISEND)
RECEIVES = (CallKind.RECV, CallKind.IRECV)


@dataclass(frozen=True, eq=False)
class Matching:
    """Rows of calls: `send[k]` meets `recv[k]`; `left` meet nothing."""

    send: Ints
    recv: Ints
    left: Ints


def channels(calls: Calls, rows: Ints) -> Ints:
    """The number of each row's channel, source * ranks + destination: (rows,), int64."""
    rank, peer = calls.rank_of()[rows].astype(np.int64), calls.peer[rows].astype(np.int64)
    sends = np.isin(calls.kind[rows], SENDS)
    found: Ints = np.where(sends, rank * calls.ranks + peer, peer * calls.ranks + rank)
    return found


def match(calls: Calls, transport: Transport) -> Matching:
    """The k-th send meets the k-th receive of the same channel (and tag, or communicator)."""
    rows = np.flatnonzero(np.isin(calls.kind, SENDS + RECEIVES))
    key = channels(calls, rows)
    if transport.by_tag:
        key = key * (len(calls.tags) + 1) + calls.tag[rows]
    elif transport.communicators is Communicators.PAIR:
        key = key * 2 + (calls.batch[rows] >= 0)
    key = np.unique(key, return_inverse=True)[1]
    sends = np.isin(calls.kind[rows], SENDS)
    send, send_number = _numbered(rows[sends], key[sends], len(rows))
    recv, recv_number = _numbered(rows[~sends], key[~sends], len(rows))
    _, at_send, at_recv = np.intersect1d(send_number, recv_number, assume_unique=True, return_indices=True)
    met = np.concatenate((send[at_send], recv[at_recv]))
    return Matching(send[at_send], recv[at_recv], without(calls, rows, met))


def match_alike(calls: Calls) -> bool:
    """Whether every message is matched, and to the same one by its tag and by order alone (batches aside)."""
    by_tag, by_order = match(calls, BY_NAME["gloo"]), match(calls, BY_NAME["nccl-eager"])
    same_tags = calls.tag[by_order.send] == calls.tag[by_order.recv]
    return not len(by_tag.left) and not len(by_order.left) and bool(same_tags.all())


def without(calls: Calls, rows: Ints, others: Ints) -> Ints:
    """Those of `rows`, in their order, that are not among `others`."""
    gone = np.zeros(len(calls), bool)
    gone[others] = True
    left: Ints = rows[~gone[rows]]
    return left


def _numbered(rows: Ints, key: Ints, stride: int) -> tuple[Ints, Ints]:
    """Rows sorted by key, and for each a number made of its key and how many came before with the same key."""
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    first = np.searchsorted(key, key, "left")
    return rows, key * stride + (np.arange(len(rows)) - first)
