"""Where every rank stands when nothing moves any more, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind
from pipedsl.program import Ints
from verify.cycle import Hop
from verify.events import Event, EventGraph, Rule
from verify.matching import SENDS
from verify.naming import name
from verify.transports import Communicators

_MOST_RANKS = 8


def standing(graph: EventGraph, stuck: NDArray[np.bool_], first: Collection[int]) -> list[str]:
    """One line for each of at most eight ranks that do not reach their end, those of `first` first."""
    places = _stands_at(graph, stuck)
    ranks = sorted(places, key=lambda rank: (rank not in first, rank))
    lines = [f"rank {rank} stands at {_line(graph, stuck, places[rank])}" for rank in ranks[:_MOST_RANKS]]
    if len(ranks) > _MOST_RANKS:
        lines.append(f"{len(ranks) - _MOST_RANKS} more ranks stand still")
    return lines


def stuck_ranks(graph: EventGraph, stuck: NDArray[np.bool_]) -> list[int]:
    """The ranks that do not reach their end."""
    return sorted(_stands_at(graph, stuck))


def _stands_at(graph: EventGraph, stuck: NDArray[np.bool_]) -> dict[int, int]:
    """For each rank that stands still, the event of its first step that holds it and never happens."""
    steps, count = graph.steps, len(graph.steps)
    held = steps.blocks & stuck[count * Event.FINISH + np.arange(count)]
    event = np.where(held, count * Event.FINISH, 0) + np.arange(count)
    if graph.uses is not None or graph.held:
        numbers = np.arange(count)
        launch = ~steps.is_wait & ~stuck[count * Event.REACHED + numbers] & stuck[count * Event.LAUNCHED + numbers]
        event = np.where(launch, count * Event.LAUNCHED + numbers, event)
        held = held | launch
    at = np.flatnonzero(held)
    ranks, firsts = np.unique(steps.rank[at], return_index=True)
    return {int(rank): int(event[at[place]]) for rank, place in zip(ranks, firsts, strict=True)}


def _line(graph: EventGraph, stuck: NDArray[np.bool_], event: int) -> str:
    """`wait 1 (irecv x from rank 1)`, which needs rank 1 to start `isend x to rank 0`."""
    count = len(graph.steps)
    here = name(graph.calls, int(graph.steps.first[event % count]))
    return f"`{here}`, {_reason(graph, stuck, event)}"


def _reason(graph: EventGraph, stuck: NDArray[np.bool_], event: int) -> str:
    """What an event waits for: its own rank's calls one after another, up to what another rank has not done."""
    count = len(graph.steps)
    node, seen, told = event, set[int](), list[str]()
    never = set(graph.never.tolist())
    while node not in seen:
        seen.add(node)
        if node in never and node < count * Event.BARRIER:
            return _chain(told, _never(graph, node % count))
        edges = np.flatnonzero(graph.later == node)
        edges = edges[stuck[graph.sooner[edges]]]
        by_rule = {Rule(graph.rule[edge]): int(graph.sooner[edge]) for edge in edges[::-1].tolist()}
        if Rule.MATCH in by_rule:
            other = by_rule[Rule.MATCH] % count
            row = int(graph.steps.first[other])
            return _chain(told, f"which needs rank {graph.steps.rank[other]} to start `{name(graph.calls, row)}`")
        if Rule.LAYOUT in by_rule:
            other = by_rule[Rule.LAYOUT] % count
            past = f"rank {graph.steps.rank[other]} is past `{name(graph.calls, int(graph.steps.first[other]))}`"
            return _chain(told, f"a first receive that holds the host until {past}")
        if Rule.FIRST_USE in by_rule:
            return _chain(told, _gathering(graph, stuck, node % count, by_rule[Rule.FIRST_USE]))
        if not by_rule:
            break
        rule = next((rule for rule in (Rule.STREAM, Rule.WAIT_EARLIER) if rule in by_rule), min(by_rule))
        if rule in (Rule.STREAM, Rule.WAIT_EARLIER):
            behind = name(graph.calls, int(graph.steps.first[by_rule[rule] % count]))
            told.append(f"which {'queues behind' if rule is Rule.STREAM else 'comes after'} `{behind}`")
        node = by_rule[rule]
    return _chain(told, "which never happens")


def _chain(told: Sequence[str], last: str) -> str:
    """`which queues behind a, ..., which needs b`: the first and the last of it."""
    return ", ".join([*told[:1], *(["..."] if len(told) > 1 else []), last])


