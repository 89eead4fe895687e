"""Two ranks that share memory, of which the second is killed in a step. Arguments: a generated file.

Each says the names of its sockets, and the second one which process it has forked, which lives on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from tests.support.worker import PATIENCE, load, mlp, start


class Killed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x


def socket_names() -> list[str]:
    """Of this process's Unix sockets, those that have one."""
    own = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [row.split() for row in Path("/proc/self/net/unix").read_text().splitlines()[1:]]
    return [row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in own]


def main() -> None:
    rank = start()
    compiled = load(sys.argv[1])
    stages = mlp(compiled.STAGES)
    pipe = compiled.Pipeline(stages[rank], nn.functional.cross_entropy, timeout=PATIENCE)
    batch, targets = torch.arange(8), torch.arange(8) % 5
    pipe.step(batch, targets)
    print("LINKED", *pipe._wire.links, flush=True)
    print("NAMES", *socket_names(), flush=True)
    if rank == 1:
        if (child := os.fork()) == 0:
            time.sleep(600)
            os._exit(0)
        print("CHILD", child, flush=True)
        pipe._modules[0].append(Killed())
    try:
        pipe.step(batch, targets)
    except compiled.PipelineError as error:
        print(error)


if __name__ == "__main__":
    main()
