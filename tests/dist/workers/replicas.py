"""Two pipelines of two stages, which DistributedDataParallel joins; one rank fails in the second step.

Arguments: a generated file, what happens (`raise`, `kill`, `kill in the sum`), and to whom.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.support.worker import PATIENCE, load, mlp, start


class Faulty(nn.Module):
    """Fails when it is told to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.fault = ""

    def forward(self, x: torch.Tensor) -> Any:
        if self.fault == "raise":
            raise ValueError("a fault made on purpose")
        if self.fault == "kill":
            die()
        return self.inner(x)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    path, fault, victim = sys.argv[1:]
    rank = start()
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    compiled = load(path)
    stage = Faulty(mlp(2)[rank % 2])
    wrapped = DistributedDataParallel(stage, process_group=replicas[rank % 2])
    pipe = compiled.Pipeline(wrapped, functional.cross_entropy, process_group=pipelines[rank // 2], timeout=PATIENCE)
    try:
        for step in range(3):  # in the last of which those wait that have seen nothing
            if rank == int(victim) and step == 1:
                stage.fault = fault
                if fault == "kill in the sum":
                    compiled.reduce_gradients.__globals__["reduce_gradients"] = die
            pipe.step(torch.randint(11, (8,)), torch.randint(5, (8,)))
    except compiled.PipelineError as error:
        print(f"CASE {error}", flush=True)


if __name__ == "__main__":
    main()
