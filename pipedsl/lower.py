"""Program to Calls: where each message is sent, received and waited for.

The safe recipe. The computations of all ranks are put in one global order (by simulated start; dependencies break
ties). A message is one item of that order, right after the computation that makes it, and stands at that place in both
ends' programs: isend here, irecv there. So every two ranks list their common messages in the same order, and no rank
can wait for an item without all earlier ones being on their way: safe on every transport, cold and warm (`verify`
checks this order, it does not trust it).

Waits: a receive's right before the computation that needs it; a forward send's right before the backward that frees
its activation; a gradient send's before the second next gradient send of its channel, or at the end.

A REDUCE is one item of the order too, in the programs of all ranks that take part.

A program that places its own communication is lowered as written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipedsl.calls import CallKind, Calls, MessageTags, Reductions
from pipedsl.dependencies import arrives_late, cell_of, dependencies, rows_by_cell
from pipedsl.program import COMPUTE, Ints, Kind, Program
from pipedsl.reductions import meetings
from pipedsl.simulate import Timeline

# The places around one computation, in the order they take: waits it needs, itself, the message it makes.
_PLACES = 8
_WAIT_DATA, _WAIT_SENT, _COMPUTE, _WAIT_GRADIENT, _MESSAGE = range(5)


@dataclass(frozen=True, eq=False)
class _Messages:
    """Every message; arrays of (messages,).

    `maker`, `user`: the computations that make and need it. `send`, `recv`: the rows that stand for its two calls.
    """

    maker: Ints
    user: Ints
    send: Ints
    recv: Ints
    tag: Ints
    backward: Ints


def lower(program: Program, timeline: Timeline) -> Calls:
    """The calls of a complete program. `timeline` gives the global order, not durations."""
    explicit = program.explicit_communication
    messages = _messages(program)
    count = len(program)
    if explicit:
        position = np.arange(count, dtype=np.int64)
    else:
        position = np.empty(count, np.int64)
        position[_global_order(timeline)] = np.arange(count)
        for rows in meetings(program).rows.values():  # neighbours in that order, as they start and end together
            position[rows] = position[rows].min()
    rank = program.rank_of().astype(np.int64)
    source, target = rank[messages.maker], rank[messages.user]

    # One block of calls per kind; `message` links requests to waits.
    compute = np.flatnonzero(np.isin(program.kind, COMPUTE))
    reduces = np.flatnonzero(program.kind == Kind.REDUCE)
    none, number = np.full(len(compute), -1), np.arange(len(messages.tag))
    at_send = position[messages.send] * _PLACES + (_COMPUTE if explicit else _MESSAGE)
    at_recv = position[messages.recv] * _PLACES + _COMPUTE if explicit else at_send
    blocks = (
        (CallKind.COMPUTE, rank[compute], position[compute] * _PLACES + _COMPUTE, none, compute),
        (CallKind.ISEND, source, at_send, number, messages.send),
        (CallKind.IRECV, target, at_recv, number, messages.recv if explicit else messages.user),
        (CallKind.WAIT, source, _send_waits(program, messages, position, at_send), number, messages.send),
        (CallKind.WAIT, target, position[messages.user] * _PLACES + _WAIT_DATA, number, messages.user),
        (CallKind.REDUCE, rank[reduces], position[reduces] * _PLACES + _COMPUTE, np.full(len(reduces), -1), reduces),
    )
    sizes = [len(block[1]) for block in blocks]
    kind = np.repeat(np.array([block[0] for block in blocks], np.int8), sizes)
    receives = np.repeat(np.array([False, False, True, False, True, False]), sizes)
    owner, order, message, op = (np.concatenate([block[i] for block in blocks]) for i in range(1, 5))

    by_rank = np.lexsort((order, owner))
    kind, receives, owner, order, message, op = (
        column[by_rank] for column in (kind, receives, owner, order, message, op)
    )
    offsets = np.searchsorted(owner, np.arange(program.ranks + 1))
    talks = (kind == CallKind.ISEND) | (kind == CallKind.IRECV)
    peer, tag = (np.full(len(kind), -1, np.int64) for _ in range(2))
    peer[talks] = np.where(receives, np.append(source, -1)[message], np.append(target, -1)[message])[talks]
    tag[talks] = messages.tag[message[talks]]
    return Calls(
        offsets=offsets.astype(np.int64),
        kind=kind,
        peer=peer.astype(np.int32),
        tag=tag,
        request=_requests(kind, offsets, talks, message, receives),
        batch=np.full(len(kind), -1, np.int32),
        op=op.astype(np.int64),
        tags=MessageTags(program.stages, program.microbatches, int(program.placement.shape[0])),
        order=None if explicit else order,
        reductions=reductions_of(program, kind, op) if len(reduces) else None,
    )


def reductions_of(program: Program, kind: Ints, op: Ints) -> Reductions:
    """What the REDUCE calls among calls of these kinds sum, by the rows of the program that they are of."""
    met, rank = meetings(program), program.rank_of()
    group: Ints = np.full(len(kind), -1, np.int64)
    numbers: dict[str, int] = {}
    ranks: list[tuple[int, ...]] = []
    for call in np.flatnonzero(kind == CallKind.REDUCE).tolist():
        row = int(op[call])
        name, rows = f"stage {program.stage[row]}", met.rows[int(program.stage[row])]
        if met.stage[row] < 0:  # of several copies on this rank, not the last: it meets nobody
            name, rows = f"{name} of {program.replica_name(int(program.replica[row]))}", [row]
        group[call] = numbers.setdefault(name, len(numbers))
        if numbers[name] == len(ranks):
            ranks.append(tuple(int(rank[each]) for each in rows))
    return Reductions(group, tuple(numbers), tuple(ranks))


def _global_order(timeline: Timeline) -> Ints:
    """The rows by start; where starts are equal, in an order that dependencies agree with."""
    starts = timeline.start[timeline.sequence]
    order: Ints = timeline.sequence[np.argsort(starts, kind="stable")]
    return order


def _messages(program: Program) -> _Messages:
    """What has to cross from rank to rank."""
    needs = dependencies(program)
    user = np.flatnonzero(arrives_late(program, needs.upstream) & np.isin(program.kind, COMPUTE))
    send = needs.upstream[user]
    maker, recv = send, user
    if program.explicit_communication:
        maker = np.where(np.isin(program.kind[send], COMPUTE), send, needs.local[send])
        recv = np.where(needs.posted[user] >= 0, needs.posted[user], user)
    backward = program.kind[user] != Kind.F
    tags = MessageTags(program.stages, program.microbatches, int(program.placement.shape[0]))
    tag = tags.number(backward, program.replica[user], program.stage[user], program.microbatch[user])
    return _Messages(maker, user, send, recv, tag, backward)


def _send_waits(program: Program, messages: _Messages, position: Ints, at_send: Ints) -> Ints:
    """Where each message's sender waits for it: (messages,), places in its rank's order."""
    freed = rows_by_cell(program, cell_of(program), Kind.B, Kind.I)[cell_of(program)[messages.maker]]
    places: Ints = position[freed] * _PLACES + _WAIT_SENT
    end = len(program) * _PLACES
    gradients = np.flatnonzero(messages.backward)
    rank = program.rank_of()
    channel = rank[messages.maker[gradients]].astype(np.int64) * program.ranks + rank[messages.user[gradients]]
    by_channel = np.lexsort((at_send[gradients], channel))
    gradients, channel = gradients[by_channel], channel[by_channel]
    places[gradients] = end + np.arange(len(gradients))
    if not program.explicit_communication and len(gradients) > 2:
        same = channel[2:] == channel[:-2]
        places[gradients[:-2][same]] = at_send[gradients[2:][same]] - _MESSAGE + _WAIT_GRADIENT
    return places


def _requests(kind: Ints, offsets: Ints, talks: Ints, message: Ints, receives: Ints) -> Ints:
    """The request number of every call: counted anew on each rank, and found again by the waits."""
    issued = np.cumsum(talks)
    before_rank = np.repeat(np.concatenate(([0], issued))[offsets[:-1]], np.diff(offsets))
    number = issued - 1 - before_rank
    key = message * 2 + receives
    by_key = np.empty(2 * (int(message.max(initial=-1)) + 1), np.int64)
    by_key[key[talks]] = number[talks]
    request = np.full(len(kind), -1, np.int64)
    asks = talks | (kind == CallKind.WAIT)
    request[asks] = by_key[key[asks]]
    return request.astype(np.int32)
