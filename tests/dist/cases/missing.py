"""Stages that are replicated or sharded, and have no gradient for some microbatches, against one process.

Ranks are those of `composing`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.dist.cases.composing import REPLICAS, STAGES, Apart, check, mesh, on_all_data, pipeline
from tests.support.job import BOTH, Case, Job, M, tokens
from tests.support.worker import PATIENCE, mlp

CASES: dict[str, Case] = {}
WAYS = ("whole", "split_reduce")  # without a REDUCE, and with one


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


class Through(nn.Module):
    """Trains on what comes in, and sends a gradient back for some microbatches of every step."""

    def __init__(self, *microbatches: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)
        self.microbatches: Sequence[int] = microbatches
        self.calls = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y: torch.Tensor = self.inner(x if self.calls % M in self.microbatches else x.detach())
        return y


def unless_masked(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is no part of the graph where no target counts."""
    loss = functional.cross_entropy(y, targets.clamp(min=0))
    return loss if (targets >= 0).any() else loss.detach() * 0


@case
def a_last_gradient_that_is_missing(job: Job) -> None:
    """FSDP2 reduces in the last backward; without it the gradients of the others count all the same."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")

    def batch_of(seed: int, *, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
        batch, targets = tokens(seed)
        targets[-len(targets) // M :] = -100 if masked else 1
        return batch, targets

    # Which steps' losses are detached for the last microbatch, and what passes the second stage otherwise.
    for name, detached, through in itertools.product(BOTH, ((), (0, 1, 2), (1,)), (range(M), (1,))):
        torch.manual_seed(9)
        blocks = nn.Sequential(nn.Embedding(11, 6), *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)))
        stages: list[nn.Module] = [nn.Sequential(blocks, nn.Linear(6, 8)), Through(*through)]
        expected = copy.deepcopy(stages)
        for step in range(3):
            for each in range(REPLICAS):
                batch, targets = batch_of(10 * step + each, masked=step in detached)
                for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                    loss = unless_masked(expected[1](expected[0](x)), y)
                    if loss.requires_grad:
                        (loss / M / REPLICAS).backward()
        stage = stages[own]
        if own == 0:
            for block in blocks[1:]:  # several sums, whose order counts
                fully_shard(block, mesh=both["data"])
        pipe = pipeline(job, name, fully_shard(stage, mesh=both["data"]), both.get_group("pipe"), unless_masked)
        for step in range(3):
            pipe.step(*batch_of(10 * step + replica, masked=step in detached))
            assert all(isinstance(q, DTensor) for q in stage.parameters())
        check(stage, expected[own])


class Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6))
        self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.trunk(x).tanh()
        return {"b": self.b(h), "a": self.a(h)}


class Pick(nn.Module):
    """Uses, in every microbatch, what is said; nothing is as much as all, for a loss that is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)
        self.uses: Sequence[str] = ()
        self.calls = 0

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        used = self.uses[self.calls % M]
        self.calls += 1
        y: torch.Tensor = self.inner(sum(x if name in used else x.detach() for name, x in given.items()))
        return y


# By replica and microbatch, what there is a gradient of.
USES = (
    (["a", "ab", "ab", "ab"], ["ab", "a", "ab", "ab"]),
    (["a", "b", "ab", "ab"], ["b", "a", "ab", "ab"]),
    (["ab", "ab", "ab", "a"], ["ab", "ab", "ab", "ab"]),
    (["a", "a", "a", "a"], ["a", "a", "a", ""]),
    (["ab", "ab", "ab", "a"], ["ab", "ab", "ab", "a"]),
)


