"""Weights that are made when they are asked for, as by parametrizations: I and W ask no more than one process does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Arrived, Chunk
from tests.support.splitting import two_steps


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


class Counted(nn.Module):
    """A parametrization that notes how often it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.runs: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return 2 * x


def counted(module: nn.Module, name: str = "weight") -> nn.Module:
    return parametrize.register_parametrization(module, name, Counted())


class LaterCounted(nn.Module):
    """Its module gets a parametrization in the first forward, after the step has begun."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not parametrize.is_parametrized(self.inner):
            counted(self.inner)
        y: torch.Tensor = self.inner(x)
        return y


class Asked(nn.Linear):
    """Has no weight registered under that name: makes it whenever it is asked for."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.raw = nn.Parameter(self.weight.detach())
        del self.weight
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.runs: torch.Tensor

    def __getattr__(self, name: str) -> Any:
        if name != "weight" or "raw" not in self._parameters:
            return super().__getattr__(name)
        self.runs += 1
        return 2 * self.raw


WORDS = torch.tensor([[1, 2, 2], [6, 0, 1]])
MADE: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: counted(nn.Linear(4, 4)), torch.randn(5, 4)),
    "bias": (lambda: counted(nn.Linear(4, 4), "bias"), torch.randn(5, 4)),
    "embedding": (lambda: counted(nn.Embedding(7, 3)), WORDS),
    "convolution": (lambda: counted(nn.Conv1d(2, 2, 3)), torch.randn(2, 2, 9)),
    "from the first forward on": (lambda: LaterCounted(nn.Conv1d(2, 2, 3)), torch.randn(2, 2, 9)),
    "an embedding from the first forward on": (lambda: LaterCounted(nn.Embedding(7, 3)), WORDS),
    "when asked for": (Asked, torch.randn(5, 4)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), torch.randn(5, 4)),
    "spectral norm of old": (lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), torch.randn(5, 4)),
    "weight norm of old": (lambda: nn.utils.weight_norm(nn.Linear(4, 4)), torch.randn(5, 4)),
    "pruned": (lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=3), torch.randn(5, 4)),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", MADE)
def test_what_makes_a_weight_runs_as_often_as_in_one_process(kind: str) -> None:
    ours, theirs = two_steps(*MADE[kind])
    for (name, own), expected in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert torch.equal(own, expected), name


def test_a_step_without_training_looks_for_nothing() -> None:
    """As its gradients are none, and inference mode keeps no record of them."""
    torch.manual_seed(3)
    linear = nn.Linear(4, 4)
    chunk = Chunk(linear, [0])
    x = torch.randn(5, 4)
    arrived = Arrived(("tensor",), [x], [False], len(x))
    with torch.inference_mode():
        chunk.begin(train=False)
        y = chunk.forward(0, arrived, {})
    chunk.forget(0)
    assert torch.equal(y, linear(x))
    chunk.begin()
    y = chunk.forward(0, arrived, {})
    chunk.keep(0, [y])
    chunk.backward_input(0, [torch.ones(5, 4)])
    assert linear.weight.grad is None
    chunk.backward_weight(0)
    torch.testing.assert_close(linear.weight.grad, torch.ones(4, 5) @ x)
