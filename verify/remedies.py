"""What would make calls safe on a transport where they are not, the weakest help first.

    warm-up              edges connected before the first step; for cold transports alone, and nothing else changes
    batch                neighbouring calls of one rank launched as one, in the same form on both ends
    order                calls of one rank exchanged, or all messages in one global order (`verify.mend`)
    group-per-direction  a communicator, and so a stream, for each ordered pair of ranks
    buffer               channels with room for some messages: a send finishes once what had its place is received

Every help is tried on the events of the calls before it is offered. A cold transport is helped as its warm twin is, and
by a warm-up besides where none of that is enough. The search is greedy along shortest cycles, so where several calls
have to change a smaller change may exist. It is bounded by work, not by time: the same calls get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from pipedsl.calls import Calls
from verify.cold import GROUP, Edge
from verify.events import Assumed, Event, Rule
from verify.matching import channels, match
from verify.rearrange import batched, reordered
from verify.report import Remedy
from verify.script import read_script
from verify.transports import BY_NAME, Communicators, Transport
from verify.trial import BUDGET, Exhausted, Help, Searcher, Trial

_LINEAR = 16  # rooms tried one by one before halving
_MOST_CHANNELS = 8
_SHARE = 12  # each kind of help on each transport may cost that part of the budget


def find_remedies(
    calls: Calls, transports: Iterable[Transport], budget: int = BUDGET
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Remedies for each of these transports, none of which is safe; and those for which the search was cut short.

    Calls that nothing can help have none: where a message is never sent or received, or needed before it is made.
    """
    helps, stopped = find_helps(calls, transports, budget)
    return tuple(Remedy(name, help_.kind, help_.details, help_.text) for name, help_ in helps), stopped


def find_helps(
    calls: Calls, transports: Iterable[Transport], budget: int = BUDGET
) -> tuple[list[tuple[str, Help]], tuple[str, ...]]:
    """The same, as what was tried: the name of the transport, and the changed calls and assumptions."""
    if len(calls) > budget:
        return [], tuple(transport.name for transport in transports)
    if len(match(calls, BY_NAME["gloo"]).left) or (calls.peer == calls.rank_of()).any() or read_script(calls) is None:
        return [], ()
    search, found, stopped = Searcher(budget), list[tuple[str, Help]](), list[str]()
    known: dict[Transport, list[Help]] = {}  # what helps on warm transports
    for transport in transports:
        try:
            for help_ in _helps(search, calls, transport, known):
                found.append((transport.name, help_))
        except Exhausted:
            stopped.append(transport.name)
    return found, tuple(stopped)


def _helps(search: Searcher, calls: Calls, transport: Transport, known: dict[Transport, list[Help]]) -> Iterable[Help]:
    """What helps on one transport, weakest first. `known`: what was found for warm ones."""
    twin = replace(transport, name="", cold=False)
    if transport.cold and search.trial(Help(calls), twin).safe:
        warmed = _warmed(search, Help(calls), transport)
        if warmed is not None:
            yield warmed
        return
    if twin not in known:
        known[twin] = list(_of_each_kind(search, calls, twin))
    enough = [help_ for help_ in known[twin] if not transport.cold or search.safe(help_, transport)]
    yield from enough
    for help_ in () if enough else known[twin]:
        warmed = _warmed(search, help_, transport)
        if warmed is not None:
            yield warmed


def _of_each_kind(search: Searcher, calls: Calls, transport: Transport) -> Iterable[Help]:
    """The helps of a warm transport. A kind that costs too much has none; raises Exhausted if that leaves nothing."""
    found = cut = False
    for kind in _KINDS:
        try:
            with search.share(_SHARE):
                help_ = kind(search, calls, transport)
        except Exhausted:
            cut = True
            continue
        if help_ is not None:
            found = True
            yield help_
    if cut and not found:
        raise Exhausted


# -------------------------------------------------------------------- warm-up


def _warmed(search: Searcher, help_: Help, transport: Transport) -> Help | None:
    """The help, with edges warmed up so that it is enough on a cold transport; no edge of them can be spared."""

    def trial(edges: frozenset[Edge]) -> Trial:
        return search.trial(replace(help_, assumed=replace(help_.assumed, warm=edges)), transport)

    warm: frozenset[Edge] = frozenset()
    attempt = trial(warm)
    while not attempt.safe:
        wanted = _edges_held(attempt) - warm
        if not wanted:
            return None
        warm |= wanted
        attempt = trial(warm)
    for edge in sorted(warm, reverse=True):
        if trial(warm - {edge}).safe:
            warm -= {edge}
    edges = sorted(warm if warm == {GROUP} else warm - {GROUP})
    assumed = replace(help_.assumed, warm=warm)
    return replace(help_, assumed=assumed).also("warm-up", "edges", edges, _edges_text(edges))


