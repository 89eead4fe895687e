"""The process group as the executor uses it: what it is, how a blocked wait ends, what its stores are."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipedsl.runtime import wire as wire_module
from pipedsl.runtime.patience import StoreSilent
from pipedsl.runtime.wire import ConnectionLost, TorchWire, called, choose_device, message_tag, say, step_tag
from tests.support import compiled
from tests.support.gloo_threads import SECONDS, run_ranks
from tests.support.on_threads import results
from tests.support.worker import load

CPU = torch.device("cpu")


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_a_blocked_wait_is_ended_whatever_else_has_come(tmp_path: Path) -> None:
    """By another thread. The first message of all has the lowest tag."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    sent, ended = threading.Barrier(2), threading.Event()

    def body(wire: Any) -> None:
        if wire.rank == 1:
            works = [wire.isend(torch.ones(1), 0, tag) for tag in range(2)]
            sent.wait()
            assert ended.wait(SECONDS)
            del works
            return
        sent.wait()
        first = torch.zeros(1)
        wire.irecv(first, 1, 1).wait()  # so there is a connection; the one with tag 0 waits
        blocked = wire.irecv(torch.zeros(1), 1, message_tag(False, 1, 1, 2))
        threading.Timer(0.05, wire.wake, [1]).start()
        try:
            with pytest.raises(RuntimeError):
                blocked.wait()
        finally:
            ended.set()

    results(run_ranks(module, body))


def test_a_wait_on_a_link_is_ended_and_what_cannot_be_ended_is_left(world: dist.ProcessGroup) -> None:
    wire = TorchWire(None, CPU, 10)
    link = Mock()
    wire.links = {3: link}
    wire.irecv = Mock(side_effect=RuntimeError("no such pair"))  # type: ignore[method-assign]
    wire.wake(2)
    link.shut.assert_not_called()
    wire.wake(3)
    link.shut.assert_called_once_with()


def test_a_rank_that_is_woken_leaves_links_and_the_group(world: dist.ProcessGroup) -> None:
    """A message of a pair with a link may have taken the group. A receive that nobody sends for ends on its own."""
    wire = TorchWire(None, CPU, 10)
    links, received = {2: Mock(), 3: Mock()}, Mock()
    wire.links, wire.irecv = links, received  # type: ignore[assignment, method-assign]
    wire.wake(3)
    assert (links[2].shut.call_count, links[3].shut.call_count) == (0, 1)
    (_, peer, tag), _ = received.call_args
    assert (peer, tag) == (3, wire_module._WAKE_TAG)
    assert timedelta() < received.return_value.wait.call_args.args[0] < timedelta(seconds=1)


def test_what_a_process_group_is_woken_by_is_no_message() -> None:
    """Nor is what opens a channel, or sums gradients: tags tell them apart."""
    others = [wire_module._WAKE_TAG, wire_module.WARM_UP_TAG, wire_module.TIED_TAG, wire_module.COPIES_TAG]
    assert len(set(others)) == 4
    assert all(0 <= message_tag(True, stage, 999, 1000) < min(others) for stage in range(0, 10_000, 7))
    assert message_tag(True, 2047, 1023, 1024) + 255 == (1 << 30) - 1 < min(others)
    assert max(others) < 1 << 31  # for all transports


def test_no_two_tensors_of_a_step_s_messages_share_a_tag() -> None:
    cells = itertools.product((False, True), range(5), range(3))
    tags = {message_tag(*cell, 3) + k for cell in cells for k in range(256)}
    assert len(tags) == 2 * 5 * 3 * 256
    assert [step_tag(step, cells) for step in (1, 7) for cells in (1 << 21, 1 << 22)] == [0] * 4  # no room for steps


@pytest.mark.parametrize("apart", [True, False])
def test_of_groups_where_order_counts_all_are_ended(apart: bool, world: dist.ProcessGroup) -> None:
    wire = TorchWire(None, CPU, 10)
    groups = [Mock() for _ in range(3)]
    wire.in_order, wire._group = True, groups[0]
    wire._groups = (groups[1], groups[2]) if apart else None  # type: ignore[assignment]
    wire.irecv = Mock()  # type: ignore[method-assign]
    wire.wake(0)
    for group in groups[: 3 if apart else 1]:
        group._get_backend.return_value.abort.assert_called_once_with()
    wire.irecv.assert_not_called()


