"""What fails on one rank alone, before it comes to do something with the others: they are told, or find out why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, run_ranks
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
