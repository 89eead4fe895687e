"""What fails on one rank alone, before it comes to do something with the others: they are told, or find out why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, Released, Wire, run_ranks
from tests.support.worker import load


class Unreadable(nn.Module):
    """Its parameters cannot be had any more once it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.broken = False

    def parameters(self, recurse: bool = True) -> Any:
        if self.broken:
            raise ValueError("no parameters")
        return super().parameters(recurse)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def step(pipe: Any, **options: Any) -> None:
    pipe.step(torch.ones(4, 2), torch.ones(4, 2), **options)


class Nameless:
    def __str__(self) -> str:
        raise ValueError("no name")


# What all ranks do, given whether they are the one that does it wrong; and what they say.
WAYS: dict[str, tuple[Callable[[Any, Unreadable, bool], Any], str]] = {
    "clipping": (
        lambda pipe, stage, wrong: pipe.clip_grad_norm_(1.0),
        "at clipping the gradients: ValueError: no parameters",
    ),
    "scaler": (
        lambda pipe, stage, wrong: pipe.unscale_(
            None if wrong else torch.amp.GradScaler("cpu"), torch.optim.SGD(stage.inner.parameters())
        ),
        "at unscaling the gradients: AttributeError: ",
    ),
    "train": (
        lambda pipe, stage, wrong: step(pipe, train=np.ones(2) if wrong else True),
        "at beginning a step: TypeError: train must be True or False, not a ndarray",
    ),
    "seed": (
        lambda pipe, stage, wrong: step(pipe, seed=Nameless() if wrong else None),
        "at beginning a step: TypeError: seed must be an int, not a Nameless",
    ),
    "first step": (lambda pipe, stage, _: step(pipe), ": ValueError: no parameters"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(compiled.compile_to(tmp_path_factory.mktemp("alone") / "x.py", compiled.SPLIT, p=2, m=2))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_on_one_rank_ends_both(way: str, victim: int, module: Any) -> None:
    act, says = WAYS[way]

    def body(wire: Any) -> None:
        stage, wrong = Unreadable(), wire.rank == victim
        pipe = module.Pipeline(stage, functional.mse_loss, process_group=wire, timeout=3600)
        if way != "first step":
            step(pipe)
        stage.broken = wrong and way in ("clipping", "first step")
        act(pipe, stage, wrong)

    for rank in run_ranks(Fabric(2, LAZY), body):
        assert isinstance(rank.error, module.PipelineError), rank
        assert f"rank {victim} failed at " in str(rank.error)
        assert says in str(rank.error)


@pytest.mark.parametrize("what", ["state_dict", "load_state_dict"])
def test_who_waits_for_a_rank_that_has_left_knows_why(what: str, module: Any) -> None:
    """It may have gone on, so that alone ends nobody."""

    left = threading.Event()

    def body(wire: Any) -> None:
        pipe = module.Pipeline(nn.Linear(2, 2), functional.mse_loss, process_group=wire, timeout=3600)
        if wire.rank == 1:
            whole = nn.Linear(3, 3)  # which the stage was not cut from
            try:
                pipe.state_dict(whole) if what == "state_dict" else pipe.load_state_dict(whole, {})
            finally:
                left.set()
        assert left.wait(50)
        pipe._watch._timeout = 0.1
        step(pipe)

    first, second = run_ranks(Fabric(2, LAZY), body)
    doing = "gathering the state to save" if what == "state_dict" else "taking over a saved state"
    assert not isinstance(second.error, module.PipelineError)
    assert isinstance(first.error, module.PipelineError), first
    assert "no answer from rank 1" in str(first.error)
    assert f"\n  before that rank 1 failed at {doing}: {type(second.error).__name__}: " in str(first.error)


@pytest.mark.parametrize(("p", "says"), [(2, "rank 1 does not answer"), (3, "rank 1, rank 2 do not answer")])
def test_who_does_not_answer_where_all_meet_is_named_at_once(p: int, says: str, tmp_path: Path) -> None:
    """A connection is lost there to any of them, and the transport does not say to whom."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.SPLIT, p=p, m=2))

    class Loses(Wire):
        def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> None:
            raise Released("the other end is gone")

    def body(wire: Any) -> None:
        pipe = module.Pipeline(nn.Linear(2, 2), functional.mse_loss, process_group=wire, timeout=3600)
        step(pipe)
        if wire.rank == 0:
            pipe.clip_grad_norm_(1.0)

    fabric = Fabric(p, LAZY)
    fabric.wire = partial(Loses, fabric)  # type: ignore[method-assign]
    first, *others = run_ranks(fabric, body)
    assert [each.error for each in others] == [None] * (p - 1)
    head = (
        f"rank 0 lost its connection to another rank at clipping the gradients: Released: the other end is gone; {says}"
    )
    assert str(first.error).splitlines()[0].endswith(head)


def test_who_is_stopped_where_all_meet_is_named_at_once(module: Any) -> None:
    """It waits for the whole of them there, so nothing leads to anybody."""
    over = threading.Event()

    def body(wire: Any) -> None:
        pipe = module.Pipeline(nn.Linear(2, 2), functional.mse_loss, process_group=wire, timeout=3600)
        step(pipe)
        if wire.rank == 1:
            over.wait(50)
            return
        pipe._watch._timeout = 0.1
        try:
            pipe.clip_grad_norm_(1.0)
        finally:
            over.set()

    first, second = run_ranks(Fabric(2, LAZY), body)
    assert second.error is None
    head = "nothing happened for 0.1 s: rank 0 stood at clipping the gradients; rank 1 does not answer"
    assert str(first.error).splitlines()[0].endswith(head)


def test_who_is_named_already_is_not_named_twice(module: Any) -> None:
    class Loses(Wire):
        def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
            if second_step:
                raise Released("the other end is gone")
            return super().isend(tensor, peer, tag)

    second_step: list[bool] = []

    def body(wire: Any) -> None:
        pipe = module.Pipeline(nn.Linear(2, 2), functional.mse_loss, process_group=wire, timeout=3600)
        step(pipe)
        if wire.rank == 0:
            second_step.append(True)
            step(pipe)

    fabric = Fabric(2, LAZY)
    fabric.wire = partial(Loses, fabric)  # type: ignore[method-assign]
    first, second = run_ranks(fabric, body)
    assert second.error is None
    head, *rest = str(first.error).splitlines()
    assert "rank 0 lost its connection to rank 1 at isend " in head
    assert head.endswith(": Released: the other end is gone")
    assert any("no answer from rank 1" in line for line in rest)
