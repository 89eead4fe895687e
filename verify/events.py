"""The events of calls on one transport, and which event waits for which: arrays of edges, each with its rule.

A step is a call that is no computation; a batch is one step. A step has up to four events: its host reaches it, its
host has launched it, it starts, it finishes (a WAIT only finishes). The rules are design section 6, one function each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.occupancy import requests_waited
from pipedsl.program import Ints
from verify.cold import Edge, FirstUses, first_uses
from verify.matching import RECEIVES, SENDS, Matching, channels, match, without
from verify.reductions import Meeting, meetings_of
from verify.transports import Communicators, Transport


class Event(IntEnum):
    """The events of a step; event `e` of step `s` is node `e * steps + s`. Barriers come after all of them."""

    START = 0
    FINISH = 1
    REACHED = 2
    LAUNCHED = 3
    BARRIER = 4


class Rule(IntEnum):
    """Why one event waits for another."""

    WAIT_EARLIER = 0
    STREAM = 1
    MATCH = 2
    OWN = 3
    REQUEST = 4
    HOST = 5
    FIRST_USE = 6
    LAYOUT = 7


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of calls. `first`: first row; `rank`, `is_wait`, `blocks`: (steps,). `of_row`: (calls,), -1 for none.

    A step that `blocks` holds what comes later on its rank until it finishes.
    """

    first: Ints
    rank: Ints
    is_wait: Ints
    blocks: Ints
    of_row: Ints

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, eq=False)
class EventGraph:
    """`later[k]` waits for `sooner[k]` because of `rule[k]`; `never`: events that nothing can bring about.

    `ends`: the events that every rank must see to reach its end. `uses`: of a cold transport. `held`: as assumed.
    """

    calls: Calls
    transport: Transport
    steps: Steps
    matching: Matching
    nodes: int
    later: Ints
    sooner: Ints
    rule: Ints
    never: Ints
    ends: Ints
    uses: FirstUses | None
    held: Mapping[int, int]


@dataclass(frozen=True)
class Assumed:
    """What is assumed of a transport beyond what it promises.

    `warm`: edges that were used before. `buffers`: how many messages the channel (source, destination) has room for;
    its sends take the places in turn, so one finishes once the message that had its place before is received.
    `held`: rows of calls that hold their host until a computation, by its row, has run; for a warm transport.
    """

    warm: frozenset[Edge] = frozenset()
    buffers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    held: Mapping[int, int] = field(default_factory=dict)


NOTHING = Assumed()
Edges = tuple[Rule, Ints, Ints]  # the rule, later events, sooner events


def steps_of(calls: Calls) -> Steps:
    """Group the rows of calls into steps."""
    rows = np.flatnonzero(calls.kind != CallKind.COMPUTE)
    rank, batch = calls.rank_of()[rows], calls.batch[rows]
    new = np.ones(len(rows), bool)
    new[1:] = (batch[1:] < 0) | (batch[1:] != batch[:-1]) | (rank[1:] != rank[:-1])
    of_row: Ints = np.full(len(calls), -1, np.int64)
    of_row[rows] = np.cumsum(new) - 1
    first = rows[new]
    kind = calls.kind[first]
    blocks = np.isin(kind, (CallKind.WAIT, CallKind.SEND, CallKind.RECV, CallKind.REDUCE))
    return Steps(first, rank[new], kind == CallKind.WAIT, blocks, of_row)


@dataclass(frozen=True, eq=False)
class _Case:
    calls: Calls
    transport: Transport
    steps: Steps
    matching: Matching
    buffers: Mapping[tuple[int, int], int]
    meetings: Sequence[Meeting]


