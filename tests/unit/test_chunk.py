"""A stage's module by itself: how often it runs, and what is left of it and in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipedsl.runtime.chunk import Arrived, Chunk
from tests.support.splitting import gradient_for

X = torch.linspace(-1, 1, 512 * 512).view(512, 512)  # large enough for its product to wait


def arrived(x: torch.Tensor, needs: bool = True) -> Arrived:
    return Arrived(("tensor",), [x.clone()], [needs], len(x))


class WritesLater(nn.Module):
    """Draws, and writes to its input in all forwards but the first. Counts how often it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun += 1
        drawn = torch.rand(x.shape)
        x = x.mul_(2) if self.ended else x * 2
        self.ended += 1
        return x * drawn


@pytest.mark.parametrize("once", [True, False])
def test_a_forward_that_draws_what_it_is_to_draw_runs_once(once: bool) -> None:
    """Others, which write to their input where the first one did not, run a second time."""
    stage = WritesLater()
    chunk = Chunk(stage)
    chunk.begin()
    chunk.once = once
    for microbatch in range(3):
        torch.manual_seed(microbatch)
        y = chunk.forward(microbatch, arrived(torch.ones(4)), {})
        chunk.keep(microbatch, [y])
        torch.manual_seed(microbatch)
        drawn = [torch.rand(4) for _ in range(2)]
        again = microbatch == 1 and not once
        assert torch.equal(y, 2 * drawn[again])
        (gradient,) = chunk.backward(microbatch, [torch.ones(4)])
        assert gradient is not None
        assert torch.equal(gradient, 2 * drawn[again])
    assert (stage.begun, stage.ended) == (3 if once else 4, 3)


class Looks(nn.Module):
    """Notes whether its module runs as something else than what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(512, 512)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append("forward" in vars(self.inner))
        y: torch.Tensor = self.inner(x)
        return y


def test_evaluation_leaves_modules_as_they_are() -> None:
    """And so do microbatches whose backward is not split."""
    stage = Looks()
    chunk = Chunk(stage, [0])
    chunk.begin(train=False)
    with torch.no_grad():
        for microbatch in range(2):
            chunk.forward(microbatch, arrived(X, needs=False), {})
            chunk.forget(microbatch)
    chunk.begin()
    for microbatch in range(2):
        chunk.forward(microbatch, arrived(X), {})
    assert stage.seen == [False, False, True, False]


def test_a_step_leaves_nothing_behind() -> None:
    """What it has kept between its calls is freed by them, not by the next step."""
    chunk = Chunk(nn.Linear(512, 512), [0])
    for train in (True, False):
        chunk.begin(train)
        with torch.set_grad_enabled(train):
            for microbatch in range(2):
                y = chunk.forward(microbatch, arrived(X, needs=train), {})
                if train:
                    chunk.keep(microbatch, [y])
                else:
                    chunk.forget(microbatch)
        if train:
            chunk.backward_input(0, [gradient_for(y)])
            assert chunk._products
            chunk.backward(1, [gradient_for(y)])
            chunk.backward_weight(0)
        assert (chunk._kept, chunk._products) == ({}, {})
