"""Run small Calls step by step, as the transports do, to see whether every rank reaches its end.

Written apart from `verify`: states and moves, no event graph. `run` makes random moves until none is left;
`every_end` tries all orders of moves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

TRANSPORTS = (
    "buffered",
    "gloo",
    "nccl-lazy-warm",
    "nccl-lazy",
    "nccl-eager-warm",
    "nccl-eager",
    "group-per-direction-warm",
)


@dataclass
class Part:
    """One send or receive."""

    rank: int
    peer: int
    sends: bool
    tag: str
    key: tuple[object, ...] = ()
    stream: tuple[object, ...] = ()
    partner: Part | None = field(default=None, repr=False)
    before: Part | None = field(default=None, repr=False)  # the send whose place in its channel's buffer this one takes
    call: int = -1
    buffered: bool = False

    @property
    def direction(self) -> tuple[int, int]:
        return (self.rank, self.peer) if self.sends else (self.peer, self.rank)


@dataclass
class Call:
    rank: int
    parts: list[Part]
    blocking: bool = False
    waits_for: int | None = None  # a call, or -1 for a request that is never made
    waits_before: list[int] = field(default_factory=list)  # waits and blocking calls earlier on the rank
    stream_before: list[int] = field(default_factory=list)
    meets: list[frozenset[int]] = field(default_factory=list)  # first uses: the calls whose hosts gather
    never: bool = False  # a first use, or a reduction, that some rank never comes to
    sums: tuple[str, tuple[int, ...]] | None = None  # a reduction: its name and ranks
    partners: list[int] = field(default_factory=list)  # those that it meets


Edges = Iterable[tuple[str, int, int]]
State = tuple[tuple[int, ...], frozenset[int], frozenset[int]]  # next call of each host, started, finished


class Machine:
    """The calls of `document` (as in the case files) on one transport."""

    def __init__(
        self, document: dict, transport: str, warm: Edges = (), buffers: dict[tuple[int, int], int] | None = None
    ) -> None:
        """`warm`: edges used before, `("pair" or "group", a, b)`. `buffers`: room for messages, by direction."""
        self.transport = transport
        self.nccl = not transport.startswith(("buffered", "gloo"))
        self.cold = self.nccl and not transport.endswith("-warm")
        self.warm = set(warm)
        self.buffers = buffers or {}
        self.calls: list[Call] = []
        self.of_rank: list[list[int]] = []
        for rank, rows in enumerate(document["ranks"]):
            self._read(rank, rows)
        self._pair_up()
        self._bring_together()
        if self.nccl:
            self._queue()
        if self.cold:
            self._first_uses()

    def _read(self, rank: int, rows: list) -> None:
        mine: list[int] = []
        requests: list[int] = []
        holding: list[int] = []
        for row in rows:
            number = len(self.calls)
            if row[0] == "wait":
                call = Call(rank, [], waits_for=row[1])
            elif row[0] == "reduce":
                call = Call(rank, [], sums=(row[2], tuple(row[1])))
            else:
                members = row[1] if row[0] == "batch" else [row]
                parts = [Part(rank, peer, name.endswith("send"), str(tag)) for name, peer, tag in members]
                for part in parts:
                    self._place(part, row[0] == "batch")
                    part.call = number
                call = Call(rank, parts, blocking=row[0] in ("send", "recv"))
                if not call.blocking:
                    requests.append(number)
            call.waits_before = holding[:]
            if call.blocking or call.waits_for is not None or call.sums:
                holding.append(number)
            self.calls.append(call)
            mine.append(number)
        for number in mine:
            wanted = self.calls[number].waits_for
            if wanted is not None:
                self.calls[number].waits_for = requests[wanted] if wanted < len(requests) else -1
        self.of_rank.append(mine)

    def _place(self, part: Part, batched: bool) -> None:
        """Which communicator (so which queue of messages) and which stream."""
        if not self.nccl:
            part.key = (part.direction, part.tag)
        elif "lazy" in self.transport:
            communicator = "group" if batched else tuple(sorted((part.rank, part.peer)))
            part.key, part.stream = (communicator, part.direction), (part.rank, communicator)
        elif "eager" in self.transport:
            part.key, part.stream = ("group", part.direction), (part.rank, "group")
        else:
            part.key, part.stream = (part.direction,), (part.rank, part.direction)

    def _pair_up(self) -> None:
        sends: dict[tuple, list[Part]] = {}
        receives: dict[tuple, list[Part]] = {}
        for call in self.calls:
            for part in call.parts:
                (sends if part.sends else receives).setdefault(part.key, []).append(part)
        for key, queue in sends.items():
            for a, b in zip(queue, receives.get(key, []), strict=False):
                a.partner, b.partner = b, a
        for direction, room in self.buffers.items():
            queue = [part for call in self.calls for part in call.parts if part.sends and part.direction == direction]
            for number, part in enumerate(queue):
                part.buffered = True
                part.before = queue[number - room] if number >= room else None

    def _bring_together(self) -> None:
        """The first reduction of a name on each of its ranks, then the second, and so on."""
        of_rank: dict[tuple, list[int]] = {}
        for number, call in enumerate(self.calls):
            if call.sums:
                of_rank.setdefault((*call.sums, call.rank), []).append(number)
        for (name, ranks, _), numbers in of_rank.items():
            for place, number in enumerate(numbers):
                others = [of_rank.get((name, ranks, rank), []) for rank in ranks]
                self.calls[number].partners = [other[place] for other in others if len(other) > place]
                self.calls[number].never = len(self.calls[number].partners) < len(ranks)

    def _streams(self, call: Call) -> set[tuple]:
        if not call.sums:
            return {part.stream for part in call.parts}
        rank, others = call.rank, [rank for rank in call.sums[1] if rank != call.rank]
        if "lazy" in self.transport:
            return {(rank, tuple(sorted((rank, other)))) for other in others}
        if "eager" in self.transport:
            return {(rank, "group") for _ in others}
        return {(rank, way) for other in others for way in ((rank, other), (other, rank))}

    def _queue(self) -> None:
        last: dict[tuple, list[int]] = {}
        for number, call in enumerate(self.calls):
            for stream in self._streams(call):
                call.stream_before += last.get(stream, [])
            for stream in self._streams(call):
                last.setdefault(stream, []).append(number)

    def _first_uses(self) -> None:
        """Gather the first call of each rank on a communicator, and of both ends on a direction of it."""
        first: dict[tuple, int] = {}
        for number, call in enumerate(self.calls):
            for part in call.parts:
                first.setdefault(("direction", part.key, part.sends), number)
                if "lazy" in self.transport:
                    first.setdefault(("communicator", part.key[0], part.rank), number)
        groups: dict[tuple, list[int]] = {}
        for (what, key, _), number in first.items():
            if self._is_warm(what, key):
                continue
            groups.setdefault((what, key), []).append(number)
        for (what, key), members in groups.items():
            size = len(self.of_rank) if (what, key) == ("communicator", "group") else 2
            for number in members:
                self.calls[number].meets.append(frozenset(members))
                self.calls[number].never |= len(members) < size

    def _is_warm(self, what: str, key: object) -> bool:
        """Whether a use of this communicator, or of this direction of one, came before."""
        if what == "communicator":
            if key == "group":
                return any(kind == "group" for kind, _, _ in self.warm)
            return ("pair", *key) in self.warm
        communicator = "group" if "eager" in self.transport or key[0] == "group" else "pair"
        return (communicator, *sorted(key[-1])) in self.warm

    def start(self) -> State:
        return tuple(0 for _ in self.of_rank), frozenset(), frozenset()

    def moves(self, state: State) -> list[State]:
        places, started, finished = state
        found = []
        for hosts in self._host_moves(places, finished):
            found.append((tuple(at + (rank in hosts) for rank, at in enumerate(places)), started, finished))
        issued = {number for rank, at in enumerate(places) for number in self.of_rank[rank][:at]}
        # A reduction, and on gloo a blocking call, is posted while its host stands at it.
        standing = {self.of_rank[r][at] for r, at in enumerate(places) if at < len(self.of_rank[r])}
        issued |= {n for n in standing if self.calls[n].sums or (self.calls[n].blocking and not self.nccl)}
        for number in sorted(issued):
            call = self.calls[number]
            if call.waits_for is not None:
                if number not in finished and call.waits_for in finished and finished.issuperset(call.waits_before):
                    found.append((places, started, finished | {number}))
            elif number not in started:
                if finished.issuperset(call.waits_before) and finished.issuperset(call.stream_before):
                    found.append((places, started | {number}, finished))
            elif call.sums:
                if number not in finished and not call.never and started.issuperset(call.partners):
                    found.append((places, started, finished | {number}))
            elif number not in finished and all(self._arrived(part, started) for part in call.parts):
                found.append((places, started, finished | {number}))
        return found

    def _arrived(self, part: Part, started: frozenset[int]) -> bool:
        if self.transport == "buffered" and part.sends:
            return True
        if part.buffered:
            if part.before is None:
                return True
            part = part.before
        return part.partner is not None and part.partner.call in started

    def _host_moves(self, places: tuple[int, ...], finished: frozenset[int]) -> list[set[int]]:
        """Sets of ranks whose hosts can go on, each set at once."""
        fronts = {r: self.of_rank[r][at] for r, at in enumerate(places) if at < len(self.of_rank[r])}
        if not self.nccl:
            ready = set()
            for rank, number in fronts.items():
                call = self.calls[number]
                held = call.blocking or call.sums
                holds = call.waits_for if call.waits_for is not None else number if held else None
                if holds is None or holds in finished:
                    ready.add(rank)
            return [{rank} for rank in sorted(ready)]
        free = {
            rank
            for rank, number in fronts.items()
            if not self.calls[number].meets and (not self.calls[number].sums or number in finished)
        }
        gathering = {n for n in fronts.values() if self.calls[n].meets and not self.calls[n].never}
        while True:  # the largest set of calls at the front, each with all that it gathers with
            kept = {n for n in gathering if all(group <= gathering for group in self.calls[n].meets)}
            if kept == gathering:
                break
            gathering = kept
        moves = [{rank} for rank in sorted(free)]
        together = {rank for rank, number in fronts.items() if number in gathering}
        return [*moves, together] if together else moves

    def hung(self, state: State) -> bool:
        places, _, finished = state
        if any(at < len(self.of_rank[rank]) for rank, at in enumerate(places)):
            return True
        holding = [n for n, call in enumerate(self.calls) if call.blocking or call.sums or call.waits_for is not None]
        return not finished.issuperset(holding)


def run(document: dict, transport: str, seed: int, **assumed: Any) -> bool:
    """Whether a run with random moves hangs. `assumed`: `warm` and `buffers` of Machine."""
    machine, choose = Machine(document, transport, **assumed), random.Random(seed)
    state = machine.start()
    while moves := machine.moves(state):
        state = choose.choice(moves)
    return machine.hung(state)


def every_end(document: dict, transport: str, most_states: int = 20_000) -> set[bool]:
    """Whether it hangs, over all orders of moves (or those within `most_states` states)."""
    machine = Machine(document, transport)
    seen, stack, ends = {machine.start()}, [machine.start()], set()
    while stack and len(seen) < most_states:
        state = stack.pop()
        moves = machine.moves(state)
        if not moves:
            ends.add(machine.hung(state))
        for after in moves:
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return ends
