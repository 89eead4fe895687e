"""Stages that are replicated, sharded, split over ranks, compiled or run in fewer bits, against one process.

Four ranks are two pipelines of two stages: rank 2 * d + s is stage s of pipeline d.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.support.job import BOTH, Case, Job, M, tokens
from tests.support.worker import PATIENCE, alone, difference, mlp

STAGES = 2
REPLICAS = 2
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def mesh() -> DeviceMesh:
    """Dimension 0: the replicas, or the parts of a stage; dimension 1: the stages."""
    return init_device_mesh("cpu", (REPLICAS, STAGES), mesh_dim_names=("data", "pipe"))


def pipeline(job: Job, name: str, stage: nn.Module, group: dist.ProcessGroup, loss_fn: Any = None) -> Any:
    loss_fn = loss_fn or functional.cross_entropy
    return job.compiled(f"{name}_2").Pipeline(stage, loss_fn, process_group=group, timeout=PATIENCE)


def on_all_data(stages: list[nn.Module], steps: int) -> list[nn.Module]:
    """One process that trains on the data of all replicas."""
    whole = copy.deepcopy(stages)
    for step in range(steps):
        for replica in range(REPLICAS):
            batch, targets = tokens(10 * step + replica)
            alone(whole, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
    for parameter in nn.ModuleList(whole).parameters():
        if parameter.grad is not None:
            parameter.grad /= REPLICAS
    return whole


def check(stage: nn.Module, expected: nn.Module, bound: float = 1e-5) -> None:
    for ours, theirs in zip(stage.parameters(), expected.parameters(), strict=True):
        gradient = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
        assert difference(gradient, theirs.grad) <= bound, (gradient, theirs.grad)


def check_clipping(pipe: Any, stage: nn.Module, expected: list[nn.Module], own: int) -> None:
    """The norm is that of all stages, and all their parts, together."""
    norm = pipe.clip_grad_norm_(0.01)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(nn.ModuleList(expected).parameters(), 0.01))
    check(stage, expected[own])


@case
def replicated_stages(job: Job) -> None:
    """DDP reduces once per step, also after a split backward; three steps before one of the optimizer."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    reductions: list[int] = []

    def counted(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0] / REPLICAS)

    options: list[dict[str, Any]] = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]
    for name in BOTH:
        for each in options:
            torch.manual_seed(1)
            stages = mlp(STAGES)
            if "find_unused_parameters" in each:
                for stage in stages:
                    stage.register_parameter("never", nn.Parameter(torch.ones(3)))
            expected = on_all_data(stages, steps=3)
            wrapped = DistributedDataParallel(stages[own], process_group=group, **each)
            counted.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
            wrapped.register_comm_hook(None, counted)
            pipe = pipeline(job, name, wrapped, both.get_group("pipe"))
            reductions.clear()
            for step in range(3):
                pipe.step(*tokens(10 * step + replica))
                assert len(reductions) == len(set(reductions)) * (step + 1), reductions
            check(stages[own], expected[own])
            if "find_unused_parameters" in each:
                assert stages[own].never.grad is None
            check_clipping(pipe, stages[own], expected, own)
            before = len(reductions)
            pipe.step(*tokens(0), train=False)
            assert len(reductions) == before


