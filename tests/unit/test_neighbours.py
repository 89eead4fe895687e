"""Ranks of one host find each other, and both ends of every pair know whether they have."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipedsl.runtime import neighbours, shared_memory
from pipedsl.runtime.neighbours import Neighbourhood, window
from pipedsl.runtime.plan import PipelineError, Plan, read_calls
from pipedsl.runtime.shared_memory import Link, Window, can_share_memory

needs_links = pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")

RANKS = 4
PATIENCE = 60.0  # seconds, where it is not time that runs out


def chain(ranks: int = RANKS) -> Plan:
    """Activations go from rank to rank."""
    calls = []
    for rank in range(ranks):
        lines = [f"recv F0@{rank} {rank - 1} 1"] * (rank > 0) + [f"F {rank} 0 1"]
        calls.append("\n".join([*lines, *[f"send F0@{rank + 1} {rank + 1} 1"] * (rank < ranks - 1)]))
    return Plan("chain", "x.sched", {}, "", {}, ranks, ranks, 1, list(range(ranks)), calls)


def meet(
    plan: Plan, wanted: Sequence[bool], seconds: float = PATIENCE, alter: Callable[[list[str]], Any] = lambda _: None
) -> list[dict[int, Link] | BaseException]:
    """Every rank as a thread, called by its number; what each found, or the error. `alter` may change the offers."""
    found: list[Any] = [None] * plan.ranks
    nears = [Neighbourhood(wanted=each) for each in wanted]
    offers = [near.offer for near in nears]
    alter(offers)
    store = dist.HashStore()

    def work(rank: int) -> None:
        try:
            found[rank] = nears[rank].connect(plan, rank, offers, store, seconds, lambda: None)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), name=str(rank)) for rank in range(plan.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    for near in nears:
        near.close()
    return found


def pairs(found: Sequence[dict[int, Link] | BaseException]) -> set[tuple[int, int]]:
    """Whom every rank is connected with, as it sees it; that the links work, too."""
    for rank, links in enumerate(found):
        assert isinstance(links, dict), links
        for peer, link in links.items():
            link.send([torch.tensor([rank, peer])], 0)
    for rank, links in enumerate(found):
        assert isinstance(links, dict)
        for peer, link in links.items():
            tensor = torch.empty(2, dtype=torch.int64)
            link.receive([tensor], 0)
            assert tensor.tolist() == [peer, rank]
    return {(rank, peer) for rank, links in enumerate(found) if isinstance(links, dict) for peer in links}


@contextlib.contextmanager
def nothing_left_to_close() -> Iterator[None]:
    """By Python, which complains of it at once."""
    gc.collect()
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always", ResourceWarning)
        yield
    assert not complaints


ALL = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}


@needs_links
def test_ranks_that_exchange_messages_are_connected() -> None:
    assert pairs(meet(chain(), [True] * RANKS)) == ALL


@needs_links
@pytest.mark.parametrize("without", [0, 1, 3])
def test_a_rank_that_offers_nothing_is_left_out(without: int) -> None:
    wanted = [rank != without for rank in range(RANKS)]
    assert pairs(meet(chain(), wanted)) == {pair for pair in ALL if without not in pair}


@needs_links
@pytest.mark.parametrize("refuses", range(RANKS))
def test_where_one_end_refuses_both_do_without(refuses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the other process is another user's."""
    is_own = neighbours.is_own
    monkeypatch.setattr(neighbours, "is_own", lambda x: threading.current_thread().name != str(refuses) and is_own(x))
    with nothing_left_to_close():
        found = meet(chain(), [True] * RANKS)
    assert pairs(found) == {pair for pair in ALL if refuses not in pair}


@needs_links
def test_ranks_of_other_hosts_are_not_reached() -> None:
    """There, the name is another process's, if anybody's."""

    def elsewhere(offers: list[str]) -> None:
        name, token, _ = json.loads(offers[1])
        offers[1] = json.dumps([f"{name}?", token, "another host"])

    assert pairs(meet(chain(), [True] * RANKS, alter=elsewhere)) == {(0, 1), (1, 0), (2, 3), (3, 2)}


@needs_links
def test_whose_process_the_other_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert neighbours.is_own(one)
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        assert not neighbours.is_own(one)


@needs_links
def test_a_stranger_is_not_taken_for_a_rank() -> None:
    """Who does not know what the store says, or says nothing: not even instead of a rank that comes later.

    Nor one of the job's ranks that has nothing to send here.
    """
    strangers = []

    def intrude(offers: list[str]) -> None:
        name, token, *_ = json.loads(offers[0])
        other = neighbours._HELLO.pack(3, token.encode())
        for said in (other, neighbours._HELLO.pack(1, b"?" * 32), b"", neighbours._HELLO.pack(1, b"?" * 32)[:5]):
            strangers.append(socket.socket(socket.AF_UNIX))
            strangers[-1].connect(f"\0{name}")
            strangers[-1].send(said)

    with nothing_left_to_close():
        found = meet(chain(), [True] * RANKS, alter=intrude)
    for stranger in strangers:
        stranger.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):  # where what it said was not read
            assert stranger.recv(1) == b""
        stranger.close()
    assert pairs(found) == ALL


