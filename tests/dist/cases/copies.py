"""Pipelines in which every stage has two copies, on four ranks over gloo, each against one process."""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.dist.cases.composing import REPLICAS, check, mesh
from tests.dist.cases.saving import PARTS, Model
from tests.support.job import Case, Job, M, compare, tokens
from tests.support.worker import PATIENCE, alone, difference, mlp

P = 4
COPIES = 2
ROWS = 2 * COPIES * M
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def train_alone(stages: list[nn.Module], seed: int) -> None:
    batch, targets = tokens(seed, rows=ROWS)
    alone(stages, functional.cross_entropy, batch.chunk(COPIES * M), targets.chunk(COPIES * M))


@case
def two_copies_train_as_one_process(job: Job) -> None:
    """Gradients of two steps add up before each of the optimizer, and are clipped; the copies stay equal to the bit."""
    for name in ("two_ways", "two_ways_split"):
        torch.manual_seed(1)
        stages = mlp(P)
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages)
        optimizer = torch.optim.AdamW(nn.ModuleList(pipe.mine).parameters(), lr=0.05)
        theirs = torch.optim.AdamW(nn.ModuleList(reference).parameters(), lr=0.05)
        for step in range(6):
            pipe.step(*tokens(step, rows=ROWS))
            train_alone(reference, step)
            compare(pipe, stages, reference, 1e-4)
            if step % 2:
                norm = pipe.clip_grad_norm_(0.5)
                expected = nn.utils.clip_grad_norm_(nn.ModuleList(reference).parameters(), 0.5)
                torch.testing.assert_close(norm, expected, rtol=1e-4, atol=0)
                optimizer.step()
                theirs.step()
                optimizer.zero_grad()
                theirs.zero_grad()
        held = {s: [q.detach() for q in stages[s].parameters()] for s in job.compiled(name).stages_of(job.rank)}
        everyone: list[Any] = [None] * P
        dist.all_gather_object(everyone, held)
        for s, ours in held.items():
            copies = [other[s] for other in everyone if s in other]
            assert len(copies) == COPIES
            assert all(all(map(torch.equal, ours, each)) for each in copies)
            for own, expected in zip(ours, reference[s].parameters(), strict=True):
                assert difference(own, expected.detach()) <= 1e-3


class Training:
    """One rank's part of the training of a model."""

    def __init__(self, job: Job, name: str, ranks: int, group: Any, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model()
        self.group = group
        compiled = job.compiled(name)
        stages = self.model.stages(ranks)
        self.mine = [stages[s] for s in compiled.stages_of(job.rank)]
        for other in stages:
            if not any(other is each for each in self.mine):
                other.to("meta")
        self.pipe = compiled.Pipeline(self.mine, functional.cross_entropy, process_group=group, timeout=PATIENCE)
        self.optimizer = torch.optim.AdamW(nn.ModuleList(self.mine).parameters(), lr=0.1)

    def run(self, steps: range) -> None:
        for step in steps:
            self.pipe.step(*tokens(step, rows=ROWS))
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        with redirect_stderr(io.StringIO()):
            state = self.pipe.state_dict(self.model, self.optimizer)
            dcp.save(state, checkpoint_id=folder, process_group=self.group)

    def resume(self, folder: Path) -> None:
        state = self.pipe.state_dict(self.model, self.optimizer)
        dcp.load(state, checkpoint_id=folder, process_group=self.group)
        self.pipe.load_state_dict(self.model, state, self.optimizer)


@case
def stopping_and_going_on_with_two_copies(job: Job) -> None:
    """To the bit; and what two copies saved, a pipeline without copies can load."""
    undisturbed = Training(job, "two_ways", PARTS, job.group, seed=1)
    undisturbed.run(range(2))
    folder = job.folder / "checkpoint_of_copies"
    undisturbed.save(folder)
    pair = dist.new_group([0, 1])
    if job.rank < 2:
        apart = Training(job, "whole_2", 2, pair, seed=2)
        apart.resume(folder)
        ours, theirs = (dict(each.model.named_parameters()) for each in (apart, undisturbed))
        common = [name for name in ours if not ours[name].is_meta and not theirs[name].is_meta]
        assert len(common) > 3
        assert all(torch.equal(ours[name], theirs[name]) for name in common)
        apart.run(range(2, 3))
    undisturbed.run(range(2, 4))
    second = Training(job, "two_ways", PARTS, job.group, seed=3)
    second.resume(folder)
    second.run(range(2, 4))
    for own, expected in zip(second.mine, undisturbed.mine, strict=True):
        assert all(map(torch.equal, own.parameters(), expected.parameters()))


@case
def two_copies_of_stages_that_are_replicated_or_sharded(job: Job) -> None:
    """Two pipelines of two ranks, on data of their own, and in each two copies of both stages."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for wrap in ("ddp", "fsdp"):
        torch.manual_seed(4)
        stages = mlp(2, width=8)
        expected = copy.deepcopy(stages)
        for step in range(2):
            for each in range(REPLICAS):
                train_alone(expected, 10 * step + each)
        for parameter in nn.ModuleList(expected).parameters():
            assert parameter.grad is not None
            parameter.grad /= REPLICAS
        for name in ("two_ways_2", "two_ways_split_2", "two_ways_reduce_2"):
            compiled = job.compiled(name)
            mine = [copy.deepcopy(stages[s]) for s in compiled.stages_of(own)]
            if wrap == "ddp":
                wrapped: list[Any] = [DistributedDataParallel(each, process_group=group) for each in mine]
            else:
                wrapped = [fully_shard(each, mesh=both["data"]) for each in mine]
            pipe = compiled.Pipeline(
                wrapped, functional.cross_entropy, process_group=both.get_group("pipe"), timeout=PATIENCE
            )
            for step in range(2):
                pipe.step(*tokens(10 * step + replica, rows=ROWS))
            for s, each in zip(compiled.stages_of(own), mine, strict=True):
                check(each, expected[s])
            norm = pipe.clip_grad_norm_(1e6)
            total = nn.utils.get_total_norm(
                [q.grad for q in nn.ModuleList(expected).parameters() if q.grad is not None]
            )
            torch.testing.assert_close(norm, total)
