"""What goes wrong while a pipeline is made, on threads: every rank is told, and at once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipedsl.runtime import options as options_module
from pipedsl.runtime.options import understand
from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, Wire, run_ranks
from tests.support.worker import load

LONG = 3600.0  # seconds: longer than the test may take


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.compile_to(tmp_path_factory.mktemp("making") / "x.py", compiled.ONE_F_ONE_B, p=2, m=2)


@pytest.fixture
def module(path: Path) -> Any:
    return load(path)


@pytest.mark.parametrize("timeout", [math.inf, -math.inf, math.nan, 0, -1.0, 1e300, 10**400, None, "5", timedelta(5)])
def test_a_timeout_that_cannot_be_is_refused_on_every_rank(timeout: Any, module: Any) -> None:
    def make(wire: Any) -> None:
        module.Pipeline(nn.Identity(), process_group=wire, timeout=timeout if wire.rank else LONG)

    for rank in run_ranks(Fabric(2, LAZY), make):
        assert isinstance(rank.error, module.PipelineError), rank
        assert "rank 1: timeout must be a number of seconds, more than 0 and at most " in str(rank.error)
        assert f", not {timeout!r:.40}" in str(rank.error)


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:0", 0), (torch.device("cuda:3"), 2)])
def test_a_device_that_is_not_there_is_refused_on_every_rank(
    device: Any, count: int, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    found = "no CUDA device here" if not count else "2 CUDA devices here, from 0 on"

    def make(wire: Any) -> None:
        module.Pipeline(nn.Identity(), process_group=wire, timeout=LONG, device=device if wire.rank else None)

    for rank in run_ranks(Fabric(2, LAZY), make):
        assert isinstance(rank.error, module.PipelineError), rank
        assert f"rank 1: the device is to be {device}, but torch finds {found}" in str(rank.error)


def test_cuda_alone_is_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert understand(nn.Identity(), 1.0, "cuda", None, None).device == torch.device("cuda", 1)
    assert understand(nn.Identity(), 1.0, "cuda:0", None, None).device == torch.device("cuda", 0)


def test_devices_by_number_and_those_that_nobody_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    first = understand(nn.Identity(), 1.0, 0, None, None)  # which torch makes nothing of where it finds no GPU
    assert first.device == torch.device("cuda", 0) or isinstance(first.error, RuntimeError)
    assert understand(nn.Identity(), 1.0, "cpu", None, None).device == torch.device("cpu")
    last, beyond = (understand(nn.Identity(), 1.0, f"cuda:{index}", None, None) for index in (1, 2))
    assert (last.device, last.problem) == (torch.device("cuda", 1), "")
    assert (beyond.device, beyond.problem) == (
        torch.device("cpu"),
        "the device is to be cuda:2, but torch finds 2 CUDA devices here, from 0 on",
    )
    chosen, group, stage = Mock(return_value=torch.device("meta")), Mock(), nn.Identity()
    monkeypatch.setattr(options_module, "choose_device", chosen)
    assert understand(stage, 1.0, None, None, group).device == torch.device("meta")
    chosen.assert_called_once_with([stage], group)


def test_the_device_is_the_current_one_from_then_on(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is made without a device is to be there."""
    made_current = Mock(side_effect=OSError("a fault made on purpose"))  # for lack of a real one nothing could follow
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", made_current)

    def make(wire: Any) -> None:
        module.Pipeline(nn.Identity(), process_group=wire, timeout=LONG, device=f"cuda:{wire.rank}")

    for rank in run_ranks(Fabric(2, LAZY), make):
        assert "OSError: a fault made on purpose" in str(rank.error)
    assert made_current.call_args.args[0].type == "cuda"


def test_ranks_on_devices_of_two_kinds_are_refused(module: Any) -> None:
    def make(wire: Any) -> None:
        stage = nn.Linear(2, 2, device="meta" if wire.rank else "cpu")
        module.Pipeline(stage, process_group=wire, timeout=LONG)

    says = ("rank 1 works on meta, rank 0 on cpu", "rank 0 works on cpu, rank 1 on meta")  # as who is first has it
    for rank in run_ranks(Fabric(2, LAZY), make):
        assert str(rank.error).endswith(tuple(f" cannot start: {each}" for each in says))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("place", ["Tied.publish", "Neighbourhood.connect", "Copies.learn", "Executor._prepare"])
