"""What forwards draw at random, with a seed for the step: the same on any number of ranks, and in one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.job import Case, Job, compare, tokens
from tests.support.worker import PATIENCE, mlp

P = 4
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Checkpointed(nn.Module):
    """Draws once more when it is recomputed, and must get the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), nn.Linear(6, 6))

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


class DrawsThenWrites(nn.Module):
    """Writes to its input, but not for the first microbatches; before that it has drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = functional.dropout(x * 2, 0.4)
        return self.inner(y + (x.mul_(2) if self.calls > 2 else x * 2))


def drawing_stages(count: int) -> list[nn.Module]:
    stages = mlp(count)
    for stage in stages:
        stage.append(nn.Dropout(0.3))
    stages[0].append(Checkpointed())
    stages[1].insert(0, DrawsThenWrites())
    return stages


def noisy(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.dropout(y, 0.2), target)


def in_one_process(compiled: Any, stages: list[nn.Module], seed: int, batch: Any, targets: Any) -> torch.Tensor:
    losses = []
    seeded, m = compiled.seeded, compiled.PLAN.microbatches
    for i, (x, y) in enumerate(zip(batch.chunk(m), targets.chunk(m), strict=True)):
        for s, stage in enumerate(stages):
            with seeded(seed, s, i):
                x = stage(x)
                if s == len(stages) - 1:
                    losses.append(noisy(x, y))
        (losses[-1] / m).backward()
    return torch.stack(losses).detach()


@case
def one_seed_on_any_number_of_ranks(job: Job) -> None:
    """Four stages on four ranks, on two and twice, two stages on two ranks and on one; whatever else the ranks draw."""
    ranks = {"whole": 4, "split": 4, "last_first": 4, "two_ways": 4, "v_shape_2": 2, "whole_2": 2, "v_shape_1": 1}
    groups = {each: dist.new_group(list(range(each))) for each in sorted(set(ranks.values()))}
    for name, p in ranks.items():
        if job.rank >= p:
            continue
        compiled = job.compiled(name)
        torch.manual_seed(1)
        stages = drawing_stages(compiled.STAGES)
        reference = copy.deepcopy(stages)
        mine = [stages[s] for s in compiled.stages_of(job.rank)]
        plan = compiled.PLAN
        own = [i for s in plan.chunks(job.rank) if plan.is_last(s) for i in plan.own_microbatches(s)]
        pipe = compiled.Pipeline(mine, noisy, timeout=PATIENCE, process_group=groups[p])
        pipe.mine = mine
        torch.manual_seed(job.rank)
        for seed in (7, 8, 7):
            batch, targets = tokens(seed, rows=2 * plan.microbatches)
            before = torch.get_rng_state()
            losses = pipe.step(batch, targets, seed=seed)
            assert torch.equal(before, torch.get_rng_state())
            expected = in_one_process(compiled, reference, seed, batch, targets)
            if own:
                assert torch.equal(losses, expected[own]), name
            torch.rand(1 + job.rank)  # what the job draws itself is its own affair
        compare(pipe, stages, reference, 1e-5 if name in ("split", "two_ways") else 0.0)


@case
def a_seed_that_is_none(job: Job) -> None:
    """Ranks that are still making their pipeline then hear of it there."""

    def run() -> None:
        pipe = job.pipeline("whole", mlp(P))
        pipe.step(*tokens(0), seed="2" if job.rank == 2 else 2)

    with pytest.raises(RuntimeError, match=r"rank 2 failed at .*: TypeError: seed must be an int, not a str"):
        run()
