"""What is reduced over replicas besides a stage by itself, and what has to be alike on all of them.

Ranks are those of `composing`.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.dist.cases.composing import REPLICAS, STAGES, check, mesh, on_all_data, pipeline
from tests.support.job import BOTH, Case, Job, M, tokens
from tests.support.worker import PATIENCE, alone, mlp

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Loss(nn.Linear):
    """A loss with parameters of its own."""

    def forward(self, x: torch.Tensor, targets: Any = None) -> torch.Tensor:
        return functional.cross_entropy(super().forward(x), targets)


@case
def a_loss_that_is_replicated(job: Job) -> None:
    """Also where several forwards come before its first backward, after which DDP alone would reduce no more."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for name in BOTH:
        torch.manual_seed(15)
        stages, loss = mlp(STAGES), Loss(5, 5)
        expected, alike = copy.deepcopy(stages), copy.deepcopy(loss)
        for step in range(2):
            for each in range(REPLICAS):
                batch, targets = tokens(10 * step + each)
                alone(expected, alike, list(batch.chunk(M)), list(targets.chunk(M)))
        for parameter in nn.ModuleList([*expected, alike]).parameters():
            assert parameter.grad is not None
            parameter.grad /= REPLICAS
        wrapped = DistributedDataParallel(stages[own], process_group=group)
        its_loss = DistributedDataParallel(loss, process_group=group)
        pipe = pipeline(job, name, wrapped, both.get_group("pipe"), its_loss)
        for step in range(2):
            pipe.step(*tokens(10 * step + replica))
        check(stages[own], expected[own])
        if own == STAGES - 1:
            check(loss, alike)
        else:
            assert all(q.grad is None for q in loss.parameters())


@case
def a_loss_with_a_static_graph(job: Job) -> None:
    """What is refused of stages is refused of a loss."""
    both = mesh()
    loss = DistributedDataParallel(Loss(5, 5), process_group=both.get_group("data"), static_graph=True)
    compiled = job.compiled("whole_2")
    with pytest.raises(compiled.PipelineError, match="DistributedDataParallel with static_graph=True"):
        compiled.Pipeline(nn.Identity(), loss, process_group=both.get_group("pipe"), timeout=PATIENCE)


class Embeds(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(functional.embedding(x, self.weight))
        return y


class Unembeds(Embeds):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.inner(x), self.weight)


@case
def tied_parameters_of_replicated_stages(job: Job) -> None:
    """Summed first and averaged then, on both ranks, also where the schedule has a REDUCE for one of them alone."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for name in ("whole", "split_reduce", "reduce_first"):
        torch.manual_seed(16)
        weight = torch.randn(11, 6)
        stages: list[nn.Module] = [Embeds(weight), Unembeds(weight)]
        expected = on_all_data(stages, steps=2)
        first, last = (each.weight.grad for each in expected)
        total = first + last
        wrapped = DistributedDataParallel(stages[own], process_group=group)
        pipe = job.compiled(f"{name}_2").Pipeline(
            wrapped,
            functional.cross_entropy,
            process_group=both.get_group("pipe"),
            timeout=PATIENCE,
            tied={"weight": stages[own].weight},
        )
        for step in range(2):
            pipe.step(*tokens(10 * step + replica))
        for each in expected:
            each.weight.grad = total
        check(stages[own], expected[own])


@case
def parameters_frozen_or_trained_since_they_were_replicated(job: Job) -> None:
    """DDP would leave gradients as they are, and say nothing before the next step, or nothing at all."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for unused, trained in ((False, True), (False, False), (True, True), (True, False)):
        torch.manual_seed(17)
        stages = mlp(STAGES)
        expected = on_all_data(stages, steps=1)
        linear, theirs = (
            next(m for m in each.modules() if isinstance(m, nn.Linear)) for each in (stages[own], expected[own])
        )
        linear.weight.requires_grad_(not trained)
        wrapped = DistributedDataParallel(stages[own], process_group=group, find_unused_parameters=unused)
        linear.weight.requires_grad_(trained)
        compiled = job.compiled("whole_2")
        pipe = compiled.Pipeline(
            wrapped, functional.cross_entropy, process_group=both.get_group("pipe"), timeout=PATIENCE
        )
        if unused and not trained:
            pipe.step(*tokens(replica))
            assert linear.weight.grad is None
            theirs.weight.grad = None
            check(stages[own], expected[own])
            continue
        done = "trained that were frozen, or not there," if trained else "frozen that were trained"
        with pytest.raises(compiled.PipelineError, match=f"parameters are {done} when Distributed"):
            pipe.step(*tokens(replica))