def test_an_error_of_one_rank_is_told_to_the_others(
    place: str, victim: int, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the ranks have met, while they connect, and when others may be in their first step."""
    owner, name = place.split(".")
    real = getattr(getattr(module, owner), name)
    threads: dict[int, int] = {}  # to their ranks
    told = threading.Event()

    def broken(*given: Any) -> Any:
        if threads[threading.get_ident()] == victim:
            raise OSError("a fault made on purpose")
        return real(*given)

    monkeypatch.setattr(getattr(module, owner), name, broken)

    def work(wire: Any) -> None:
        threads[threading.get_ident()] = wire.rank
        try:
            pipe = module.Pipeline(nn.Linear(2, 2), nn.functional.mse_loss, process_group=wire, timeout=LONG)
            pipe.step(torch.ones(4, 2), torch.ones(4, 2))
        finally:
            if wire.rank == victim:  # whose process lives on
                told.wait(40)
            else:
                told.set()

    ranks = run_ranks(Fabric(2, LAZY), work)
    assert not any(rank.hung for rank in ranks)
    assert isinstance(getattr(ranks[victim].error, "__cause__", None), OSError)
    for rank in ranks:
        assert isinstance(rank.error, module.PipelineError)
        assert f"rank {victim} failed at making the pipeline: OSError: a fault made on purpose" in str(rank.error)


class Unreadable(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def parameters(self, recurse: bool = True) -> Any:
        raise self.error


def no_modules() -> Iterator[nn.Module]:
    yield nn.Identity()
    raise ValueError("there are no more modules")


SLIPS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "device": (lambda: {"device": "nonsense"}, "RuntimeError: Expected one of cpu, "),
    "folder": (lambda: {"post_mortem": 5}, "TypeError: post_mortem must be a folder's path, not a int"),
    "parameters": (lambda: {"stage_modules": Unreadable(ValueError("no parameters"))}, "ValueError: no parameters"),
    "modules": (lambda: {"stage_modules": no_modules()}, "ValueError: there are no more modules"),
    "ties": (lambda: {"tied": 5}, "TypeError: 'int' object is not iterable"),
    "timeout": (lambda: {"timeout": Infinite()}, "ValueError: this number cannot be compared"),
    "interrupt": (lambda: {"stage_modules": Unreadable(KeyboardInterrupt())}, "KeyboardInterrupt"),
}


class Infinite(Fraction):
    def __gt__(self, other: Any) -> bool:
        raise ValueError("this number cannot be compared")


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("slip", SLIPS)
def test_what_fails_before_ranks_meet_is_told_to_the_others(slip: str, victim: int, module: Any) -> None:
    wrong, says = SLIPS[slip]

    def make(wire: Any) -> None:
        given = {"stage_modules": nn.Identity(), "process_group": wire, "timeout": LONG}
        module.Pipeline(**{**given, **(wrong() if wire.rank == victim else {})})

    ranks = run_ranks(Fabric(2, LAZY), make)
    for number, rank in enumerate(ranks):
        if (slip, number) == ("interrupt", victim):
            assert isinstance(rank.error, KeyboardInterrupt)  # stays what it is where it came from
            continue
        assert isinstance(rank.error, module.PipelineError), rank
        assert f" cannot start: rank {victim} failed at making the pipeline: {says}" in str(rank.error)


def test_ranks_that_wait_for_one_say_so_and_it_is_told(module: Any) -> None:
    """Also where it comes when nobody waits any longer."""
    over = threading.Event()

    def make(wire: Any) -> None:
        if wire.rank:
            assert over.wait(50)
        try:
            module.Pipeline(nn.Identity(), process_group=wire, timeout=LONG if wire.rank else 0.1)
        finally:
            over.set()

    for rank in run_ranks(Fabric(2, LAZY), make):
        assert isinstance(rank.error, module.PipelineError), rank
        assert " cannot start: rank 1 did not make its Pipeline within 0.1 s" in str(rank.error)


def test_a_store_that_is_lost_while_others_are_waited_for_is_named(module: Any) -> None:
    """As its host has waited for them as long, and ended."""

    class Ends:
        def __init__(self, store: Any) -> None:
            self.store = store

        def __getattr__(self, name: str) -> Any:
            return self.gone if waited else getattr(self.store, name)

        def check(self, keys: list[str]) -> bool:
            waited.extend(key for key in keys if key == "ready/1")
            return bool(self.gone() if waited else self.store.check(keys))

        def gone(self, *_: Any) -> None:
            raise dist.DistNetworkError("failed to recv, got 0 bytes")

    class Lost(Wire):
        def store(self, name: str, *, for_thread: bool = False) -> Any:
            return Ends(super().store(name, for_thread=for_thread))

    waited: list[str] = []
    with pytest.raises(module.PipelineError) as found:
        module.Pipeline(nn.Identity(), process_group=Lost(Fabric(2, LAZY), 0), timeout=30)
    gone = "the test, which holds the ranks' store, has ended (the connection to it is closed); "
    assert f"{gone}rank 0 stood at making the pipeline" in str(found.value)


@pytest.mark.parametrize("group", [5, "world", object()])
def test_what_is_no_process_group_is_refused(group: Any, module: Any) -> None:
    with pytest.raises(TypeError, match=r"process_group must be a torch\.distributed\.ProcessGroup, not a "):
        module.Pipeline(nn.Identity(), process_group=group)
    with pytest.raises(RuntimeError, match="this process is not in the process group that the Pipeline was given"):
        module.Pipeline(nn.Identity(), process_group=dist.GroupMember.NON_GROUP_MEMBER)


def test_a_rank_that_comes_when_the_store_is_gone_is_told_so(module: Any) -> None:
    """As the others have waited for it, and ended."""

    class Late(Wire):
        def store(self, name: str, *, for_thread: bool = False) -> Any:
            raise dist.DistNetworkError("failed to connect")

    with pytest.raises(module.PipelineError, match=r"store, has ended \(the connection to it is closed\): failed to"):
        module.Pipeline(nn.Identity(), process_group=Late(Fabric(2, LAZY), 0))