def _never(graph: EventGraph, step: int) -> str:
    if graph.steps.is_wait[step]:
        return "a request that is never made"
    left = set(graph.matching.left.tolist())
    if graph.calls.kind[graph.steps.first[step]] == CallKind.REDUCE:
        return "which some rank never comes to"
    rows = [row for row in np.flatnonzero(graph.steps.of_row == step).tolist() if row in left]
    if not rows:
        return "which never happens"
    verb = "receives" if graph.calls.kind[rows[0]] in SENDS else "sends"
    row = rows[0]
    tag, peer = graph.calls.tags[int(graph.calls.tag[row])], graph.calls.peer[row]
    return f"which needs {tag}, a message that rank {peer} never {verb}"


def _gathering(graph: EventGraph, stuck: NDArray[np.bool_], step: int, barrier: int) -> str:
    """Whose first use a host waits for, and through whom if not directly."""
    count, uses, rank = len(graph.steps), graph.uses, graph.steps.rank
    if uses is None:
        return "which never happens"
    steps = uses.step[uses.barrier == barrier - count * Event.BARRIER].tolist()
    late = [other for other in steps if stuck[count * Event.REACHED + other]]
    if not late:
        what = next(what for what, own in uses.lacking if not set(own).isdisjoint(steps))
        return f"the first use of {what}, which some rank never comes to"
    other = min(late, key=lambda one: (len(uses.path(step, one)), one))
    chain = uses.path(step, other)
    through = ""
    if len(chain) > 1:
        shared = name(graph.calls, int(graph.steps.first[chain[0][2]]))
        through = f" shared with `{shared}` of rank {rank[chain[0][2]]}"
    comes = name(graph.calls, int(graph.steps.first[other]))
    return f"a first use{through} that holds the host until rank {rank[other]} comes to `{comes}`"


def in_short(graph: EventGraph, cycle: Sequence[Hop]) -> str | None:
    """`rank 0 waits for rank 2 (t0), rank 2 for rank 0 (F0)`, if the cycle is one of messages."""
    count = len(graph.steps)
    if any(hop.node >= count * Event.BARRIER or hop.rule == Rule.FIRST_USE for hop in cycle):
        return None
    partner = dict(zip(graph.matching.send.tolist(), graph.matching.recv.tolist(), strict=True))
    partner |= {recv: send for send, recv in partner.items()}
    waits: list[tuple[int, int, str]] = []
    for hop, following in pairwise([*cycle, cycle[0]]):
        step, other = hop.node % count, following.node % count
        if hop.rule != Rule.MATCH:
            continue
        rows = np.flatnonzero(graph.steps.of_row == step).tolist()
        row = next((row for row in rows if graph.steps.of_row[partner.get(row, rows[0])] == other), rows[0])
        ranks = int(graph.steps.rank[step]), int(graph.steps.rank[other])
        if ranks[0] != ranks[1]:
            tag = int(graph.calls.tag[row])
            waits.append((*ranks, graph.calls.label(row) if tag < 0 else graph.calls.tags[tag]))
    if len(waits) < 2:
        return None
    told = [f"rank {a} {'waits ' if not place else ''}for rank {b} ({tag})" for place, (a, b, tag) in enumerate(waits)]
    more = f", and {len(told) - 2 * _MOST_RANKS} more" if len(told) > 2 * _MOST_RANKS else ""
    return "in short: " + ", ".join(told[: 2 * _MOST_RANKS]) + more


def heads(graph: EventGraph, ranks: Sequence[int]) -> list[str]:
    """For each two of these ranks with a common stream: the first place where both ends send, or both receive."""
    if graph.transport.communicators in (Communicators.NONE, Communicators.DIRECTION):
        return []
    calls, found = graph.calls, []
    sends = np.isin(calls.kind, SENDS)
    rank_of = calls.rank_of()
    some = ranks[:_MOST_RANKS]
    for a in some:
        for b in [other for other in some if other > a]:
            ends = [_common(graph, rank_of, *pair) for pair in ((a, b), (b, a))]
            for place, (one, other) in enumerate(zip(*ends, strict=False), 1):
                if sends[one] == sends[other]:
                    letter = "S" if sends[one] else "R"
                    verb = "send" if sends[one] else "receive"
                    both = f"`{calls.label(one)}` and `{calls.label(other)}`"
                    where = f"pair ({a}, {b}): heads {letter},{letter} at position {place}"
                    found.append(f"{where}: both ranks {verb}, {both}")
                    break
    return found[:4]


def _common(graph: EventGraph, rank_of: Ints, rank: int, peer: int) -> list[int]:
    """The rows of unbatched calls of `rank` with `peer`."""
    calls = graph.calls
    talks = (calls.peer == peer) & (rank_of == rank) & (graph.steps.of_row >= 0) & (calls.batch < 0)
    rows: list[int] = np.flatnonzero(talks).tolist()
    return rows
