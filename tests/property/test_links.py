"""Links keep no rank waiting that a process group lets go on: what ends there ends here, with the same messages."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.runtime import neighbours
from pipedsl.runtime.neighbours import window
from pipedsl.runtime.plan import Plan, PlannedCall, read_calls
from pipedsl.runtime.shared_memory import Link, Window, can_share_memory

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")

LIMIT = 60.0  # seconds after which a rank is taken to hang; it needs a moment


@dataclass
class Rank:
    """What a rank has called so far, as a plan writes it, and what of that it has not waited for."""

    lines: list[str] = field(default_factory=list)
    requests: int = 0
    waiting: list[tuple[str, int]] = field(default_factory=list)  # message, request
    posted: set[str] = field(default_factory=set)

    def post(self, kind: str, message: str, peer: int) -> None:
        self.lines.append(f"{kind} {message} {peer} 1")
        self.waiting.append((message, self.requests))
        self.posted.add(message)
        self.requests += 1

    def wait(self, place: int) -> None:
        _, request = self.waiting.pop(place)
        self.lines.append(f"wait {request} 1")


@st.composite
def programs(draw: st.DrawFn) -> Plan:
    """Two ranks that exchange messages in any order, as they can on gloo: a wait ends when both ends are posted.

    They are made by running them, so there is an order in which they end.
    """
    counts = draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))
    senders = {f"{'FB'[rank]}{k}@{1 - rank}": rank for rank, count in enumerate(counts) for k in range(count)}
    ranks = [Rank(), Rank()]
    while True:
        choices = []
        for number, rank in enumerate(ranks):
            other = ranks[1 - number]
            choices += [(number, "post", message) for message in senders if message not in rank.posted]
            choices += [(number, "wait", k) for k, (message, _) in enumerate(rank.waiting) if message in other.posted]
        if not choices:
            break
        number, what, which = draw(st.sampled_from(choices))
        if what == "wait":
            ranks[number].wait(which)
        else:
            ranks[number].post("isend" if senders[which] == number else "irecv", which, 1 - number)
    calls = ["\n".join(rank.lines) for rank in ranks]
    return Plan("test", "test", {}, "", {}, 2, 2, 8, [0, 1], calls)


def run(link: Link, calls: list[PlannedCall], found: dict[str, int]) -> None:
    """A rank's calls; what it receives."""
    numbers: dict[int, int] = {}
    for call in calls:
        tag = 2 * call.microbatch + call.backward
        if call.kind == "isend":
            numbers[call.request] = link.send([torch.full((1 + tag,), 100 + tag)], tag)
        elif call.kind == "irecv":
            link.expect()
        elif call.receives:
            tensor = torch.empty(1 + tag, dtype=torch.int64)
            link.receive([tensor], tag)
            assert (tensor == tensor[0]).all()
            found[call.message] = int(tensor[0])
        else:
            link.finish_send(numbers[call.request])


def exact(found: Window) -> Window:
    """Without the room that is there for speed alone."""
    return replace(found, room=found.room - neighbours._SLACK)


def hang(plan: Plan) -> bool:
    """Whether they do on a link. Where they end, what was received is what was sent."""
    both = [read_calls(plan, rank) for rank in range(2)]
    ways = [exact(window(both[0], 0, both[1], 1)), exact(window(both[1], 1, both[0], 0))]
    sockets = socket.socketpair()
    found: dict[str, int] = {}
    ends = [Link(sockets[rank], ways[rank], ways[1 - rank], 0.0) for rank in range(2)]
    threads = [threading.Thread(target=run, args=(ends[rank], both[rank], found), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if any(thread.is_alive() for thread in threads):
        return True
    assert found == {c.message: 100 + 2 * c.microbatch + c.backward for each in both for c in each if c.kind == "irecv"}
    return False


@given(programs())
@settings(max_examples=150)
def test_what_ends_on_a_process_group_ends_on_a_link(plan: Plan) -> None:
    assert not hang(plan)