@needs_links
def test_a_rank_that_is_gone_is_named() -> None:
    near = Neighbourhood(wanted=True)
    with pytest.raises(PipelineError, match=r"rank 1 did not make its Pipeline within 0\.1 s"):
        near.connect(chain(2), 0, [near.offer] * 2, dist.HashStore(), 0.1, lambda: None)
    near.close()


@needs_links
def test_one_that_has_failed_is_not_waited_for() -> None:
    def stop() -> None:
        raise PipelineError("rank 1 failed")

    near = Neighbourhood(wanted=True)
    with pytest.raises(PipelineError, match="rank 1 failed"):
        near.connect(chain(2), 0, [near.offer] * 2, dist.HashStore(), 3600, stop)
    near.close()


@needs_links
def test_nobody_listens_any_longer_once_all_have_met() -> None:
    names: list[str] = []
    found = meet(chain(), [True] * RANKS, alter=lambda offers: names.extend(json.loads(each)[0] for each in offers))
    for name in names:
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
            late.connect(f"\0{name}")
    del found
    near = Neighbourhood(wanted=True)
    names.append(json.loads(near.offer)[0])
    near.close()
    assert not [name for name in names if name in Path("/proc/net/unix").read_text()]


@needs_links
@pytest.mark.parametrize(
    ("processors", "with_agent", "spins"),
    [(1, "", False), (2, "", True), (2, "3", False), (3, "3", True), (2, "1", True), (2, "?", True)],
)
def test_a_wait_keeps_its_processor_where_every_rank_of_the_host_has_one(
    processors: int, with_agent: str, spins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this pipeline, and, where torchrun says how many there are, of others."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", with_agent)
    monkeypatch.setattr(neighbours, "_processors", lambda: processors)
    found = meet(chain(2), [True, True])
    assert pairs(found) == {(0, 1), (1, 0)}
    spent = {link._spin for links in found if isinstance(links, dict) for link in links.values()}
    assert spent == {neighbours._SPIN if spins else 0.0}


def test_who_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of other hosts need no processor of this one, nor is each processor of it for this process to use."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(neighbours, "_host", lambda: "here")
    hosts = ["here", "there", "", "here", "there"]
    offers = [json.dumps(["name", "token", host]) if host else "" for host in hosts]
    assert neighbours._local_ranks(offers) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert neighbours._processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert neighbours._processors() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert neighbours._processors() == 1


def test_a_host_without_a_name_has_an_empty_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(neighbours, "_BOOT", tmp_path / "boot_id")
    assert neighbours._host() == ""
    (tmp_path / "boot_id").write_text("one\n")
    assert neighbours._host() == "one"


def ahead(messages: int) -> Plan:
    """One rank sends so many before it waits for one."""
    sends = [f"isend F{k}@1 1 1" for k in range(messages)]
    waits = [f"wait {k} 1" for k in range(messages)]
    receives = [f"recv F{k}@1 0 1" for k in range(messages)]
    calls = ["\n".join([*sends, *waits]), "\n".join(receives)]
    return Plan("ahead", "x.sched", {}, "", {}, 2, 2, messages, [0, 1], calls)


@needs_links
@pytest.mark.parametrize(("messages", "connected"), [(150, True), (400, False)])
def test_ranks_with_more_messages_under_way_than_notices_have_room_use_the_group(
    messages: int, connected: bool
) -> None:
    """Where a socket has 416 KiB, as Linux allows it unless told otherwise, or the 512 that are asked for."""
    assert pairs(meet(ahead(messages), [True, True])) == ({(0, 1), (1, 0)} if connected else set())


@needs_links
def test_where_the_system_grants_sockets_less_fewer_messages_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 KiB, which Linux doubles, and of which a notice takes some 800 bytes."""
    monkeypatch.setattr(shared_memory, "_BUFFER", 1 << 12)
    assert pairs(meet(chain(2), [True, True])) == {(0, 1), (1, 0)}
    assert pairs(meet(ahead(20), [True, True])) == set()


@needs_links
@pytest.mark.parametrize("less", range(2))
def test_of_two_ends_the_one_that_is_granted_less_counts(less: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For messages of both directions together. In the chain that is 3, of which one waits to be waited for, and 2."""
    for granted, plan, connected in ((5, chain(2), True), (4, chain(2), False), (5, ahead(20), False)):
        room = iter([granted if rank == less else 1000 for rank in range(2)])
        monkeypatch.setattr(neighbours, "make_room", lambda _, room=room: next(room))
        assert pairs(meet(plan, [True, True])) == ({(0, 1), (1, 0)} if connected else set())


@needs_links
def test_both_ends_know_each_direction_s_window() -> None:
    plan = ahead(20)
    calls = [read_calls(plan, rank) for rank in range(2)]
    there, back = window(calls[0], 0, calls[1], 1), window(calls[1], 1, calls[0], 0)
    assert there.under_way > back.under_way
    first, second = meet(plan, [True, True])
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first[1]._room, first[1]._window) == (there.room, back)
    assert (second[0]._room, second[0]._window) == (back.room, there)


