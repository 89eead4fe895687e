"""Train on two machines. Arguments: a generated file, the steps, the timeout in seconds, a file that ends the waiting.

Prints `STEP n` after every step and, for one that fails, `FAILED` and the message. The last stage waits in the middle
of its second step until the file is there, so that others can do something to the network meanwhile.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

from tests.support.worker import load, mlp, start


class Waiting(nn.Module):
    def __init__(self, inner: nn.Module, m: int, go_on: Path) -> None:
        super().__init__()
        self.inner = inner
        self.left = m + 2
        self.go_on = go_on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            print("WAITING", flush=True)
            while not self.go_on.exists():
                time.sleep(0.05)
        return self.inner(x)


def main() -> None:
    path, steps, timeout, go_on = sys.argv[1:]
    rank = start()
    compiled = load(path)
    m = compiled.PARAMS["m"]
    stage: nn.Module = mlp(compiled.STAGES)[rank]
    if rank == compiled.PLACEMENT[-1]:
        stage = Waiting(stage, m, Path(go_on))
    pipe = compiled.Pipeline(stage, nn.functional.cross_entropy, timeout=float(timeout))
    try:
        for step in range(int(steps)):
            pipe.step(torch.randint(11, (2 * m,)), torch.randint(5, (2 * m,)))
            print(f"STEP {step}", flush=True)
    except compiled.PipelineError as error:
        print(f"FAILED rank {rank}\n{error}\nEND", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