@case
def stages_that_share_a_replicated_or_sharded_module(job: Job) -> None:
    """The second stage of a rank is the first one over again: what it holds twice is reduced once per step."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for wrap in ("ddp", "fsdp"):
        torch.manual_seed(8)
        parts: list[nn.Module] = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(STAGES)]
        expected = copy.deepcopy(parts)

        def loss_fn(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return functional.mse_loss(y, targets)

        data = [(torch.randn(2 * M, 6), torch.randn(2 * M, 6)) for _ in range(3 * REPLICAS)]
        for batch, targets in data:
            alone([*expected, *expected[::-1]], loss_fn, list(batch.chunk(M)), list(targets.chunk(M)))
        for parameter in nn.ModuleList(expected).parameters():
            assert parameter.grad is not None
            parameter.grad /= REPLICAS
        stage = parts[own]
        wrapped: Any = (
            DistributedDataParallel(stage, process_group=group)
            if wrap == "ddp"
            else fully_shard(stage, mesh=both["data"])
        )
        for name in ("v_shape_2", "v_shape_reduce_2"):
            stage.zero_grad()
            compiled = job.compiled(name)
            pipe = compiled.Pipeline(
                [wrapped, wrapped], loss_fn, process_group=both.get_group("pipe"), timeout=PATIENCE
            )
            for step in range(3):
                pipe.step(*data[REPLICAS * step + replica])
            check(stage, expected[own])


@case
def reductions_where_the_schedule_has_them(job: Job) -> None:
    """A rank's second stage is reduced while its first one still runs, or not before that has ended; once per step."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")

    def every_layer(stage: nn.Module) -> nn.Module:
        for layer in stage.children():
            fully_shard(layer, mesh=both["data"])
        return stage

    ways: dict[str, Callable[[Any], nn.Module]] = {
        "ddp": lambda stage: DistributedDataParallel(stage, process_group=group),
        "unused": lambda stage: DistributedDataParallel(stage, process_group=group, find_unused_parameters=True),
        "fsdp": lambda stage: fully_shard(stage, mesh=both["data"]),
        "layers": every_layer,
        "layers and whole": lambda stage: fully_shard(every_layer(stage), mesh=both["data"]),
    }

    def local(stage: nn.Module) -> list[torch.Tensor]:
        found = [q.grad for q in stage.parameters() if q.grad is not None]
        return [(x.to_local() if isinstance(x, DTensor) else x).clone() for x in found]

    late = [("v_shape_reduce_late_2", way) for way in ("ddp", "layers and whole")]
    for name, way in [*(("v_shape_reduce_2", way) for way in ways), *late]:
        torch.manual_seed(9)
        stages: list[nn.Module] = [
            nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)),
            *(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8)) for _ in range(2)),
            nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5)),
        ]
        expected = on_all_data(stages, steps=2)
        compiled = job.compiled(name)
        first, last = (stages[s] for s in compiled.stages_of(own))
        seen: list[list[torch.Tensor]] = []

        def watch(
            module: nn.Module, given: Any, output: torch.Tensor, stage: nn.Module = last, seen: list[Any] = seen
        ) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: seen.append(local(stage)))

        first.register_forward_hook(watch)
        pipe = compiled.Pipeline(
            [ways[way](first), ways[way](last)],
            functional.cross_entropy,
            process_group=both.get_group("pipe"),
            timeout=PATIENCE,
        )
        for step in range(2):
            pipe.step(*tokens(10 * step + replica))
            early, final = seen[-1], local(last)
            done = len(early) == len(final) and all(map(torch.equal, early, final))
            assert done == (name == "v_shape_reduce_2"), (name, way, step)
        for s in compiled.stages_of(own):
            check(stages[s], expected[s])
        pipe.step(*tokens(0), train=False)


