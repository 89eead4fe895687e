"""The process group as the executor uses it: what it is, how a blocked wait ends, what its stores are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipedsl.runtime import wire as wire_module
from pipedsl.runtime.patience import StoreSilent
from pipedsl.runtime.wire import ConnectionLost, TorchWire, called, choose_device, message_tag, say
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


def test_of_groups_where_order_counts_all_are_ended(world: dist.ProcessGroup) -> None:
    wire = TorchWire(None, CPU, 10)
    groups = [Mock() for _ in range(3)]
    wire.in_order, wire._group, wire._groups = True, groups[0], (groups[1], groups[2])  # type: ignore[assignment]
    wire.wake(0)
    for group in groups:
        group._get_backend.return_value.abort.assert_called_once_with()


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


def test_a_thread_s_questions_do_not_wait_behind_those_that_get_no_answer(world: dist.ProcessGroup) -> None:
    wire = TorchWire(None, CPU, 0.5)
    with pytest.raises(StoreSilent):
        wire.store("a").get("what nobody sets")
    assert not wire.store("a", for_thread=True).check(["what nobody sets"])


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


def test_where_messages_live(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.BatchNorm1d(3, affine=False, device="meta")
    assert choose_device([nn.Identity(), norm, nn.Linear(2, 2)], None).type == "meta"
    mixed = nn.BatchNorm1d(3, device="meta")
    mixed.running_mean = torch.zeros(3)
    assert choose_device([mixed], None).type == "meta"
    assert choose_device([nn.Identity()], None) == CPU


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