@needs_links
def test_names_and_tokens_are_known_to_nobody_else() -> None:
    nears = [Neighbourhood(wanted=True) for _ in range(3)]
    words = [word for near in nears for word in json.loads(near.offer)[:2]]
    assert len(set(words)) == 6
    assert min(map(len, words)) >= 32
    for near in nears:
        near.close()


@needs_links
@pytest.mark.parametrize("what", ["bind", "listen", "setsockopt"])
def test_nothing_is_offered_where_the_system_refuses_a_socket(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was made of it until then is closed."""
    made = []

    class Refusing(socket.socket):
        def __init__(self, family: int) -> None:
            super().__init__(family)
            made.append(self)

    def refuse(*_: Any) -> None:
        raise PermissionError("not here")

    setattr(Refusing, what, refuse)
    monkeypatch.setattr(socket, "socket", Refusing)
    near = Neighbourhood(wanted=True)
    assert near.offer == ""
    assert near.connect(chain(1), 0, [near.offer], dist.HashStore(), PATIENCE, lambda: None) == {}
    near.close()
    assert [each.fileno() for each in made] == [-1]


class Backlog:
    """A listener that others wait for, so many that there is no place for the next one."""

    def __enter__(self) -> Backlog:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("")  # to a name that the kernel gives
        self.listener.listen(0)
        self.others: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                self.others.append(socket.socket(socket.AF_UNIX))
                self.others[-1].setblocking(False)
                self.others[-1].connect(self.listener.getsockname())
        self.offer = json.dumps([self.listener.getsockname()[1:].decode(), "?" * 32, ""])
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.listener, *self.others):
            each.close()


@needs_links
def test_nobody_waits_to_be_accepted() -> None:
    """By one who waits for this rank to go on."""
    with Backlog() as other:
        assert neighbours._reach(other.offer, 1) is None
        while other.others:
            other.others.pop().close()
        other.listener.accept()[0].close()
        connection = neighbours._reach(other.offer, 1)
        assert connection is not None
        connection.close()


def test_nothing_is_offered_where_it_is_not_wanted_or_not_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Neighbourhood(wanted=False).offer == ""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert Neighbourhood(wanted=True).offer == ""


def test_a_window_has_room_for_what_a_receive_can_be_sure_of() -> None:
    calls = [
        "isend F0@1 1 1\nisend F1@1 1 1\nisend F2@1 1 1\nwait 0 1\nwait 1 1\nwait 2 1\nrecv B0@0 1 1",
        "irecv F1@1 0 1\nwait 0 1\nirecv F0@1 0 1\nirecv F2@1 0 1\nwait 1 1\nwait 2 1\nsend B0@0 0 1",
    ]
    # F1 comes with F0 before it, which no receive is posted for; F2 with both of them not taken, as F0 is not.
    there, back = windows(calls)
    slack = neighbours._SLACK
    assert there == Window(3 + slack, 1, 6 + slack)
    assert back == Window(1 + slack, 0, 2 + slack)


@pytest.mark.parametrize(
    ("receives", "room", "ahead"),
    [
        (["recv F0@1", "recv F1@1", "recv F2@1", "recv F3@1"], 1, 0),
        (["recv F1@1", "recv F0@1", "recv F3@1", "recv F2@1"], 2, 1),
        (["recv F2@1", "recv F0@1", "recv F1@1", "recv F3@1"], 3, 2),
        (["irecv F0@1", "wait 0", "irecv F1@1", "wait 1", "irecv F2@1", "wait 2", "recv F3@1"], 1, 0),
        (["irecv F0@1", "irecv F1@1", "irecv F2@1", "wait 2", "wait 1", "wait 0", "recv F3@1"], 3, 0),
    ],
)
@pytest.mark.parametrize(
    ("sends", "begun"),
    [
        (["send F0@1", "send F1@1", "send F2@1", "send F3@1"], 1),
        (["isend F0@1", "wait 0", "isend F1@1", "wait 1", "isend F2@1", "wait 2", "send F3@1"], 1),
        (["isend F0@1", "send F1@1", "isend F2@1", "wait 0", "wait 1", "send F3@1"], 2),
    ],
)
def test_what_is_sent_and_taken_one_by_one_needs_no_more_room(
    sends: list[str], begun: int, receives: list[str], room: int, ahead: int
) -> None:
    calls = [
        "\n".join(f"{each} 1" if each.startswith("wait") else f"{each} {peer} 1" for each in lines)
        for lines, peer in ((sends, 1), (receives, 0))
    ]
    room += neighbours._SLACK
    assert windows(calls)[0] == Window(room, ahead, room + begun)


def windows(calls: list[str]) -> tuple[Window, Window]:
    """Of the first rank's messages to the second one, and of those back."""
    plan = Plan("x", "x.sched", {}, "", {}, 2, 2, 4, [0, 1], calls)
    first, second = (read_calls(plan, rank) for rank in range(2))
    return window(first, 0, second, 1), window(second, 1, first, 0)