@case
def a_split_stage_that_is_reduced_where_the_schedule_says(job: Job) -> None:
    """After its last W; and FSDP2 needs no last backward for it then: a gradient comes back of one microbatch alone."""
    both = mesh()
    replica, own, group = both.get_local_rank("data"), both.get_local_rank("pipe"), both.get_group("data")
    for way in ("ddp", "fsdp", "apart"):
        torch.manual_seed(10)
        through = Apart(1)
        stages: list[nn.Module] = mlp(STAGES)
        if way == "apart":
            stages = [nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)), through]
        expected = copy.deepcopy(stages)
        for each in range(REPLICAS):
            if way == "apart":
                expected[1].calls = 0
            batch, targets = tokens(each)
            alone(expected, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        for parameter in nn.ModuleList(expected).parameters():
            assert parameter.grad is not None
            parameter.grad /= REPLICAS
        stage = stages[own]
        wrapped: Any = (
            DistributedDataParallel(stage, process_group=group)
            if way == "ddp"
            else fully_shard(stage, mesh=both["data"])
        )
        pipe = pipeline(job, "split_reduce", wrapped, both.get_group("pipe"))
        pipe.step(*tokens(replica))
        check(stage, expected[own])


@case
def sharded_stages(job: Job) -> None:
    """FSDP2: parameters in parts on the replicas of a stage, gradients reduced once per step."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    data = both["data"]

    def whole(stage: nn.Module) -> nn.Module:
        return fully_shard(stage, mesh=data)

    def only_linear(stage: nn.Sequential) -> nn.Module:
        for layer in stage:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=data)
        return stage

    def layers_and_whole(stage: nn.Sequential) -> nn.Module:
        for layer in stage:
            fully_shard(layer, mesh=data)
        return whole(stage)

    def compiled(stage: nn.Module) -> nn.Module:
        return whole(torch.compile(stage, backend="aot_eager"))

    ways: list[Callable[[Any], nn.Module]] = [whole, only_linear, layers_and_whole, compiled]
    for name in BOTH:
        for shard in ways:
            torch.manual_seed(2)
            stages = [
                nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8)),
                nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5)),
            ]
            expected = on_all_data(stages, steps=2)
            stage = stages[own]
            pipe = pipeline(job, name, shard(stage), both.get_group("pipe"))
            for step in range(2):
                with torch.inference_mode():
                    pipe.step(*tokens(10 * step + replica), train=False)
                pipe.step(*tokens(10 * step + replica))
                pipe.step(*tokens(10 * step + replica), train=False)
            sharded = [isinstance(q.grad, DTensor) for q in stage.parameters()]
            assert any(sharded)
            for parameter, done in zip(stage.parameters(), sharded, strict=True):
                if not done:  # outside of what is sharded it is the user's to reduce
                    dist.all_reduce(parameter.grad, group=both.get_group("data"))
                    parameter.grad /= REPLICAS
            check(stage, expected[own])
            check_clipping(pipe, stage, expected, own)


class Apart(nn.Module):
    """Trains on what comes in, and sends no gradient back, but for the microbatch that it is told."""

    def __init__(self, through: int | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)
        self.through = through
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y: torch.Tensor = self.inner(x if self.calls - 1 == self.through else x.detach())
        return y


class Wide(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.first(x)).tanh())


@case
def stages_in_parts(job: Job) -> None:
    """Tensor parallel: the two pipelines are one, whose ranks hold half of each matrix; they see the same data."""
    both = mesh()
    own = both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(3)
        stages: list[nn.Module] = [Wide(nn.Embedding(11, 6)), Wide(nn.Identity())]
        expected = copy.deepcopy(stages)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        stage = parallelize_module(stages[own], both["data"], plan)
        pipe = pipeline(job, name, stage, both.get_group("pipe"))
        for step in range(2):
            batch, targets = tokens(step)
            pipe.step(batch, targets)
            alone(expected, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        check(stage, expected[own])
        check_clipping(pipe, stage, expected, own)


@case
def compiled_stages(job: Job) -> None:
    both = mesh()
    own = both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(4)
        stages = mlp(STAGES)
        expected = copy.deepcopy(stages)
        stage = torch.compile(stages[own], backend="aot_eager")
        pipe = pipeline(job, name, stage, both.get_group("pipe"))
        for step in range(2):
            batch, targets = tokens(step)
            pipe.step(batch, targets)
            alone(expected, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        check(stages[own], expected[own])


@case
def autocast(job: Job) -> None:
    """A step under autocast is one process whose forwards and losses are, and what flows has its types."""
    both = mesh()
    own = both.get_local_rank("pipe")
    for name in BOTH:
        torch.manual_seed(5)
        stages = mlp(STAGES)
        for stage in stages:  # without, the boundary would be a tanh, which autocast leaves alone
            stage.append(nn.Linear(6 if stage is stages[0] else 5, 6))
        expected = copy.deepcopy(stages)
        pipe = pipeline(job, name, stages[own], both.get_group("pipe"))
        batch, targets = tokens(5)
        with torch.autocast("cpu", torch.bfloat16):
            losses = pipe.step(batch, targets)
        wanted = []
        for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                hidden = expected[0](x)
                assert hidden.dtype is torch.bfloat16
                loss = functional.cross_entropy(expected[1](hidden), y)
            (loss / M).backward()
            wanted.append(loss.detach())
        check(stages[own], expected[own], 0.0 if name == "whole" else 1e-2)
        if own == STAGES - 1:
            assert torch.equal(losses, torch.stack(wanted))


@case
def a_gradient_scaler(job: Job) -> None:
    """All ranks skip the step in which one has an infinite gradient, and none the others; one may have no gradients."""
    both = mesh()
    own = both.get_local_rank("pipe")
    torch.manual_seed(6)
    stages = mlp(STAGES)
    expected = copy.deepcopy(stages)
    pipe = pipeline(job, "whole", stages[own], both.get_group("pipe"))
    optimizer = torch.optim.SGD(stages[own].parameters(), lr=0.5)
    theirs = torch.optim.SGD(nn.ModuleList(expected).parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    scales = []
    for step, (broken, bare) in enumerate(((None, 2), (0, 2), (None, 2), (1, 2), (None, 2), (None, 0), (1, 0))):
        batch, targets = tokens(step)
        pipe.step(batch, targets, scale=scaler.get_scale())
        if bare == own:
            optimizer.zero_grad()
        if broken == own:
            next(stages[own].parameters()).grad.view(-1)[-1] = torch.nan
        pipe.unscale_(scaler, optimizer)
        pipe.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        if broken is None:
            alone(expected, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
            if bare == 0:
                expected[0].zero_grad()
            nn.utils.clip_grad_norm_(nn.ModuleList(expected).parameters(), 1.0)
            theirs.step()
            theirs.zero_grad()
    assert scales == [2.0**10, 2.0**9, 2.0**9, 2.0**8, 2.0**8, 2.0**9, 2.0**8]
    for ours, other in zip(stages[own].parameters(), expected[own].parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)


@case
def a_gradient_scaler_that_is_off(job: Job) -> None:
    """What is infinite on one rank is left to it, as nothing is scaled and no step skipped."""
    both = mesh()
    own = both.get_local_rank("pipe")
    torch.manual_seed(6)
    stage = mlp(STAGES)[own]
    pipe = pipeline(job, "whole", stage, both.get_group("pipe"))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    pipe.step(*tokens(0))
    if own:
        next(stage.parameters()).grad.fill_(torch.inf)
    pipe.unscale_(torch.amp.GradScaler("cpu", enabled=False), optimizer)
    assert all(q.grad.isfinite().all() for q in stage.parameters()) == (own == 0)


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("a fault made on purpose")


@case
def an_error_in_one_of_two_pipelines(job: Job) -> None:
    """Its ranks say which of all they are; the other goes on."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    of_two, own = job.rank % 2, job.rank // 2
    compiled = job.compiled("whole_2")
    stage = Raises() if job.rank == 3 else mlp(STAGES)[own]
    pipe = compiled.Pipeline(stage, functional.cross_entropy, process_group=groups[of_two], timeout=PATIENCE)
    if not of_two:
        pipe.step(*tokens(0))
        return
    with pytest.raises(compiled.PipelineError, match=r"rank 1 \(global rank 3\) failed at F of stage 1") as found:
        pipe.step(*tokens(0))
    assert str(found.value).endswith(f"this is rank {own} (global rank {job.rank})")


@case
def an_option_that_one_rank_has_wrong(job: Job) -> None:
    """Its pipeline's ranks say which of all it is; the other pipeline is made."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    compiled = job.compiled("whole_2")

    def make(device: str) -> None:
        compiled.Pipeline(nn.Identity(), process_group=groups[job.rank % 2], device=device, timeout=PATIENCE)

    if job.rank % 2 == 0:
        make("cpu")
        return
    with pytest.raises(
        compiled.PipelineError, match=r"rank 1 \(global rank 3\) failed at making the pipeline: Runtime"
    ):
        make("nonsense" if job.rank == 3 else "cpu")


@case
def a_static_graph(job: Job) -> None:
    both = mesh()
    own = both.get_local_rank("pipe")
    stage = DistributedDataParallel(nn.Linear(4, 4), process_group=both.get_group("data"), static_graph=True)
    compiled = job.compiled("whole_2")
    with pytest.raises(
        compiled.PipelineError, match=r"rank 1( \(global rank 3\))?: DistributedDataParallel with static_graph=True"
    ):
        compiled.Pipeline(stage if own else nn.Identity(), process_group=both.get_group("pipe"), timeout=PATIENCE)


@case
def the_old_fully_sharded(job: Job) -> None:
    both = mesh()
    own = both.get_local_rank("pipe")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stage = FullyShardedDataParallel(nn.Linear(4, 4), both.get_group("data"), device_id=torch.device("cpu"))
    compiled = job.compiled("whole_2")
    with pytest.raises(compiled.PipelineError, match=r"rank 1( \(global rank 3\))?: FullyShardedDataParallel reduces"):
        compiled.Pipeline(stage if own else nn.Identity(), process_group=both.get_group("pipe"), timeout=PATIENCE)