@case
def as_many_parameters_as_were_replicated_but_others(job: Job) -> None:
    """One is frozen and another one trained, or takes its place: their number says nothing, and DDP neither."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for name in BOTH:
        for exchanged in (False, True):
            torch.manual_seed(20)
            stages = mlp(STAGES)
            linear = next(m for m in stages[own].modules() if isinstance(m, nn.Linear))
            linear.bias.requires_grad_(exchanged)
            expected = on_all_data(stages, steps=1)
            wrapped = DistributedDataParallel(stages[own], process_group=group, find_unused_parameters=True)
            compiled = job.compiled(f"{name}_2")
            pipe = compiled.Pipeline(
                wrapped, functional.cross_entropy, process_group=both.get_group("pipe"), timeout=PATIENCE
            )
            for _ in range(2):  # frozen and trained again it is the same one
                pipe.step(*tokens(replica))
                check(stages[own], expected[own])
                stages[own].zero_grad()
                linear.weight.requires_grad_(False)
                linear.weight.requires_grad_(True)
            if exchanged:
                linear.weight = nn.Parameter(linear.weight.detach().clone())
            else:
                linear.weight.requires_grad_(False)
                linear.bias.requires_grad_(True)
            with pytest.raises(compiled.PipelineError, match="parameters are trained that were frozen, or not there, "):
                pipe.step(*tokens(replica))


@case
def a_replicated_stage_that_is_frozen_as_a_whole(job: Job) -> None:
    """After its first step. The other stage trains on."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for unused in (False, True):
        torch.manual_seed(19)
        stages = mlp(STAGES)
        expected = on_all_data(stages, steps=2)
        before = on_all_data(stages, steps=1)
        wrapped = DistributedDataParallel(stages[own], process_group=group, find_unused_parameters=unused)
        pipe = pipeline(job, "whole", wrapped, both.get_group("pipe"))
        pipe.step(*tokens(replica))
        if own == 0:
            stages[own].requires_grad_(False)
        pipe.renew_shapes()
        pipe.step(*tokens(10 + replica))
        check(stages[own], expected[own] if own else before[own])


class Detaches(nn.Module):
    """Returns something to train on, but for the microbatches of a step that it is told."""

    def __init__(self, *microbatches: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)
        self.microbatches = microbatches
        self.calls = -1

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        y: torch.Tensor = self.inner(x)
        return y.detach() if self.calls % M in self.microbatches else y, torch.arange(2)


