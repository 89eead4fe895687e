"""Stages that are replicated or sharded, and have no gradient for some microbatches, against one process.

Ranks are those of `composing`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.dist.cases.composing import STAGES, Apart, check, mesh, on_all_data, pipeline
from tests.support.job import BOTH, Case, Job, M, tokens
from tests.support.worker import mlp

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def replicas_that_no_gradient_comes_back_to(job: Job) -> None:
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    ways: dict[str, Callable[[Any], nn.Module]] = {
        "sharded": lambda stage: fully_shard(stage, mesh=both["data"]),
        "replicated": lambda stage: DistributedDataParallel(stage, process_group=group),
        "unused": lambda stage: DistributedDataParallel(stage, process_group=group, find_unused_parameters=True),
    }
    for name in BOTH:
        for way, wrap in ways.items():
            torch.manual_seed(7)
            stages: list[nn.Module] = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)), Apart()]
            expected = on_all_data(stages, steps=2)
            stage = stages[own]
            pipe = pipeline(job, name, wrap(stage), both.get_group("pipe"))
            for step in range(2):
                pipe.step(*tokens(10 * step + replica))
                assert all(isinstance(q, DTensor) for q in stage.parameters()) == (way == "sharded")
            check(stage, expected[own])
            if own == 0:
                assert all((q.grad is None) == (way != "replicated") for q in stage.parameters()), (name, way)


@case
def a_last_gradient_that_is_missing(job: Job) -> None:
    """FSDP2 reduces in the last backward; without it the replicas would differ."""
    both = mesh()
    own = both.get_local_rank("pipe")
    stage = fully_shard([nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)), Apart(1)][own], mesh=both["data"])
    pipe = pipeline(job, "whole", stage, both.get_group("pipe"))

    def steps() -> None:  # the other rank may have done its part of the first
        for step in range(2):
            pipe.step(*tokens(step))

    with pytest.raises(RuntimeError, match="no gradient comes back for this stage's last microbatch, where some did"):
        steps()


def summed(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(y, targets, ignore_index=-100, reduction="sum")


@case
def a_last_microbatch_that_is_masked(job: Job) -> None:
    """Its loss is 0, and so are its gradients, which are there: sharded stages train on the others."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")

    def masked(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        batch, targets = tokens(seed)
        targets[-len(targets) // M :] = -100
        return batch, targets

    for name in BOTH:
        torch.manual_seed(8)
        stages = mlp(STAGES)
        expected = copy.deepcopy(stages)
        for each in range(2):
            batch, targets = masked(each)
            (summed(nn.Sequential(*expected)(batch), targets) / (targets >= 0).sum() / 2).backward()
        stage = fully_shard(stages[own], mesh=both["data"])
        compiled = job.compiled(f"{name}_2")
        pipe = compiled.Pipeline(
            stage,
            summed,
            count_fn=lambda targets: (targets >= 0).sum(),
            process_group=both.get_group("pipe"),
            timeout=90,
        )
        pipe.step(*masked(replica))
        check(stage, expected[own])
