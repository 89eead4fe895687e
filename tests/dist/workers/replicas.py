"""Two pipelines of two stages, which DistributedDataParallel joins; one rank fails. Argument: a generated file."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.support.worker import PATIENCE, load, mlp, start

VICTIM = 1


class Faulty(nn.Module):
    """Raises when it is told to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.raises = False

    def forward(self, x: torch.Tensor) -> Any:
        if self.raises:
            raise ValueError("a fault made on purpose")
        return self.inner(x)


def main() -> None:
    rank = start()
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    compiled = load(sys.argv[1])
    stage = Faulty(mlp(2)[rank % 2])
    wrapped = DistributedDataParallel(stage, process_group=replicas[rank % 2])
    pipe = compiled.Pipeline(wrapped, functional.cross_entropy, process_group=pipelines[rank // 2], timeout=PATIENCE)
    try:
        for step in range(2):
            stage.raises = rank == VICTIM and step == 1
            pipe.step(torch.randint(11, (8,)), torch.randint(5, (8,)))
    except compiled.PipelineError as error:
        print(f"CASE {error}", flush=True)


if __name__ == "__main__":
    main()