def of_the_first(y: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(y[0], targets)


@case
def replicas_that_differ_in_what_is_trained(job: Job) -> None:
    """FSDP2's hooks would wait for each other for ever. All ranks end, and say which microbatch, and how."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        stage = [nn.Embedding(11, 8), Detaches(*([2] if replica else []))][own]
        if own:
            fully_shard(stage, mesh=both["data"])
        compiled = job.compiled(f"{name}_2")
        pipe = compiled.Pipeline(stage, of_the_first, process_group=both.get_group("pipe"), timeout=PATIENCE)
        with pytest.raises(compiled.PipelineError) as found:
            pipe.step(*tokens(replica))
        last = "rank 1 (global rank 3)" if replica else "rank 1"
        assert f"{last} failed at F of stage 1, microbatch 2 (test.sched:" in str(found.value)
        assert (
            "replicas differ in what needs a gradient of what the stage returned for this microbatch: "
            "0 (of 0 to 1) on global rank 1, nothing on global rank 3; with fully_shard" in str(found.value)
        )


@case
def one_of_four_replicas_differs(job: Job) -> None:
    """In two dimensions, of which the ranks of two replicas share none with it. Each holds both stages."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "parts"))
    alone, _ = dist.new_subgroups(1)
    compiled = job.compiled("v_shape_1")
    stages = [nn.Embedding(11, 8), Detaches(*([1] if job.rank == 3 else []))]
    fully_shard(stages[1], mesh=both)
    pipe = compiled.Pipeline(stages, of_the_first, process_group=alone, timeout=PATIENCE)
    with pytest.raises(compiled.PipelineError) as found:
        pipe.step(*tokens(job.rank))
    one = "0 (of 0 to 1) on global rank"
    assert f": {one} 0, {one} 1, {one} 2, nothing on global rank 3; " in str(found.value)
    assert "F of stage 1, microbatch 1 (test.sched:" in str(found.value)


@case
def what_is_trained_differs_from_step_to_step(job: Job) -> None:
    """Which a rank cannot know of the other replicas, unless something was frozen on all of them."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(18)
        stages: list[Any] = [nn.Embedding(11, 8), Detaches()]
        expected = copy.deepcopy(stages)
        stage = stages[own]
        fully_shard(stage, mesh=both["data"])
        compiled = job.compiled(f"{name}_2")
        pipe = compiled.Pipeline(stage, of_the_first, process_group=both.get_group("pipe"), timeout=PATIENCE)
        for step, detached in enumerate(((), (), (0, 3))):
            expected[1].microbatches = detached
            if own:
                stage.microbatches = detached
            if detached:
                for linear in [expected[1].inner, *([stage.inner] if own else [])]:
                    linear.bias.requires_grad_(False)
            for each in range(REPLICAS):
                batch, targets = tokens(10 * step + each)
                for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                    loss = of_the_first(expected[1](expected[0](x)), y)
                    if loss.requires_grad:
                        (loss / M / REPLICAS).backward()
            pipe.step(*tokens(10 * step + replica))
        check(stage, expected[own])
        if own:
            stage.microbatches = (0, 1, 3)
        with pytest.raises(
            compiled.PipelineError,
            match=r"F of stage 1, microbatch 1 .*: a gradient is needed of nothing that the stage returned for this "
            r"microbatch, but was of 0 \(of 0 to 1\) in the first training step",
        ):
            pipe.step(*tokens(replica))


class Shifts(nn.Module):
    """Adds a parameter whose gradient is a view of that of its input, which is sent to the stage before."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(rows * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shift.view(x.shape) + x


@case
def first_gradients_of_sharded_parameters_that_are_views(job: Job) -> None:
    """They are of whole parameters, which a module has in forwards and backwards alone."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(19)
        stages = [mlp(STAGES)[0], nn.Sequential(Shifts(2, 6), nn.Linear(6, 5))]
        expected = on_all_data(stages, 1)
        fully_shard(stages[own], mesh=both["data"])
        pipeline(job, name, stages[own], both.get_group("pipe")).step(*tokens(replica))
        check(stages[own], expected[own])


class Hands(nn.Module):
    """Trains one of the two tensors that it is given, and hands on the other as it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)

    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x[0]), x[1]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = nn.Embedding(11, 6), nn.Embedding(11, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), self.other(x)