@case
def outputs_that_no_gradient_comes_back_for(job: Job) -> None:
    """Replicas gather what these were made with alike; also where no later backward of a step reaches it."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name, uses, whole in itertools.product(BOTH, USES, (True, False)):
        torch.manual_seed(5)
        fork, pick = Fork(), Pick()
        first, last = copy.deepcopy(fork), copy.deepcopy(pick)

        def batch_of(seed: int, each: int, uses: Sequence[Sequence[str]] = uses) -> tuple[torch.Tensor, torch.Tensor]:
            batch, targets = tokens(seed + each)
            for part, used in zip(targets.chunk(M), uses[each], strict=True):
                part.fill_(1 if used else -100)
            return batch, targets

        for step, each in itertools.product(range(2), range(REPLICAS)):
            last.uses, last.calls = uses[each], 0
            batch, targets = batch_of(10 * step, each)
            for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                loss = unless_masked(last(first(x)), y)
                if loss.requires_grad:
                    (loss / M / REPLICAS).backward()
        pick.uses = uses[replica]
        if own == 0:
            for part in fork.children():
                fully_shard(part, mesh=both["data"])
            if whole:
                fully_shard(fork, mesh=both["data"])
        pipe = pipeline(job, name, (fork, pick)[own], both.get_group("pipe"), unless_masked)
        for step in range(2):
            pipe.step(*batch_of(10 * step, replica))
        if own == 0:
            for q, expected in zip(fork.parameters(), first.parameters(), strict=True):
                assert (q.grad is None) == (expected.grad is None), (name, uses, whole)
                if expected.grad is not None:
                    assert isinstance(q.grad, DTensor)
                    torch.testing.assert_close(q.grad.full_tensor(), expected.grad)


class Dropping(nn.Module):
    """Leaves out its middle block in the last microbatch of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y: torch.Tensor = self.embed(x)
        for k, block in enumerate(self.blocks):
            y = y if k == 1 and self.calls % M == 0 else block(y).tanh()
        return y


@case
def a_block_that_the_last_backward_does_not_reach(job: Job) -> None:
    """It is reduced all the same, also where what holds the blocks is not wrapped itself."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(6)
        stages: list[nn.Module] = [Dropping(), nn.Linear(8, 5)]
        expected = on_all_data(stages, steps=2)
        stage = stages[own]
        if isinstance(stage, Dropping):
            for part in (stage.embed, *stage.blocks):
                fully_shard(part, mesh=both["data"])
        else:
            fully_shard(stage, mesh=both["data"])
        pipe = pipeline(job, name, stage, both.get_group("pipe"))
        for step in range(2):
            pipe.step(*tokens(10 * step + replica))
        check(stage, expected[own])


def unshard_all(stage: nn.Module) -> None:
    for part in stage.modules():
        if isinstance(part, FSDPModule):
            part.unshard()


@case
def gradients_that_replicas_have_for_different_microbatches(job: Job) -> None:
    """One may have none at all for a stage. Parameters are gathered in forwards and backwards, in one order for all."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    every = range(M)
    # For each replica: what the second stage passes on, and what it has no loss for.
    patterns: list[tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]] = [
        ((every, ()), ((), ())),
        (((), every), ((), (M - 1,))),
        (((0,), (M - 1,)), ((1,), (0, 2))),
        (((), ()), ((M - 1,), (0,))),
    ]

    def batch_of(seed: int, masked: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        batch, targets = tokens(seed)
        for microbatch in masked:
            targets.view(M, -1)[microbatch] = -100
        return batch, targets

    for name, in_layers in itertools.product(WAYS, (False, True)):
        for passed, masked in patterns:
            torch.manual_seed(10)
            first = nn.Sequential(nn.Embedding(11, 6), *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)))
            stages: list[nn.Module] = [first.append(nn.Linear(6, 8)), Through()]
            expected = copy.deepcopy(stages)
            last = expected[1]
            assert isinstance(last, Through)
            for step, each in itertools.product(range(2), range(REPLICAS)):
                last.microbatches = passed[each]
                batch, targets = batch_of(10 * step + each, masked[each])
                for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                    loss = unless_masked(last(expected[0](x)), y)
                    if loss.requires_grad:
                        (loss / M / REPLICAS).backward()
            stage = stages[own]
            if isinstance(stage, Through):
                stage.microbatches = passed[replica]
            for layer in [*stage.children()][:-1] if in_layers else []:
                fully_shard(layer, mesh=both["data"], reshard_after_forward=True)
            fully_shard(stage, mesh=both["data"])
            pipe = pipeline(job, name, stage, both.get_group("pipe"), unless_masked)
            for step in range(2):
                pipe.step(*batch_of(10 * step + replica, masked[replica]))
                assert all(isinstance(q, DTensor) for q in stage.parameters())
            check(stage, expected[own])
            for ours, theirs in zip(stage.parameters(), expected[own].parameters(), strict=True):
                assert (ours.grad is None) == (theirs.grad is None), (name, in_layers, passed)
            unshard_all(stage)
            assert all(q.grad is None for q in stage.parameters()), "gradients that are not reduced are left"