def test_a_message_takes_the_group_of_its_direction(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at both ends. All ranks make both groups with their first message, each for itself."""
    made = [Mock(name="down"), Mock(name="up")]
    make = Mock(side_effect=made)
    monkeypatch.setattr(dist, "new_group", make)
    wires = [TorchWire(None, CPU, 10) for _ in range(2)]
    for rank, wire in enumerate(wires):
        wire.rank, wire.ranks, wire._by_direction = rank, [0, 2], True
        wire._group = Mock()
    x = torch.zeros(2)
    wires[0].isend(x, 1, 5)
    assert [call.args for call in make.call_args_list] == [([0, 2],)] * 2
    assert all(call.kwargs == {"use_local_synchronization": True} for call in make.call_args_list)
    wires[1]._groups = wires[0]._groups
    wires[1].irecv(x, 0, 6)
    wires[1].isend(x, 0, 7)
    wires[0].irecv(x, 1, 8)
    assert make.call_count == 2
    taken = [[(name, args[1:]) for name, args, _ in group.method_calls] for group in made]
    assert sorted(taken) == [[("send", (0, 7)), ("recv", (1, 8))], [("send", (1, 5)), ("recv", (0, 6))]]


def test_a_message_takes_the_pipeline_s_own_group(world: dist.ProcessGroup) -> None:
    """With its tag, and as real numbers, which share the tensor's memory."""
    wire = TorchWire(None, CPU, 10)
    wire._group = Mock()
    x = torch.zeros(3, dtype=torch.complex64)
    for post, name in ((wire.isend, "send"), (wire.irecv, "recv")):
        post(x, 2, 9)
        ((sent,), peer, tag), _ = getattr(wire._group, name).call_args
        assert (peer, tag, sent.dtype, sent.data_ptr()) == (2, 9, torch.float32, x.data_ptr())


@pytest.mark.parametrize("in_order", [True, False])
def test_who_is_to_ask_while_a_communicator_is_set_up_has_a_connection_of_its_own(
    in_order: bool, world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, and only where a set-up holds the store's: it takes time to make."""
    shared = Mock(clone=Mock(side_effect=lambda: dist.HashStore()))
    found = Mock()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: shared)
    monkeypatch.setattr(wire_module, "PrefixStore", found)
    wire = TorchWire(None, CPU, 10)
    wire.in_order = in_order
    for for_thread in (True, False, True):
        wire.store("a", for_thread=for_thread)
        wire.job_store(for_thread=for_thread)
    assert shared.clone.call_count == in_order
    own = [call.args[1] is not shared for call in found.call_args_list]
    assert own == ([True, True, False, False, True, True] if in_order else [False] * 6)
    assert len({id(call.args[1]) for call in found.call_args_list}) == 1 + in_order


@pytest.mark.parametrize(
    ("backend", "device", "linkable", "in_order"),
    [("gloo", "cpu", True, False), ("gloo", "cuda", False, False), ("mpi", "cpu", False, True)],
)
def test_which_messages_may_go_through_memory(
    backend: str,
    device: str,
    linkable: bool,
    in_order: bool,
    world: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "backend_name", lambda *_: backend)
    wire = TorchWire(None, torch.device(device), 10)
    assert (wire.linkable, wire.in_order, wire.transport) == (linkable, in_order, backend)


@pytest.mark.parametrize(
    ("backend", "eager", "ranks", "apart"),
    [
        ("nccl", False, [0, 2], True),
        ("nccl", False, [2, 0], False),  # which `new_group` would put into another order
        ("nccl", True, [0, 2], False),
        ("gloo", False, [0, 2], False),
    ],
)
def test_which_groups_have_one_for_each_direction(
    backend: str,
    eager: bool,
    ranks: list[int],
    apart: bool,
    world: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "backend_name", lambda *_: backend)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: ranks)
    world.bound_device_id = torch.device("cuda", 0) if eager else None
    wire = TorchWire(None, CPU, 10)
    world.bound_device_id = None
    assert wire._by_direction == apart
    assert [called(wire, 0), called(wire, 1)] == (
        ["rank 0", "rank 1 (global rank 2)"]
        if ranks == [0, 2]
        else ["rank 0 (global rank 2)", "rank 1 (global rank 0)"]
    )


