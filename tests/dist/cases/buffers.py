"""Buffers of replicated stages, against DistributedDataParallel as it is used without a pipeline.

Four ranks are two pipelines of two stages: rank 2 * d + s is stage s of pipeline d.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.support.job import Case, Job, M
from tests.support.worker import PATIENCE

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Counting(nn.Module):
    """Has a buffer that counts its forwards, and notes what it finds there."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.found: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.found.append(self.count.item())
        self.count += 1
        y: torch.Tensor = self.inner(x)
        return y


def step_alone(replicated: DistributedDataParallel, train: bool) -> None:
    """A step of M microbatches as it is written without a pipeline."""
    with torch.set_grad_enabled(train):
        for i in range(M):
            last = i == M - 1
            with contextlib.nullcontext() if last or not train else replicated.no_sync():
                y = replicated(torch.ones(2, 3))
                if train:
                    y.sum().backward()


@case
def every_replica_has_the_buffers_of_the_first(job: Job) -> None:
    """In the first forward after gradients were reduced, be that of training or of an evaluation, and in no other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    replica, group = mesh.get_local_rank("data"), mesh.get_group("data")
    batch = torch.ones(2 * M, 3)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("whole_2", {}),
        ("split_2", {"find_unused_parameters": True}),
        ("split_reduce_2", {"gradient_as_bucket_view": True}),
        ("whole_2", {"broadcast_buffers": False}),
    ]
    for name, options in ways:
        torch.manual_seed(1)
        ours, theirs = Counting(), Counting()
        replicated = DistributedDataParallel(theirs, process_group=group, **options)
        pipe = job.compiled(name).Pipeline(
            DistributedDataParallel(ours, process_group=group, **options),
            functional.mse_loss,
            process_group=mesh.get_group("pipe"),
            timeout=PATIENCE,
        )
        firsts = []
        for step, train in enumerate([True, True, False, True, True, False, False, True, True]):
            for each in (ours, theirs):
                each.found.clear()
                each.count.fill_(100 * step + 10 * replica)
            pipe.step(batch, batch, train=train)
            step_alone(replicated, train)
            assert ours.found == theirs.found, (name, step, ours.found, theirs.found)
            assert torch.equal(ours.count, theirs.count)
            firsts.append(ours.found[0] - 100 * step)
        from_first = [0, 0, 0, 10, 0, 0, 10, 10, 0] if options.get("broadcast_buffers", True) else [10] * 9
        assert firsts == (from_first if replica else [0] * 9), (name, firsts)