def event_graph(calls: Calls, transport: Transport, assumed: Assumed = NOTHING) -> EventGraph:
    """All events and edges. Linear in the number of calls, but for sorting."""
    case = _Case(calls, transport, steps_of(calls), match(calls, transport), assumed.buffers, meetings_of(calls))
    count = len(case.steps)
    edges = [edge for rule in RULES for edge in rule(case)]
    never = _never(case)
    ends = count * Event.FINISH + np.flatnonzero(case.steps.blocks)
    uses = first_uses(calls, transport, case.steps.of_row, assumed.warm) if transport.cold else None
    if assumed.held:
        edges += [*_launches(case), *_layouts(case, assumed.held)]
    if uses is not None:
        edges += [*_launches(case), *_first_uses(case, uses)]
        never = np.concatenate((never, count * Event.BARRIER + uses.impossible))
        ends = np.concatenate((ends, count * Event.LAUNCHED + np.flatnonzero(~case.steps.is_wait)))
    return EventGraph(
        calls,
        transport,
        case.steps,
        case.matching,
        nodes=count * Event.BARRIER + (uses.count if uses else 0),
        later=np.concatenate([later for _, later, _ in edges]),
        sooner=np.concatenate([sooner for _, _, sooner in edges]),
        rule=np.repeat(np.array([rule for rule, _, _ in edges], np.int8), [len(later) for _, later, _ in edges]),
        never=never,
        ends=ends,
        uses=uses,
        held=assumed.held,
    )


def _after_waits(case: _Case) -> list[Edges]:
    """A call starts, and a wait finishes, after every wait and blocking call earlier on its rank."""
    steps, count = case.steps, len(case.steps)
    numbers = np.arange(count)
    last = np.maximum.accumulate(np.where(steps.blocks, numbers, -1)) if count else numbers
    before = np.concatenate(([-1], last))[:count]
    has = before >= 0
    has &= steps.rank[before] == steps.rank
    later = numbers + count * np.where(steps.is_wait, Event.FINISH, Event.START)
    return [(Rule.WAIT_EARLIER, later[has], count * Event.FINISH + before[has])]


def _streams(case: _Case) -> list[Edges]:
    """A call starts after the one before it on the same stream has finished.

    A reduction is on the streams of messages to and from all whom it meets.
    """
    calls, communicators = case.calls, case.transport.communicators
    if communicators is Communicators.NONE:
        return []
    rows = np.flatnonzero(np.isin(calls.kind, SENDS + RECEIVES))
    peer, sends = calls.peer[rows].astype(np.int64), np.isin(calls.kind[rows], SENDS)
    rank_of, sums = calls.rank_of().astype(np.int64), list[tuple[int, int, bool]]()
    for meeting in case.meetings:
        for row in meeting.rows:
            others = [other for other in meeting.ranks if other != rank_of[row]]
            sums += [(row, other, way) for other in others for way in (False, True)]
    if sums:
        rows, peer, sends = (
            np.concatenate((own, np.array(more, own.dtype)))
            for own, more in zip((rows, peer, sends), zip(*sums, strict=True), strict=True)
        )
    rank = rank_of[rows]
    stream = rank * (2 * calls.ranks + 1)
    if communicators is Communicators.PAIR:
        stream += np.where(calls.batch[rows] >= 0, 2 * calls.ranks, peer)
    elif communicators is Communicators.DIRECTION:
        stream += 2 * peer + sends
    order = np.lexsort((rows, stream))
    step, stream = case.steps.of_row[rows[order]], stream[order]
    next_one = (stream[1:] == stream[:-1]) & (step[1:] != step[:-1])
    count = len(case.steps)
    return [(Rule.STREAM, step[1:][next_one], count * Event.FINISH + step[:-1][next_one])]


def _matches(case: _Case) -> list[Edges]:
    """A receive finishes after its send has started; a send after its receive has, unless it is buffered."""
    count = len(case.steps)
    send, recv = case.steps.of_row[case.matching.send], case.steps.of_row[case.matching.recv]
    edges = [(Rule.MATCH, count * Event.FINISH + recv, send)]
    if case.transport.buffered:
        return edges
    if case.buffers:
        send, recv = _later_sends(case)
    return [*edges, (Rule.MATCH, count * Event.FINISH + send, recv)]


def _reductions(case: _Case) -> list[Edges]:
    """A reduction finishes after all whom it meets have started."""
    pairs = [(a, b) for meeting in case.meetings for a in meeting.rows for b in meeting.rows if a != b]
    if not pairs:
        return []
    later, sooner = case.steps.of_row[np.array(pairs, np.int64)].T
    return [(Rule.MATCH, len(case.steps) * Event.FINISH + later, sooner)]


