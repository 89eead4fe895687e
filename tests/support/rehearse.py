"""Run programs on tiny stages over models of the transports, to see what really happens to them.

Written apart from `verify` and `pipedsl.runtime`. Every rank has a host that issues its actions in order and a stream
of computations; each transport says what a wait holds and which messages meet. Ranks advance as far as they can, one
after the other, until none can: there are no choices in what they do, so one order decides.

    equal    every rank ends, and the gradients are those of one process
    wrong    every rank ends, with other gradients
    hangs    some rank never ends
    error    some rank does what cannot be done: a stage that it does not hold, a message that it has not made,
             an activation that is not there
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny import Gradients, Kept, Model, Value

from pipedsl.calls import CallKind, Calls, MessageTags
from pipedsl.program import Kind, Program

EQUAL, WRONG, HANGS, ERROR = "equal", "wrong", "hangs", "error"
TRANSPORTS = ("buffered", "gloo", "nccl-lazy", "nccl-eager", "nccl-lazy-warm", "nccl-eager-warm")

# A message: F or B, the stage that it goes to, the microbatch.
Message = tuple[str, int, int]
# ("F" | "B" | "I" | "W", stage, microbatch) | ("isend" | "irecv", peer, message) | ("wait", request)
# | ("nonsense", why)
Action = tuple


class _Failed(Exception):
    """A rank cannot do what it is told."""


# ------------------------------------------------------------------ what the ranks are told to do


def from_calls(program: Program, calls: Calls) -> list[list[Action]]:
    """The actions of every rank, exactly as `calls` have them."""
    tags = calls.tags
    assert isinstance(tags, MessageTags)
    assert tags.replicas == 1
    ranks: list[list[Action]] = []
    columns = [column.tolist() for column in (calls.kind, calls.peer, calls.tag, calls.request, calls.op)]
    kinds, stages, microbatches = (column.tolist() for column in (program.kind, program.stage, program.microbatch))
    for rank in range(calls.ranks):
        actions: list[Action] = []
        for row in calls.rows(rank):
            kind, peer, tag, request, op = (column[row] for column in columns)
            if kind == CallKind.COMPUTE:
                actions.append((Kind(kinds[op]).name, stages[op], microbatches[op]))
            elif kind == CallKind.WAIT:
                actions.append(("wait", request))
            else:
                assert kind in (CallKind.ISEND, CallKind.IRECV)
                rest, microbatch = divmod(tag, tags.microbatches)
                backward, stage = divmod(rest, tags.stages)
                name = "isend" if kind == CallKind.ISEND else "irecv"
                actions.append((name, peer, ("B" if backward else "F", stage, microbatch)))
        ranks.append(actions)
    return ranks


def as_written(program: Program, *, once: bool) -> list[list[Action]]:
    """The actions of a program that need not make sense, operation by operation.

    A program of computations receives right before a computation what it needs of another rank, and sends right after
    it what another rank needs; if `once`, no message a second time. One with SEND and RECV does what they say, and
    waits for a receive before the computation that needs it. All other waits are at the end.
    """
    home = program.placement[0].tolist()
    explicit = program.explicit_communication
    return [_Writer(program, home, rank, once).actions(explicit) for rank in range(program.ranks)]


@dataclass
class _Writer:
    program: Program
    home: list[int]
    rank: int
    once: bool
    written: list[Action] = field(default_factory=list)
    requests: int = 0
    receives: dict[Message, int] = field(default_factory=dict)  # not yet waited for
    waited: set[int] = field(default_factory=set)
    seen: set[tuple[str, Message]] = field(default_factory=set)

    def actions(self, explicit: bool) -> list[Action]:
        for row in self.program.rows(self.rank):
            kind, stage = Kind(self.program.kind[row]), int(self.program.stage[row])
            microbatch = int(self.program.microbatch[row])
            match kind:
                case Kind.SEND_F:
                    self._message("isend", ("F", stage + 1, microbatch), stage + 1)
                case Kind.SEND_B:
                    self._message("isend", ("B", stage - 1, microbatch), stage - 1)
                case Kind.RECV_F:
                    self._message("irecv", ("F", stage, microbatch), stage - 1)
                case Kind.RECV_B:
                    self._message("irecv", ("B", stage, microbatch), stage + 1)
                case Kind.F:
                    self._computation("F", stage, microbatch, stage - 1, stage + 1, explicit)
                case Kind.B | Kind.I:
                    self._computation(kind.name, stage, microbatch, stage + 1, stage - 1, explicit)
                case _:
                    self.written.append((kind.name, stage, microbatch))
        for request in range(self.requests):
            self._wait(request)
        return self.written

    def _message(self, name: str, message: Message, other: int) -> None:
        if not 0 <= other < self.program.stages:
            self.written.append(("nonsense", f"there is no stage {other}"))
        elif self.home[other] == self.rank:
            self.written.append(("nonsense", "a message to itself"))
        elif not (self.once and not self.program.explicit_communication and (name, message) in self.seen):
            self.seen.add((name, message))
            self.written.append((name, self.home[other], message))
            if name == "irecv":
                self.receives[message] = self.requests
            self.requests += 1

    def _computation(self, kind: str, stage: int, microbatch: int, above: int, below: int, explicit: bool) -> None:
        """`above` is the stage that it needs a message of, `below` the one that needs its message."""
        way = "F" if kind == "F" else "B"
        here = self.home[stage] == self.rank
        wants = (way, stage, microbatch)
        if not explicit and here and self._elsewhere(above):
            self._message("irecv", wants, above)
        if wants in self.receives:
            self._wait(self.receives.pop(wants))
        self.written.append((kind, stage, microbatch))
        if not explicit and here and self._elsewhere(below):
            self._message("isend", (way, below, microbatch), below)

    def _elsewhere(self, stage: int) -> bool:
        return 0 <= stage < self.program.stages and self.home[stage] != self.rank

    def _wait(self, request: int) -> None:
        if request not in self.waited:
            self.waited.add(request)
            self.written.append(("wait", request))


# ------------------------------------------------------------------ doing it


@dataclass(frozen=True)
class Outcome:
    """What happened, and to which rank first where it is not `equal`."""

    kind: str
    detail: str = ""


@dataclass(eq=False)
class _Transfer:
    """One end of a message. `gate`: how many computations of its rank come before it."""

    rank: int
    peer: int
    sends: bool
    message: Message
    gate: int
    value: Value | None = None
    done: bool = False


@dataclass(eq=False)
class _Rank:
    number: int
    actions: Sequence[Action]
    at: int = 0
    queue: deque[Action] = field(default_factory=deque)  # of the stream of computations: those, and waits
    enqueued: int = 0
    completed: int = 0
    requests: list[_Transfer] = field(default_factory=list)
    values: dict[Message, Value] = field(default_factory=dict)  # what has arrived, and what it has made
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    held: dict[tuple[int, int], tuple[Kept, Value | None]] = field(default_factory=dict)  # from I until W
    contributions: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.at == len(self.actions) and not self.queue

    def needed(self, message: Message) -> Value:
        if message not in self.values:
            raise _Failed(f"{message[0]}{message[2]}@{message[1]} is not there")
        return self.values[message]


@dataclass(eq=False)
class _Run:
    model: Model
    home: Sequence[int]
    transport: str
    ranks: list[_Rank]
    streams: dict[tuple[int, object], deque[_Transfer]] = field(default_factory=lambda: defaultdict(deque))
    posted: dict[tuple[int, int, Message], deque[_Transfer]] = field(default_factory=lambda: defaultdict(deque))
    used: set[tuple] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nccl = self.transport.startswith("nccl")
        self.eager = self.transport.startswith("nccl-eager")
        self.cold = self.nccl and not self.transport.endswith("warm")

    def to_the_end(self) -> Outcome:
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                try:
                    while self._host(rank) or self._computations(rank) or self._streams(rank):
                        moved = True
                except _Failed as failed:
                    return Outcome(ERROR, f"rank {rank.number}: {failed}")
        for rank in self.ranks:
            if not rank.ended:
                at = rank.queue[0] if rank.queue else rank.actions[rank.at]
                return Outcome(HANGS, f"rank {rank.number} at {at}")
        if self.model.equal(each for rank in self.ranks for each in rank.contributions):
            return Outcome(EQUAL)
        return Outcome(WRONG)

    # Each of these does one thing and returns True, or returns False.

    def _host(self, rank: _Rank) -> bool:
        if rank.at == len(rank.actions):
            return False
        action = rank.actions[rank.at]
        match action[0]:
            case "isend" | "irecv":
                sends = action[0] == "isend"
                if self.cold and not self._used_before(rank.number, action[1], sends):
                    return False
                transfer = _Transfer(rank.number, action[1], sends, action[2], rank.enqueued)
                rank.requests.append(transfer)
                self._post(rank, transfer)
            case "nonsense":
                raise _Failed(action[1])
            case "wait" if not self.nccl:
                if not rank.requests[action[1]].done:
                    return False
            case _ if self.nccl:
                rank.queue.append(action)
                rank.enqueued += 1
            case _:
                self._compute(rank, action)
        rank.at += 1
        return True

    def _computations(self, rank: _Rank) -> bool:
        if not rank.queue:
            return False
        action = rank.queue[0]
        if action[0] == "wait":
            if not rank.requests[action[1]].done:
                return False
        else:
            self._compute(rank, action)
        rank.queue.popleft()
        rank.completed += 1
        return True

    def _post(self, rank: _Rank, transfer: _Transfer) -> None:
        if self.nccl:
            self.streams[rank.number, self._stream(transfer.peer)].append(transfer)
            return
        ends = (transfer.rank, transfer.peer) if transfer.sends else (transfer.peer, transfer.rank)
        waiting = self.posted[(*ends, transfer.message)]
        if transfer.sends:
            transfer.value = rank.needed(transfer.message)
            transfer.done = self.transport == "buffered"
        if waiting and waiting[0].sends != transfer.sends:
            self._meet(waiting.popleft(), transfer)
        else:
            waiting.append(transfer)

    def _meet(self, one: _Transfer, other: _Transfer) -> None:
        send, receive = (one, other) if one.sends else (other, one)
        assert send.value is not None
        self.ranks[receive.rank].values[receive.message] = send.value
        send.done = receive.done = True

    def _stream(self, peer: int) -> object:
        """A stream of a rank: for all peers, or for each pair of ranks."""
        return "all" if self.eager else peer

    def _streams(self, rank: _Rank) -> bool:
        """NCCL: one message whose ends are both first on their streams, whatever it is."""
        if not self.nccl:
            return False
        for stream in [stream for (number, _), stream in self.streams.items() if number == rank.number]:
            if not stream or stream[0].gate > rank.completed:
                continue
            mine = stream[0]
            theirs = self.streams[mine.peer, self._stream(rank.number)]
            if not theirs or theirs[0].peer != rank.number or theirs[0].sends == mine.sends:
                continue
            other = theirs[0]
            if other.gate > self.ranks[other.rank].completed:
                continue
            send = mine if mine.sends else other
            send.value = self.ranks[send.rank].needed(send.message)
            stream.popleft()
            theirs.popleft()
            self._meet(mine, other)
            return True
        return False

    def _used_before(self, rank: int, peer: int, sends: bool) -> bool:
        """Cold: whether the host may go on: the first use of a communicator or direction needs the other end's too."""
        here, there = (rank, peer, sends), (peer, rank, not sends)
        if not self.eager:
            self.used.add((rank, peer))
            if (peer, rank) not in self.used:
                return False
        self.used.add(here)
        return there in self.used

    def _compute(self, rank: _Rank, action: Action) -> None:
        kind, stage, microbatch = action
        if self.home[stage] != rank.number:
            raise _Failed(f"stage {stage} is not here")
        cell = (stage, microbatch)
        last = stage == self.model.stages - 1
        if kind == "F":
            x = self.model.data[microbatch] if stage == 0 else rank.needed(("F", stage, microbatch))
            rank.kept[cell] = kept = self.model.forward(stage, microbatch, x)
            if kept.output is not None:
                rank.values["F", stage + 1, microbatch] = kept.output
            return
        if kind == "W":
            if cell not in rank.held:
                raise _Failed("W has nothing to go on")
            kept, gradient = rank.held.pop(cell)
        else:
            if cell not in rank.kept:
                raise _Failed("the activation is not there")
            gradient = None if last else rank.needed(("B", stage, microbatch))
            kept = rank.kept.pop(cell)
            if kind == "I":
                rank.held[cell] = (kept, gradient)
        found: Gradients = self.model.backward(kept, gradient, kind)
        if found.input is not None and stage:
            rank.values["B", stage - 1, microbatch] = found.input
        if found.own is not None:
            rank.contributions.append((stage, found.own))


def run(model: Model, home: Sequence[int], actions: Sequence[Sequence[Action]], transport: str) -> Outcome:
    """What happens to these actions of every rank; `home` is the rank of each stage. Transports of `TRANSPORTS`."""
    return _Run(model, home, transport, [_Rank(number, own) for number, own in enumerate(actions)]).to_the_end()
