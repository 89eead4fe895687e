"""Gradients that there are none of, where a rank's Python may be ahead of its messages, as on NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support import compiled
from tests.unit.test_executor import mean_square, results, train


class Detached(nn.Module):
    """Uses its input without its gradient, in its first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.left = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        y: torch.Tensor = self.inner(x.detach() if self.left >= 0 else x)
        return y


def test_zeros_stand_for_none_in_the_first_step_only(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> list[list[torch.Tensor | None]]:
        found = []
        for step in range(4):
            if step == 2:
                pipe.renew_shapes()
            pipe._modules[0].zero_grad()
            pipe.step(torch.randn(8, 4), torch.randn(8))
            found.append([q.grad for q in pipe._modules[0].parameters()])
        return found

    stages = [nn.Linear(4, 4), Detached(100)]
    first, second = results(train(compiled.SPLIT, stages, None, None, mean_square, tmp_path, p=2, m=4, body=body))
    for step in (0, 2):
        assert all(gradient is not None and not gradient.any() for gradient in first[step])
    for step in (1, 3):
        assert first[step] == [None, None]
    assert all(gradient is not None for each in second for gradient in each)


def test_one_that_appears_later_is_refused(tmp_path: Path) -> None:
    stages = [nn.Linear(4, 4), Detached(2)]
    for rank in train(compiled.SPLIT, stages, torch.randn(8, 4), torch.randn(8), mean_square, tmp_path, p=2, m=4):
        assert (
            "a gradient goes back to the stage before for this microbatch where the first microbatch had none"
            in str(rank.error)
        )
        assert "call renew_shapes() on every rank" in str(rank.error)