def _later_sends(case: _Case) -> tuple[Ints, Ints]:
    """Steps: each send that waits for a receive, and that receive, where channels have room for some messages."""
    order = np.argsort(case.matching.send, kind="stable")
    sends, receives = case.matching.send[order], case.matching.recv[order]
    channel, ranks = channels(case.calls, sends), case.calls.ranks
    waiting: Ints = np.arange(len(sends))
    for (source, target), room in case.buffers.items():
        own = np.flatnonzero(channel == source * ranks + target)
        waiting[own[:room]] = -1
        waiting[own[room:]] = own[: max(len(own) - room, 0)]
    kept = waiting >= 0
    return case.steps.of_row[sends[kept]], case.steps.of_row[receives[waiting[kept]]]


def _own(case: _Case) -> list[Edges]:
    """A call finishes after it has started."""
    talks = np.flatnonzero(~case.steps.is_wait)
    return [(Rule.OWN, len(case.steps) * Event.FINISH + talks, talks)]


def _requests(case: _Case) -> list[Edges]:
    """A wait finishes after its request has."""
    wait, issue = requests_waited(case.calls)
    finish = len(case.steps) * Event.FINISH
    return [(Rule.REQUEST, finish + case.steps.of_row[wait], finish + case.steps.of_row[issue])]


RULES: tuple[Callable[[_Case], list[Edges]], ...] = (
    _after_waits,
    _streams,
    _matches,
    _reductions,
    _own,
    _requests,
)


def _never(case: _Case) -> Ints:
    """The finish of an unmatched receive, rendezvous send or reduction, and of a wait for what was not requested."""
    left = case.matching.left
    kinds = RECEIVES if case.transport.buffered else SENDS + RECEIVES
    left = left[np.isin(case.calls.kind[left], kinds)]
    waits = np.flatnonzero(case.calls.kind == CallKind.WAIT)
    idle = without(case.calls, waits, requests_waited(case.calls)[0])
    lacking = [row for meeting in case.meetings if not meeting.complete for row in meeting.rows]
    rows = np.concatenate((left, idle, np.array(lacking, np.int64)))
    never: Ints = len(case.steps) * Event.FINISH + case.steps.of_row[rows]
    return never


def _launches(case: _Case) -> list[Edges]:
    """A host launches its calls in order, and what is not launched does not start. Reductions hold it, waits do not."""
    steps, count = case.steps, len(case.steps)
    talks = np.flatnonzero(~steps.is_wait)
    reached, launched = count * Event.REACHED, count * Event.LAUNCHED
    same_rank = steps.rank[talks[1:]] == steps.rank[talks[:-1]]
    later, sooner = talks[1:][same_rank], talks[:-1][same_rank]
    holds = case.calls.kind[steps.first[sooner]] == CallKind.REDUCE
    return [
        (Rule.HOST, reached + later, np.where(holds, count * Event.FINISH, launched) + sooner),
        (Rule.OWN, launched + talks, reached + talks),
        (Rule.OWN, talks, launched + talks),
    ]


def _first_uses(case: _Case, uses: FirstUses) -> list[Edges]:
    """Cold: a first use holds the hosts of all its participants until the last of them is there."""
    count = len(case.steps)
    reached, launched, barrier = count * Event.REACHED, count * Event.LAUNCHED, count * Event.BARRIER
    return [
        (Rule.FIRST_USE, barrier + uses.barrier, reached + uses.step),
        (Rule.FIRST_USE, launched + uses.step, barrier + uses.barrier),
    ]


def _layouts(case: _Case, held: Mapping[int, int]) -> list[Edges]:
    """A held call is launched after all that its computation's rank launches before it, and after the waits there.

    The computation's data may hold its stream alone; a module that reads a number from the device holds the host too.
    """
    steps, count = case.steps, len(case.steps)
    later, sooner = [], []
    sides = [(Event.LAUNCHED, np.flatnonzero(~steps.is_wait)), (Event.FINISH, np.flatnonzero(steps.blocks))]
    for row, computation in held.items():
        rank = int(np.searchsorted(case.calls.offsets, computation, "right")) - 1
        for event, candidates in sides:
            place = int(np.searchsorted(steps.first[candidates], computation)) - 1
            if place >= 0 and steps.rank[candidates[place]] == rank:
                later.append(count * Event.LAUNCHED + int(case.steps.of_row[row]))
                sooner.append(count * event + int(candidates[place]))
    return [(Rule.LAYOUT, np.array(later, np.int64), np.array(sooner, np.int64))]