@case
def parameters_that_are_sharded_and_replicated(job: Job) -> None:
    """Four replicas in two dimensions, of which one alone has a gradient for the first stage; then none, or the others.

    Each holds both stages.
    """
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "parts"))
    alone, _ = dist.new_subgroups(1)
    size = dist.get_world_size()
    for who in ((3,), (), (0, 1, 2)):
        torch.manual_seed(14)
        stages: list[nn.Module] = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)), Through()]
        expected = copy.deepcopy(stages)
        for step, each in itertools.product(range(2), range(size)):
            expected[1].microbatches = (1,) if each in who else ()
            batch, targets = tokens(10 * step + each)
            for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                (functional.cross_entropy(expected[1](expected[0](x)), y) / M / size).backward()
        stages[1].microbatches = (1,) if job.rank in who else ()
        for stage in stages:
            fully_shard(stage, mesh=both)
        pipe = job.compiled("v_shape_1").Pipeline(
            stages, functional.cross_entropy, process_group=alone, timeout=PATIENCE
        )
        for step in range(2):
            pipe.step(*tokens(10 * step + job.rank))
        for stage, theirs in zip(stages, expected, strict=True):
            check(stage, theirs)
        assert all((q.grad is None) == (not who) for q in stages[0].parameters())


@case
def sharded_stages_between_steps(job: Job) -> None:
    """What is done with a stage outside of a pipeline is reduced as if there were none."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for train in (False, True):
        torch.manual_seed(13)
        stages: list[nn.Module] = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)), Apart()]
        inputs: list[torch.Tensor] = [torch.arange(3), torch.ones(3, 8)]
        stage = stages[own]
        expected = copy.deepcopy(stage)
        (expected(inputs[own]).sum() * (REPLICAS + 1) / 2).backward()
        fully_shard(stage, mesh=both["data"])
        pipeline(job, "whole", stage, both.get_group("pipe")).step(*tokens(replica), train=train)
        stage.zero_grad()
        (stage(inputs[own]).sum() * (replica + 1)).backward()
        check(stage, expected)
        assert all(isinstance(q.grad, DTensor) for q in stage.parameters())


class Until(nn.Module):
    """Returns something to train on for the first microbatches of a step only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y: torch.Tensor = self.inner(x)
        return y if self.calls % M else y.detach()


@case
def a_last_microbatch_that_nothing_depends_on(job: Job) -> None:
    """Whose backward cannot run at all, so that the gradients of the others are reduced without it."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name in WAYS:
        torch.manual_seed(12)
        stages: list[nn.Module] = [nn.Embedding(11, 8), Until()]
        expected = copy.deepcopy(stages)
        for each in range(REPLICAS):
            batch, targets = tokens(each)
            for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                loss = functional.cross_entropy(expected[1](expected[0](x)), y)
                if loss.requires_grad:
                    (loss / M / REPLICAS).backward()
        stage = stages[own]
        fully_shard(stage, mesh=both["data"])
        pipeline(job, name, stage, both.get_group("pipe")).step(*tokens(replica))
        check(stage, expected[own])


class Endless(torch.autograd.Function):
    """Identity, whose derivative is infinite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.inf


class Broken(nn.Module):
    """Has no derivative where its input is all zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.embed(x)
        return Endless.apply(y) if bool((x == 0).all()) else y  # type: ignore[no-untyped-call]


@case
def a_microbatch_without_gradient_whose_derivative_is_no_number(job: Job) -> None:
    """What stands for a missing gradient does no harm where the chain rule would make 0 times infinity of it."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    for name, odd in itertools.product(WAYS, (0, M - 1)):
        torch.manual_seed(11)
        passed = [each for each in range(M) if each != odd]
        stages: list[nn.Module] = [Broken(), Through(*passed)]
        expected = copy.deepcopy(stages)

        def batch_of(seed: int, odd: int = odd) -> tuple[torch.Tensor, torch.Tensor]:
            batch, targets = tokens(seed)
            batch = batch.clamp(min=1)
            batch.view(M, -1)[odd] = 0
            return batch, targets

        for each in range(REPLICAS):
            batch, targets = batch_of(each)
            for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
                (functional.cross_entropy(expected[1](expected[0](x)), y) / M / REPLICAS).backward()
        stage = stages[own]
        fully_shard(stage, mesh=both["data"])
        pipeline(job, name, stage, both.get_group("pipe")).step(*batch_of(replica))
        check(stage, expected[own])


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
            timeout=PATIENCE,
        )
        pipe.step(*masked(replica))
        check(stage, expected[own])
