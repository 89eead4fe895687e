"""Train with a process group for each direction, as over NCCL; on gloo, which has no need of it but carries it.

Arguments: the generated files. On two GPUs, with `nccl` as the first argument: really over NCCL.
"""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional

from tests.support.worker import PATIENCE, alone, difference, gradients, load, mlp, start


def main() -> None:
    files = sys.argv[1:]
    on_gpu = files[0] == "nccl"
    device = torch.device("cpu")
    if on_gpu:
        files.pop(0)
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
        rank = dist.get_rank()
    else:
        rank = start()
    for file in files:
        compiled = load(file)
        if not on_gpu:
            compiled.backend_name = lambda *_: "nccl"
        m = compiled.PLAN.microbatches
        torch.manual_seed(7)
        stages = [stage.to(device) for stage in mlp(compiled.STAGES)]
        reference = copy.deepcopy(stages)
        mine = compiled.stages_of(rank)
        pipe = compiled.Pipeline([stages[s] for s in mine], functional.cross_entropy, timeout=PATIENCE)
        assert pipe._wire.transport == "nccl-lazy-warm"
        for _ in range(2):
            batch, targets = torch.randint(11, (2 * m,)).to(device), torch.randint(5, (2 * m,)).to(device)
            pipe.step(batch, targets)
            alone(reference, functional.cross_entropy, batch.chunk(m), targets.chunk(m))
        up, down = pipe._wire._groups
        assert len({id(up), id(down), id(dist.group.WORLD)}) == 3
        for s in mine:
            expected = gradients(reference[s])
            for name, gradient in gradients(stages[s]).items():
                assert difference(gradient, expected[name]) <= 1e-5, (file, name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
