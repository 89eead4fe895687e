"""Errors that are hard to pass on are one PipelineError on every rank all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, run_ranks
from tests.support.worker import load


class Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


ERRORS: dict[str, tuple[Callable[[], Exception], str]] = {
    "the end of an iterator": (lambda: StopIteration(3), "StopIteration: 3"),
    "one without a text": (Mute, "Mute: its text cannot be had, for a ValueError"),
    "one that says too much": (lambda: ValueError("x" * 20_000_000), "ValueError: xxx"),
    "one that begins with nothing": (lambda: ValueError("\n \n\nwords\nmore"), "ValueError: words"),
    "one that has begun to say too much": (lambda: ValueError("short\n" + "x" * 20_000_000), "ValueError: short"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", ["F of stage 1", "F of stage 0"])
def test_it_reaches_every_rank(kind: str, place: str, tmp_path: Path) -> None:
    """Out of a stage that is not the first, or is; the loss is computed with the last stage's forward."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    make, says = ERRORS[kind]

    class Raises(nn.Module):
        def __init__(self, raises: bool) -> None:
            super().__init__()
            self.inner, self.raises, self.calls = nn.Linear(2, 2), raises, 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            if self.raises and self.calls == 3:
                raise make()
            return self.inner(x)

    def body(wire: Any) -> None:
        stage = Raises(place == f"F of stage {wire.rank}")
        pipe = module.Pipeline(stage, functional.mse_loss, process_group=wire, timeout=20)
        for _ in range(2):
            pipe.step(torch.ones(4, 2), torch.ones(4, 2))

    for rank in run_ranks(Fabric(2, LAZY), body):
        assert isinstance(rank.error, module.PipelineError), rank
        assert f"rank {place[-1]} failed at {place}, microbatch 0 (test.sched:" in str(rank.error)
        assert f": {says}" in str(rank.error)
        assert len(str(rank.error)) < 10_000


def test_it_reaches_every_rank_out_of_a_loss(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    weights = iter([1.0])

    def body(wire: Any) -> None:
        loss_fn = lambda y, target: next(weights) * functional.mse_loss(y, target)  # noqa: E731
        pipe = module.Pipeline(nn.Linear(2, 2), loss_fn, process_group=wire, timeout=20)
        pipe.step(torch.ones(4, 2), torch.ones(4, 2))

    for rank in run_ranks(Fabric(2, LAZY), body):
        assert isinstance(rank.error, module.PipelineError), rank
        assert "rank 1 failed at F of stage 1, microbatch 1 (test.sched:" in str(rank.error)
        assert ": StopIteration\n" in str(rank.error)