def of_both(y: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(y[0] + y[1], targets)


@case
def an_earlier_stage_is_frozen(job: Job) -> None:
    """What the next one hands on needs no gradient any more, though nothing has changed there."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(21)
        stages = [Two(), Hands(5)]
        expected = copy.deepcopy(stages)
        fully_shard(stages[own], mesh=both["data"])
        pipe = job.compiled(f"{name}_2").Pipeline(
            stages[own], of_both, process_group=both.get_group("pipe"), timeout=PATIENCE
        )
        for step in range(3):
            if step == 1:
                for stage in (expected[0], *([] if own else [stages[0]])):
                    stage.requires_grad_(False)
                pipe.renew_shapes()
            for each in range(REPLICAS):
                batch, targets = tokens(10 * step + each)
                for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                    (of_both(expected[1](expected[0](x)), y) / M / REPLICAS).backward()
            pipe.step(*tokens(10 * step + replica))
        check(stages[own], expected[own])


class Extra(nn.Module):
    """Returns, besides what the loss depends on, the root of a sum that is 0, and what a head of its own makes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 5), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.inner(x), (x - x).pow(2).sum().sqrt(), self.head(x)


class Takes(nn.Module):
    """A loss of the first output and, in the microbatches that it is told, of the last one."""

    def __init__(self, *microbatches: int) -> None:
        super().__init__()
        self.microbatches = microbatches
        self.calls = -1

    def forward(self, y: tuple[torch.Tensor, torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss = functional.cross_entropy(y[0], targets)
        return loss + y[2].mean() if self.calls % M in self.microbatches else loss


@case
def outputs_that_the_loss_does_not_depend_on(job: Job) -> None:
    """Nothing runs there in one process: zeros may become NaN, and gradients that are none would be decayed.

    Where it does on one replica alone, or in another microbatch, both gather alike.
    """
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    # By step and replica, the microbatches in which the loss depends on the head.
    nowhere, here, apart = ((), ()), ((1,), ()), ((0, M - 1), (1, M - 1))
    for name, uses in itertools.product(BOTH, ((nowhere, nowhere), (here, here), (apart, here), (nowhere, apart))):
        torch.manual_seed(22)
        stages: list[nn.Module] = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6)), Extra()]
        expected = copy.deepcopy(stages)
        for step, each in itertools.product(range(2), range(REPLICAS)):
            batch, targets = tokens(10 * step + each)
            loss_fn = Takes(*uses[step][each])
            for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                (loss_fn(expected[1](expected[0](x)), y) / M / REPLICAS).backward()
        stage = stages[own]
        if own:
            fully_shard(stage.head, mesh=both["data"])
        fully_shard(stage, mesh=both["data"])
        own_loss = Takes()
        pipe = pipeline(job, name, stage, both.get_group("pipe"), own_loss)
        for step in range(2):
            own_loss.microbatches = uses[step][replica]
            pipe.step(*tokens(10 * step + replica))
        check(stage, expected[own])
        for ours, theirs in zip(stage.parameters(), expected[own].parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), (name, uses)


@case
def an_output_that_the_loss_comes_to_depend_on(job: Job) -> None:
    """Which the other replica cannot know where it is not asked, as on GPUs, unless shapes are renewed on both."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        stage = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6)), Extra()][own]
        loss_fn = Takes()
        compiled = job.compiled(f"{name}_2")
        fully_shard(stage, mesh=both["data"])
        pipe = compiled.Pipeline(stage, loss_fn, process_group=both.get_group("pipe"), timeout=PATIENCE)
        for chunk in pipe._loop._chunks.values():
            chunk._is_ahead = True
        pipe.step(*tokens(replica))
        loss_fn.microbatches = (2,) if replica else ()
        pipe.renew_shapes()
        for step in range(2):
            pipe.step(*tokens(10 * step + replica))
        loss_fn.microbatches = (3,)
        message = (
            r"[BI] of stage 1, microbatch 3 .*: the loss depends on 0, 2 \(of 0 to 2\) that the stage returned for "
            r"this microbatch and needs a gradient, but on 0 \(of 0 to 2\) in the first training step"
        )
        with pytest.raises(compiled.PipelineError, match=message):
            pipe.step(*tokens(replica))
