"""An error in any kind of computation, first or last, on any rank, is named by every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.support import compiled
from tests.support.nccl_like import Fabric, run_ranks
from tests.support.worker import load, mlp

RANKS, M = 3, 4
KINDS = ("F", "I", "W")


@pytest.mark.parametrize("microbatch", [0, M - 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", range(RANKS))
def test_an_error_anywhere_reaches_every_rank(kind: str, victim: int, microbatch: int, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.SPLIT, p=RANKS, m=M))
    stages = mlp(RANKS)

    def broken() -> None:
        raise ValueError("a fault made on purpose")

    def body(wire: Any) -> None:
        pipe = module.Pipeline(stages[wire.rank], functional.cross_entropy, process_group=wire, timeout=30)
        batch, targets = torch.randint(11, (2 * M,)), torch.randint(5, (2 * M,))
        pipe.step(batch, targets)
        if wire.rank == victim:
            program = pipe._loop._programs[True]
            for index, (call, _) in enumerate(program):
                if (call.kind, call.microbatch) == (kind, microbatch):
                    program[index] = call, broken
        for _ in range(2):  # who needs nothing more of the victim's ends the first of them
            pipe.step(batch, targets)

    said = f"rank {victim} failed at {kind} of stage {victim}, microbatch {microbatch} (test.sched:4): "
    for rank in run_ranks(Fabric(RANKS), body):
        assert isinstance(rank.error, module.PipelineError), rank
        assert said + "ValueError: a fault made on purpose" in str(rank.error)