def _edges_held(trial: Trial) -> set[Edge]:
    """What a shortest cycle connects for the first time; where there is none, what some rank never comes to."""
    graph, uses = trial.graph, trial.graph.uses
    if uses is None:
        return set()
    first = len(graph.steps) * Event.BARRIER
    barriers = [hop.node - first for hop in trial.cycle() if hop.node >= first]
    steps = uses.step[np.isin(uses.barrier, barriers)].tolist()
    return uses.edges_at(steps or [step for _, own in uses.lacking for step in own])


def _edges_text(edges: Sequence[Edge]) -> str:
    parts = []
    for kind, of_what in (("pair", ""), ("group", " of the group")):
        names = [f"{a}-{b}" for own, a, b in edges if own == kind and a >= 0]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        if names:
            parts.append(f"the edge{'s' if len(names) > 1 else ''} {shown}{of_what}")
    if not parts:
        return "make the group's communicator on all ranks before the first step"
    order = ", in this order on all ranks," if len(edges) > 1 else ""
    return f"warm up {' and '.join(parts)}{order} before the first step"


# --------------------------------------------------- other transports, in effect


def _per_direction(search: Searcher, calls: Calls, transport: Transport) -> Help | None:
    if transport.communicators is Communicators.NONE or (calls.batch >= 0).any():
        return None  # the members of a batch share one group
    text = "make a process group for each direction of each pair of ranks"
    help_ = Help(calls, per_direction=True, kind="group-per-direction", text=text)
    return help_ if search.trial(help_, transport).safe else None


def _buffered(search: Searcher, calls: Calls, transport: Transport) -> Help | None:
    """Room for the fewest messages that do: on one channel if one is enough, else on those of the cycles."""
    if calls.reductions is not None and not transport.by_tag:
        return None  # what is summed goes over the channels too, and would meet a message that lies there

    def trial(room: dict[tuple[int, int], int]) -> Trial:
        return search.trial(Help(calls, Assumed(buffers=room)), transport)

    sends = match(calls, transport).send
    numbers, counts = np.unique(channels(calls, sends), return_counts=True)
    whole = {
        (number // calls.ranks, number % calls.ranks): count
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    }
    attempt, room = trial({}), dict[tuple[int, int], int]()
    first = _channels_held(attempt)
    single = [{channel: whole[channel]} for channel in first if trial({channel: whole[channel]}).safe]
    if not single:
        while not attempt.safe:
            wanted = {channel for channel in _channels_held(attempt) if channel not in room}
            if not wanted or len(room) > _MOST_CHANNELS:
                return None
            room |= {channel: whole[channel] for channel in wanted}
            attempt = trial(room)
        for channel in sorted(room, reverse=True):
            fewer = {other: count for other, count in room.items() if other != channel}
            if trial(fewer).safe:
                room = fewer
        single = [room]
    best = min((_shrunk(rooms, trial) for rooms in single), key=lambda rooms: (sum(rooms.values()), sorted(rooms)))
    told = [
        f"from rank {a} to rank {b} that buffers {count} message{'s' if count > 1 else ''}"
        for (a, b), count in sorted(best.items())
    ]
    details = {"buffers": [{"source": a, "destination": b, "messages": k} for (a, b), k in sorted(best.items())]}
    text = f"use a channel {', one '.join(told)}"
    return Help(calls, Assumed(buffers=best), kind="buffer", details=details, text=text)


def _shrunk(
    rooms: dict[tuple[int, int], int], trial: Callable[[dict[tuple[int, int], int]], Trial]
) -> dict[tuple[int, int], int]:
    """The rooms, each as small as it can be given the others before it."""
    rooms = dict(rooms)
    for channel, most in sorted(rooms.items()):
        least = next((k for k in range(1, min(most, _LINEAR)) if trial({**rooms, channel: k}).safe), None)
        if least is None:
            low, high = min(most, _LINEAR) - 1, most
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if trial({**rooms, channel: middle}).safe else (middle, high)
            least = high
        rooms[channel] = least
    return rooms


def _channels_held(trial: Trial) -> list[tuple[int, int]]:
    """The channels of sends that wait for their receives on a shortest cycle, as (source, destination)."""
    graph, count = trial.graph, len(trial.graph.steps)
    calls, found = graph.calls, dict[tuple[int, int], None]()
    steps = graph.steps.of_row
    cycle = trial.cycle()
    for hop, following in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        if hop.rule == Rule.MATCH:
            met = (steps[graph.matching.send] == hop.node % count) & (
                steps[graph.matching.recv] == following.node % count
            )
            for row in graph.matching.send[met].tolist():
                found[int(graph.steps.rank[steps[row]]), int(calls.peer[row])] = None
    return sorted(found)


_KINDS: tuple[Callable[[Searcher, Calls, Transport], Help | None], ...] = (
    batched,
    reordered,
    _per_direction,
    _buffered,
)
