"""A process group that behaves as NCCL does, for programs whose ranks are threads of one process.

What it keeps of NCCL: every rank has streams, one per unordered pair of ranks (lazy initialisation) or one for all its
peers (eager); what a rank posts on a stream runs in the order of posting; a send and a receive run only together, when
both are first on their streams; tags mean nothing. Cold: the first use of a pair's communicator (lazy), and of each
direction, holds the host until the other end has posted its part.

What differs: `wait()` holds the thread, not a stream of computations. Computations that depend on the message come
after it in the thread, so programs meet the same deadlocks.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipedsl.calls import CallKind, Calls
from pipedsl.runtime.shared_memory import Link

LAZY, EAGER = "lazy", "eager"
DIRECTIONS = "directions"  # for comparison: the directions of a pair are independent, as on gloo


class Released(RuntimeError):
    """What a blocked call raises when the test is over or its rank is woken."""


@dataclass(eq=False)
class _Transfer:
    """One end of a message on its way."""

    sends: bool
    rank: int
    peer: int
    tensor: torch.Tensor
    done: bool = False


class Fabric:
    """What connects the ranks of one job."""

    def __init__(self, ranks: int, mode: str = LAZY, *, cold: bool = True) -> None:
        self.ranks = ranks
        self.mode = mode
        self._cold = cold
        self._changed = threading.Condition()
        self._streams: dict[tuple[int, Any], deque[_Transfer]] = defaultdict(deque)
        self._used: set[tuple[int, Any]] = set()
        self._woken: set[int] = set()
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._closed = False
        self._turns = [0] * ranks
        self._parts: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
        self.shared_store = dist.HashStore()
        self.last_words: list[str] = []

    def wire(self, rank: int) -> Wire:
        return Wire(self, rank)

    def close(self) -> None:
        """Let every blocked thread go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wake(self, rank: int) -> None:
        with self._changed:
            self._woken.add(rank)
            self._changed.notify_all()

    def post(self, transfer: _Transfer) -> _Transfer:
        rank, peer, sends = transfer.rank, transfer.peer, transfer.sends
        pair = frozenset((rank, peer))
        channel = (rank, peer) if sends else (peer, rank)
        with self._changed:
            if self._cold:
                if self.mode == LAZY:
                    self._first_use(rank, ("pair", pair), peer, ("pair", pair))
                self._first_use(rank, (channel, sends), peer, (channel, not sends))
            self._streams[rank, self._key(rank, peer, sends)].append(transfer)
            self._advance()
        return transfer

    def finish(self, transfer: _Transfer) -> None:
        with self._changed:
            self._block(transfer.rank, lambda: transfer.done)

    def all_reduce(self, rank: int, tensor: torch.Tensor, largest: bool) -> None:
        """Every rank's n-th call meets the others' n-th."""
        with self._changed:
            turn = self._turns[rank]
            self._turns[rank] += 1
            parts = self._parts[turn]
            parts[rank] = tensor.clone()
            self._changed.notify_all()
            self._block(rank, lambda: len(parts) == self.ranks)
        stacked = torch.stack([parts[each] for each in range(self.ranks)])
        tensor.copy_(stacked.amax(0) if largest else stacked.sum(0))

    def _key(self, rank: int, peer: int, sends: bool) -> Any:
        """The stream of a rank that a transfer runs on."""
        if self.mode == DIRECTIONS:
            return (rank, peer) if sends else (peer, rank)
        return "all" if self.mode == EAGER else frozenset((rank, peer))

    def _first_use(self, rank: int, what: Any, peer: int, counterpart: Any) -> None:
        if (rank, what) not in self._used:
            self._used.add((rank, what))
            self._changed.notify_all()
            self._block(rank, lambda: (peer, counterpart) in self._used)

    def _block(self, rank: int, ready: Callable[[], bool]) -> None:
        """Hold the calling thread until `ready`."""
        self._waiting[rank] = ready
        try:
            while not ready():
                if self._closed or rank in self._woken:
                    raise Released("released")
                self._changed.wait()
        finally:
            del self._waiting[rank]

    def stuck(self, alive: int) -> bool:
        """All living ranks are blocked, and as only they could change anything, for good."""
        with self._changed:
            return alive == len(self._waiting) and not any(ready() for ready in self._waiting.values())

    def _advance(self) -> None:
        """Run what is first on both of its streams."""
        moved = True
        while moved:
            moved = False
            for stream in list(self._streams.values()):
                while stream and stream[0].sends:
                    send = stream[0]
                    other = self._streams[send.peer, self._key(send.peer, send.rank, False)]
                    if not other or other[0].sends or other[0].peer != send.rank:
                        break
                    receive = other.popleft()
                    stream.popleft()
                    _copy(send.tensor, receive.tensor)
                    send.done = receive.done = moved = True
        self._changed.notify_all()


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Bytes, as many as both have: NCCL checks neither sizes nor types."""
    out, into = source.reshape(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
    size = min(len(out), len(into))
    into[:size] = out[:size]


class Work:
    def __init__(self, fabric: Fabric, transfer: _Transfer) -> None:
        self._fabric = fabric
        self._transfer = transfer

    def wait(self) -> None:
        self._fabric.finish(self._transfer)


class Wire:
    """One rank's end, as `pipedsl.runtime.wire.Wire` asks for it."""

    in_order = True
    linkable = False
    strangers = 0
    hosts_store = False
    store_host = "the test"

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric = fabric
        self.rank = rank
        self.size = fabric.ranks
        self.ranks = range(fabric.ranks)
        self.links: Mapping[int, Link] = {}
        self.transport = f"nccl-{fabric.mode}-warm"

    def store(self, name: str, *, for_thread: bool = False) -> Any:
        return dist.PrefixStore(name, self._fabric.shared_store)

    def job_store(self, *, for_thread: bool = False) -> Any:
        return dist.PrefixStore("job", self._fabric.shared_store)

    def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        return Work(self._fabric, self._fabric.post(_Transfer(True, self.rank, peer, tensor)))

    def irecv(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        return Work(self._fabric, self._fabric.post(_Transfer(False, self.rank, peer, tensor)))

    def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> None:
        self._fabric.all_reduce(self.rank, tensor, largest)

    def lost(self, error: Exception) -> bool:
        return isinstance(error, Released)

    def wake(self, peer: int) -> None:
        self._fabric.wake(self.rank)

    def give_up(self, message: str) -> None:
        self._fabric.last_words.append(message)
        self._fabric.close()


@dataclass
class Rank:
    """How a rank's thread ended: with a `result` or an `error`, or not at all before it was released (`hung`)."""

    result: Any = None
    error: BaseException | None = None
    hung: bool = False


def run_ranks(fabric: Fabric, body: Callable[[Wire], Any], *, timeout: float = 60) -> list[Rank]:
    """Run `body` as every rank. Ends when all threads have, when none of them can go on, or at `timeout`."""
    ranks = [Rank() for _ in range(fabric.ranks)]

    def work(rank: int) -> None:
        try:
            ranks[rank].result = body(fabric.wire(rank))
        except BaseException as error:  # handed to the test
            ranks[rank].error = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(fabric.ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    while any(thread.is_alive() for thread in threads):
        alive = [thread.is_alive() for thread in threads]
        if fabric.stuck(sum(alive)) or time.monotonic() > deadline:
            for rank, living in enumerate(alive):
                ranks[rank].hung = living
            fabric.close()
            break
        time.sleep(0.005)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a rank's thread could not be released"
    return ranks


def run_calls(calls: Calls, fabric: Fabric) -> tuple[list[str | None], list[str]]:
    """Run the communication of `calls` as it stands, without warming anything up.

    Per rank the label of the call where it hangs, or None; and the messages that arrived in place of others.
    """
    at: list[int] = [-1] * calls.ranks
    crossed: list[str] = []

    def body(wire: Wire) -> None:
        requests: dict[int, tuple[Work, torch.Tensor, int]] = {}
        for row in calls.rows(wire.rank):
            at[wire.rank] = row
            kind, peer, tag = CallKind(calls.kind[row]), int(calls.peer[row]), int(calls.tag[row])
            if kind is CallKind.COMPUTE:
                continue
            if kind is CallKind.WAIT:
                work, tensor, tag = requests.pop(int(calls.request[row]))
            else:
                sends = kind in (CallKind.SEND, CallKind.ISEND)
                tensor = torch.tensor([tag if sends else -1])
                work = (wire.isend if sends else wire.irecv)(tensor, peer, tag)
                if kind in (CallKind.ISEND, CallKind.IRECV):
                    requests[int(calls.request[row])] = (work, tensor, tag)
                    continue
            work.wait()
            if int(tensor) != tag:
                crossed.append(f"{calls.tags[int(tensor)]} arrived as {calls.tags[tag]}")
        assert not requests

    ranks = run_ranks(fabric, body)
    for rank in ranks:
        if rank.error is not None and not isinstance(rank.error, Released):
            raise rank.error
    return [calls.label(at[r]) if rank.hung else None for r, rank in enumerate(ranks)], crossed
