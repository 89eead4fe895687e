"""Which ranks are on one host, and the connections between those of them that exchange messages.

Every rank listens under a random name that the kernel keeps: no file stands for it, and only processes of the same host
and network namespace reach it. It says the name through the ranks' store. Of two ranks the higher one connects, and
says whom it has reached; the lower one then says whom it has accepted. So both know whether they are connected. Where
they are not, as on two hosts, their messages go over the process group.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipedsl.runtime.plan import CannotStart, Plan, PlannedCall, read_calls
from pipedsl.runtime.shared_memory import Link, Window, can_share_memory, credentials, make_room
from pipedsl.runtime.wire import Store

_SLACK = 1  # messages that a sender may be ahead by, beyond what it has to be
_SPIN = 50e-6  # seconds
_VERDICT_POLL = 0.001  # seconds between two looks for what another rank sets
_BACKLOG = 1024  # connections that wait to be accepted
_HELLO = struct.Struct("<q32s")  # the rank that connects, and the token of the one that it connects to
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for all processes of a host


class Neighbourhood:
    """One rank's part in it. All ranks read each other's `offer`, empty for none, before they `connect`."""

    def __init__(self, *, wanted: bool) -> None:
        self._listener: socket.socket | None = None
        self._token = secrets.token_hex(16)
        self._room = 0  # for messages under way, both ways
        self.offer = ""
        if wanted and can_share_memory():
            with contextlib.suppress(OSError):
                name = f"pipedsl-{secrets.token_hex(16)}"
                listener = socket.socket(socket.AF_UNIX)
                self._listener = listener
                listener.bind(f"\0{name}")
                listener.listen(_BACKLOG)
                self._room = make_room(listener)
                self.offer = json.dumps([name, self._token, _host()])

    def connect(
        self, plan: Plan, rank: int, offers: Sequence[str], store: Store, seconds: float, stop: Callable[[], None]
    ) -> dict[int, Link]:
        """Links to the ranks of this host that `rank` exchanges messages with.

        `offers`: of all ranks. `stop`: called while another one is waited for, to raise. PipelineError where one takes
        part no longer, after `seconds`.
        """
        deadline = time.monotonic() + seconds
        own = read_calls(plan, rank)
        ways = {
            peer: (window(own, rank, theirs, peer), window(theirs, peer, own, rank))
            for peer in sorted({c.peer for c in own if c.peer >= 0 and offers[c.peer]} if self.offer else ())
            if (theirs := read_calls(plan, peer))
        }
        # Who is granted less room than the other end says no, as whoever refuses does.
        peers = [peer for peer, way in ways.items() if sum(each.under_way for each in way) <= self._room]

        def told(what: str, peer: int) -> bool:
            """Whether another rank says that it has reached this one, or accepted it."""
            while not store.check([f"{what}/{peer}"]):
                if time.monotonic() > deadline:
                    raise CannotStart(plan, f"rank {peer} did not make its Pipeline within {seconds:g} s")
                stop()
                time.sleep(_VERDICT_POLL)
            return rank in json.loads(store.get(f"{what}/{peer}"))

        reached = {peer: made for peer in peers if peer < rank and (made := _reach(offers[peer], rank)) is not None}
        store.set(f"reached/{rank}", json.dumps(list(reached)))
        accepted = self._accept({peer for peer in peers if peer > rank and told("reached", peer)})
        store.set(f"accepted/{rank}", json.dumps(list(accepted)))
        connected = accepted
        for peer, connection in reached.items():
            if told("accepted", peer):
                connected[peer] = connection
            else:
                connection.close()
        spin = _SPIN if _local_ranks(offers) <= _processors() else 0.0
        return {peer: Link(connection, *ways[peer], spin) for peer, connection in sorted(connected.items())}

    def close(self) -> None:
        """Listen no longer."""
        if self._listener is not None:
            self._listener.close()

    def _accept(self, expected: set[int]) -> dict[int, socket.socket]:
        """The connections of ranks that have reached this one, of those that are what they should be.

        What they have said waits to be read, so nobody is waited for here.
        """
        accepted: dict[int, socket.socket] = {}
        while self._listener is not None and not expected <= accepted.keys():
            try:
                self._listener.setblocking(False)
                connection, _ = self._listener.accept()
            except OSError:
                break
            with contextlib.suppress(OSError):
                if is_own(connection):
                    said = connection.recv(_HELLO.size, socket.MSG_DONTWAIT)
                    peer, token = _HELLO.unpack(said.ljust(_HELLO.size))
                    if peer in expected and hmac.compare_digest(token, self._token.encode()):
                        accepted[peer] = connection
                        continue
            connection.close()
        return accepted


def _reach(offer: str, rank: int) -> socket.socket | None:
    """A connection to the rank that offers it; None from another host, or where it is another user's.

    None, too, where more than can wait to be accepted do: that rank will accept none before this one goes on.
    """
    name, token, _ = json.loads(offer)
    with contextlib.ExitStack() as refused, contextlib.suppress(OSError):
        connection = refused.enter_context(socket.socket(socket.AF_UNIX))
        connection.setblocking(False)
        connection.connect(f"\0{name}")
        if is_own(connection):
            connection.sendall(_HELLO.pack(rank, token.encode()))
            refused.pop_all()
            return connection
    return None


def is_own(connection: socket.socket) -> bool:
    """Whether the other end belongs to a process of this one's user."""
    _, user, _ = credentials(connection)
    return user == os.getuid()


def window(sending: Sequence[PlannedCall], source: int, receiving: Sequence[PlannedCall], destination: int) -> Window:
    """Of the messages from `source` to `destination`, by the calls of both."""
    place: dict[str, int] = {}
    begun, most_begun = 0, 0  # sends that are not waited for yet
    for call in sending:
        if call.receives or call.peer != destination:
            continue
        if call.kind == "wait":
            begun -= 1
            continue
        place[call.message] = len(place)
        most_begun = max(most_begun, begun + 1)
        begun += call.kind == "isend"
    room, ahead, taken, posted = 1, 0, 0, set[int]()
    early: set[int] = set()
    for call in receiving:
        if not call.receives or call.peer != source:
            continue
        number = place[call.message]
        if call.kind != "wait":
            posted.add(number)
            room = max(room, number + 1 - taken)
            ahead = max(ahead, sum(each not in posted for each in range(taken, number)))
        if call.kind != "irecv":
            early.add(number)
            while taken in early:
                taken += 1
    return Window(room + _SLACK, ahead, room + _SLACK + most_begun)


def _host() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _local_ranks(offers: Sequence[str]) -> int:
    """How many processes of the job are on this host, as far as it can be known."""
    here = _host()
    with_agent = os.environ.get("LOCAL_WORLD_SIZE", "")
    known = sum(bool(json.loads(offer)[2] == here) for offer in offers if offer)
    return max(known, int(with_agent) if with_agent.isdecimal() else 0)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
