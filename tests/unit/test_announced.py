"""Where a rank's Python may be ahead of what arrives, as on NCCL: which gradients there are is said, and said anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import compiled
from tests.support.worker import alone, difference
from tests.unit.test_executor import mean_square, results, train

M = 4


class Detached(nn.Module):
    """Uses its input without its gradient, in these of its calls."""

    def __init__(self, calls: Sequence[int]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.at = frozenset(calls)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x.detach() if self.calls in self.at else x)
        self.calls += 1
        return y


@pytest.mark.parametrize("before", [False, True], ids=["there before", "none before"])
def test_shapes_that_are_renewed_tell_anew_which_gradients_there_are(before: bool, tmp_path: Path) -> None:
    """In the second step after it, as in the second of all: two steps of one kind, then two of the other."""

    def body(pipe: Any, rank: int) -> list[bool]:
        found = []
        for step in range(4):
            if step == 2:
                pipe.renew_shapes()
            pipe._modules[0].zero_grad()
            pipe.step(torch.randn(8, 4), torch.randn(8))
            gradients = [q.grad for q in pipe._modules[0].parameters()]
            # Zeros stand for none in the first step of a kind alone.
            found.append(any(g is not None and (step % 2 == 1 or bool(g.any())) for g in gradients))
        return found

    stages = [nn.Linear(4, 4), Detached(range(2 * M) if before else range(2 * M, 4 * M))]
    first, second = results(train(compiled.SPLIT, stages, None, None, mean_square, tmp_path, p=2, m=M, body=body))
    assert first == ([False, False, True, True] if before else [True, True, False, False])
    assert second == [True] * 4


def test_one_that_is_missing_later_counts_as_zeros(tmp_path: Path) -> None:
    stages = [nn.Linear(4, 4), Detached([2, 5])]
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)

    def body(pipe: Any, rank: int) -> list[torch.Tensor | None]:
        for _ in range(2):
            pipe.step(batch, targets)
        return [q.grad for q in pipe._modules[0].parameters()]

    ranks = results(train(compiled.SPLIT, stages, None, None, mean_square, tmp_path, p=2, m=M, body=body))
    for _ in range(2):
        alone(reference, mean_square, list(batch.chunk(M)), list(targets.chunk(M)))
    for stage, found in zip(reference, ranks, strict=True):
        for q, gradient in zip(stage.parameters(), found, strict=True):
            assert difference(gradient, q.grad) <= 1e-5