@pytest.mark.parametrize(("number", "place"), [(0, 1), (3, 0)])
def test_a_group_of_some_of_the_ranks(
    number: int, place: int, world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank counts as it does in the group; the store is held by the first of the whole job."""
    group = dist.new_group()
    assert group is not world
    monkeypatch.setattr(dist, "get_rank", lambda of=None: place if of is group else number)
    monkeypatch.setattr(dist, "get_world_size", lambda of=None: 2 if of is group else 5)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    some, every = TorchWire(group, CPU, 10), TorchWire(None, CPU, 10)
    assert [(wire.rank, wire.size, wire.strangers) for wire in (some, every)] == [(place, 2, 3), (number, 5, 0)]
    assert [wire.hosts_store for wire in (some, every)] == [number == 0] * 2


@pytest.mark.parametrize("agent", [True, False])
def test_who_holds_the_store(agent: bool, world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(agent))
    wire = TorchWire(None, CPU, 10)
    assert wire.hosts_store == (not agent)
    assert wire.store_host == ("torchrun's agent" if agent else "the process of global rank 0")


def test_groups_and_names_have_stores_of_their_own(world: dist.ProcessGroup) -> None:
    one, other = TorchWire(None, CPU, 10), TorchWire(dist.new_group(), CPU, 10)
    one.store("a").set("key", "1")
    assert one.store("a", for_thread=True).get("key") == b"1"
    assert not one.store("b").check(["key"])
    assert not other.store("a").check(["key"])
    one.job_store().set("key", "2")
    assert other.job_store().get("key") == b"2"
    assert one.store("a").get("key") == b"1"
    assert not dist.distributed_c10d._get_default_store().check(["key"])


def test_a_thread_s_questions_do_not_wait_behind_those_that_get_no_answer(world: dist.ProcessGroup) -> None:
    wire = TorchWire(None, CPU, 0.5)
    with pytest.raises(StoreSilent):
        wire.store("a").get("what nobody sets")
    assert not wire.store("a", for_thread=True).check(["what nobody sets"])
    assert not wire.job_store(for_thread=True).check(["what nobody sets"])


def test_what_a_wire_cannot_be_made_of(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dist, "get_rank", lambda *_: -1)
        with pytest.raises(RuntimeError, match="not in the process group that the Pipeline was given"):
            TorchWire(None, CPU, 10)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="before making a Pipeline"):
        TorchWire(None, CPU, 10)


CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("error", "lost"),
    [(RuntimeError(CLOSED), True), (dist.DistNetworkError("gone"), True), (RuntimeError("tensors differ"), False)],
)
def test_whose_fault_a_sum_s_is(
    error: Exception, lost: bool, world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = TorchWire(None, CPU, 10)
    monkeypatch.setattr(dist, "all_reduce", Mock(side_effect=error))
    with pytest.raises(
        ConnectionLost if lost else type(error), match=r"Connection closed|gone|tensors differ"
    ) as found:
        wire.all_reduce(torch.zeros(1))
    assert isinstance(found.value, ConnectionLost) == lost == wire.lost(error)


def test_the_sum_and_the_largest(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = TorchWire(None, CPU, 10)
    reduce = Mock()
    monkeypatch.setattr(dist, "all_reduce", reduce)
    wire.all_reduce(torch.zeros(1))
    wire.all_reduce(torch.zeros(1), largest=True)
    assert [call.args[1] for call in reduce.call_args_list] == [dist.ReduceOp.SUM, dist.ReduceOp.MAX]
    assert all(call.kwargs == {"group": wire._group} for call in reduce.call_args_list)


def test_where_messages_live(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.BatchNorm1d(3, affine=False, device="meta")
    assert choose_device([nn.Identity(), norm, nn.Linear(2, 2)], None).type == "meta"
    mixed = nn.BatchNorm1d(3, device="meta")
    mixed.running_mean = torch.zeros(3)
    assert choose_device([mixed], None).type == "meta"
    assert choose_device([nn.Identity()], None) == CPU


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("own", ["1", None])
def test_where_messages_of_nccl_live(
    own: str | None, given: bool, world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the modules hold nothing that says so: on the GPU that torchrun has for this rank, else the current one."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if own:
        monkeypatch.setenv("LOCAL_RANK", own)
    there = Mock(return_value=True)
    monkeypatch.setattr(torch.cuda, "is_available", there)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    chosen = Mock() if given else world
    backends = Mock(side_effect=lambda group, device: "nccl" if group is chosen and device.type == "cuda" else "gloo")
    monkeypatch.setattr(wire_module, "backend_name", backends)
    group = chosen if given else None
    assert choose_device([nn.Identity()], group) == torch.device("cuda", int(own or 3))
    backends.side_effect = lambda *_: "gloo"
    assert choose_device([nn.Identity()], group) == CPU
    backends.side_effect = lambda *_: "nccl"
    there.return_value = False
    assert choose_device([nn.Identity()], group) == CPU


def test_a_job_without_process_groups_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device([], None) == CPU


def test_what_carries_tensors_of_a_device(world: dist.ProcessGroup) -> None:
    assert wire_module.backend_name(world, CPU) == "gloo"
    assert wire_module.backend_name(world, torch.device("meta")) == "none"


class Unsayable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")


def test_what_an_error_says() -> None:
    assert wire_module.text_of(ValueError("x")) == "x"
    assert wire_module.text_of(Unsayable()) == "its text cannot be had, for a ZeroDivisionError"
    assert wire_module.text_of(ValueError("ab" * 10_000)) == "ab" * 2000


def test_what_is_said_is_seen_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A process may end right after."""
    say("words")
    assert capsys.readouterr() == ("", "words\n")
    stream = Mock()
    monkeypatch.setattr(sys, "stderr", stream)
    say("words")
    assert stream.mock_calls[-1] == call.flush()


def test_what_cannot_be_said_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Mock(write=Mock(side_effect=OSError("full"))))
    say("words")


def test_a_rank_that_is_given_up_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Mock(side_effect=SystemExit)
    monkeypatch.setattr(wire_module.os, "_exit", ends)
    said = Mock()
    monkeypatch.setattr(wire_module, "say", said)
    with pytest.raises(SystemExit):
        TorchWire.give_up(Mock(), "why")
    said.assert_called_once_with("why")
    ends.assert_called_once_with(1)
