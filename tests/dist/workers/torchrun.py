"""Train under torchrun until a rank fails. Arguments: a generated file, `kill` or `raise`, the rank it befalls."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

from tests.support.worker import load, mlp, start


class Faulty(nn.Module):
    """Fails in the second step."""

    def __init__(self, inner: nn.Module, fault: str, m: int) -> None:
        super().__init__()
        self.inner = inner
        self.fault = fault
        self.left = m + 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a fault made on purpose")
        return self.inner(x)


def main() -> None:
    path, fault, victim = sys.argv[1:]
    rank = start()
    compiled = load(path)
    m = compiled.PARAMS["m"]
    stage = mlp(compiled.STAGES)[rank]
    pipe = compiled.Pipeline(
        Faulty(stage, fault, m) if rank == int(victim) else stage, nn.functional.cross_entropy, timeout=60
    )
    for _ in range(3):
        pipe.step(torch.randint(11, (2 * m,)), torch.randint(5, (2 * m,)))


if __name__ == "__main__":
    main()
