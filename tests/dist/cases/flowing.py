"""What flows between stages, and what stays behind, on four ranks over gloo, each against one process."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.support.job import BOTH, Case, Job, M, compare, tokens
from tests.support.worker import PATIENCE, alone, mlp

P = 4
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Masked(nn.Module):
    """Wants a mask besides its input, and takes a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, power: int = 1) -> torch.Tensor:
        return self.inner(x) * mask.unsqueeze(1) ** power


@case
def keyword_inputs_for_every_stage(job: Job) -> None:
    for name in BOTH:
        torch.manual_seed(5)
        stages: list[nn.Module] = [Masked(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), Masked()]
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages, functional.mse_loss)
        batch, targets, mask = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8)
        ways: list[Any] = [
            {"mask": mask, "power": 2},
            [{"mask": part, "power": 2} for part in mask.chunk(M)],
        ]
        for extras in ways:
            losses = pipe.step(batch, targets, extras=extras)
            for stage in reference:
                stage.zero_grad()
            expected = []
            for x, y, part in zip(batch.chunk(M), targets.chunk(M), mask.chunk(M), strict=True):
                for stage in reference:
                    x = stage(x, part, power=2) if isinstance(stage, Masked) else stage(x)
                loss = functional.mse_loss(x, y)
                (loss / M).backward()
                expected.append(loss.detach())
            if job.rank == P - 1:
                torch.testing.assert_close(losses, torch.stack(expected))
            compare(pipe, stages, reference)
            for stage in stages:
                stage.zero_grad()


@case
def a_skip_from_the_first_stage_to_the_last(job: Job) -> None:
    """Stages in between hand it on; its gradient comes back the same way."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.inner(x)
            return {"x": y, "skip": y * 2, "depth": 0, "none": None}

    class Between(First):
        def forward(self, x: Any) -> Any:
            return {**x, "x": self.inner(x["x"]).tanh(), "depth": x["depth"] + 1}

    class Last(First):
        def forward(self, x: Any) -> Any:
            assert x["depth"] == P - 2
            return self.inner(x["x"]) * x["skip"]

    for name in BOTH:
        torch.manual_seed(6)
        stages: list[nn.Module] = [First(), Between(), Between(), Last()]
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages, functional.mse_loss)
        batch, targets = torch.randn(8, 4), torch.randn(8, 4)
        pipe.step(batch, targets)
        alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference)


class Detached(nn.Module):
    """Uses its input without its gradient, in the microbatches that it is told."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.at = calls
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x.detach() if self.calls in self.at else x).tanh()
        self.calls += 1
        return y


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x), self.unused(x)


class First(nn.Module):
    """Uses one of two, in the microbatches that it is told, or in all."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.at = calls
        self.calls = 0

    def forward(self, x: Any) -> torch.Tensor:
        self.calls += 1
        return self.inner(x[0] if not self.at or self.calls - 1 in self.at else x[0] + x[1])


@case
def stages_that_use_no_gradient(job: Job) -> None:
    """What no gradient comes back for has none, instead of zeros, which optimizers would take for one."""
    always, steps = tuple(range(3 * M)), 3
    cases: dict[str, Callable[[], list[nn.Module]]] = {
        "in the middle": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), Detached(*always), nn.Linear(4, 4)],
        "the first one": lambda: [nn.Linear(4, 4), Detached(*always), nn.Linear(4, 4), nn.Linear(4, 4)],
        "one of two": lambda: [nn.Linear(4, 4), Pair(), First(), nn.Linear(4, 4)],
        "at first": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), Detached(*range(M)), nn.Linear(4, 4)],
        "later": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), Detached(*range(M, 3 * M)), nn.Linear(4, 4)],
        "in one step": lambda: [nn.Linear(4, 4), Pair(), First(*range(M, 2 * M)), nn.Linear(4, 4)],
        "now and then": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), Detached(0, 3, 6), nn.Linear(4, 4)],
    }
    for name, (kind, make) in itertools.product(BOTH, cases.items()):
        torch.manual_seed(14)
        stages = make()
        reference = copy.deepcopy(stages)
        # By the group every other time, else through memory.
        shared = (name == "whole") == (kind in ("later", "now and then"))
        group = replace(job, group=dist.new_group())
        pipe = group.pipeline(name, stages, functional.mse_loss, shared_memory=shared)
        for _ in range(steps):
            nn.ModuleList([*stages, *reference]).zero_grad()
            batch, targets = torch.randn(8, 4), torch.randn(8, 4)
            pipe.step(batch, targets)
            alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
            compare(pipe, stages, reference)


class Bare(nn.Module):
    """Returns something without elements besides."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.bare = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return {"bare": self.bare(x)[:0], "x": self.inner(x)}


class UsesBare(nn.Module):
    """Makes use of what has no elements in some calls, and in some of nothing else."""

    def __init__(self, bare: Sequence[int], alone: Sequence[int] = (), hands_on: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.bare, self.alone, self.hands_on = bare, alone, hands_on
        self.calls = -1

    def forward(self, v: Any) -> Any:
        self.calls += 1
        y = self.inner(v["x"].detach() if self.calls in self.alone else v["x"])
        y = y + v["bare"].sum() if self.calls in self.bare else y
        return {"bare": v["bare"] * 2, "x": y} if self.hands_on else y


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Severed(nn.Module):
    """Takes part in the graph, and has no gradient to give."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(NoWayBack.apply(x))


@case
def outputs_that_have_no_elements_or_no_gradient(job: Job) -> None:
    """Where one process has zeros there are zeros, and None where it has None."""
    every = range(2 * M)
    cases: dict[str, Callable[[], list[nn.Module]]] = {
        "never used": lambda: [nn.Linear(4, 4), Bare(), UsesBare(()), nn.Linear(4, 4)],
        "used": lambda: [nn.Linear(4, 4), Bare(), UsesBare(every), nn.Linear(4, 4)],
        "used in one step": lambda: [nn.Linear(4, 4), Bare(), UsesBare(range(M, 2 * M)), nn.Linear(4, 4)],
        "used alone": lambda: [nn.Linear(4, 4), Bare(), UsesBare(every, every), nn.Linear(4, 4)],
        "now and then": lambda: [nn.Linear(4, 4), Bare(), UsesBare((1, 6), (1, 2)), nn.Linear(4, 4)],
        "later": lambda: [Bare(), UsesBare((), (), True), UsesBare((), (), True), UsesBare(every)],
        "no further": lambda: [Bare(), UsesBare((2,), (), True), UsesBare((), (), True), UsesBare(())],
        "severed": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), Severed(), nn.Linear(4, 4)],
    }
    for name, (kind, make) in itertools.product(BOTH, cases.items()):
        torch.manual_seed(15)
        stages = make()
        reference = copy.deepcopy(stages)
        group = replace(job, group=dist.new_group())
        pipe = group.pipeline(name, stages, functional.mse_loss, shared_memory=(name == "whole") == (kind > "o"))
        for _ in range(2):
            nn.ModuleList([*stages, *reference]).zero_grad()
            batch, targets = torch.randn(8, 4), torch.randn(8, 4)
            pipe.step(batch, targets)
            alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
            compare(pipe, stages, reference)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


def sequence(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(2 * M, length, 4, generator=generator), torch.randn(2 * M, length, 4, generator=generator)


@case
def sequences_of_another_length(job: Job) -> None:
    """Refused on every rank, and accepted where every rank says so before."""
    torch.manual_seed(11)
    for name in BOTH:
        stages: list[nn.Module] = [Sequences() for _ in range(P)]
        reference = copy.deepcopy(stages)
        pipe = replace(job, group=dist.new_group()).pipeline(name, stages, functional.mse_loss)
        for length in (5, 7, 3, 5):
            for train in (True, False):
                batch, targets = sequence(length)
                pipe.step(batch, targets, train=train)
            pipe.renew_shapes()
            alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference)
        pipe.step(*sequence(5))
        with pytest.raises(RuntimeError) as caught:
            pipe.step(*sequence(6))
        said = str(caught.value)
        assert "stage 0 returned (float32 [2, 6, 4] with gradient) for microbatch 0, but the ranks agreed on" in said
        assert "(float32 [2, 5, 4] with gradient) at the first step; call renew_shapes() on every rank" in said


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@case
def nothing_piles_up(job: Job) -> None:
    """No more tensors are alive after thirty steps than after three, and no hook has come to any parameter."""
    for name in BOTH:
        pipe = job.pipeline(name, mlp(P))
        counts = []
        for steps in (3, 27):
            for step in range(steps):
                pipe.step(*tokens(step))
                pipe.step(*tokens(step), train=False)
            counts.append(live_tensors())
        assert counts[1] <= counts[0], counts
        hooked = [q for module in pipe.mine for q in module.parameters() if q._backward_hooks]
        assert not hooked
        del pipe


def most_receives(job: Job, name: str, m: int) -> int:
    """The most bytes that are held at a time by what messages are received into, by the group, in a warm step."""
    compiled = job.compiled(name)
    compiled = job.compiled(name)
    mine, group = mlp(P)[job.rank], job.group
    pipe = compiled.Pipeline(mine, functional.cross_entropy, timeout=PATIENCE, process_group=group, shared_memory=False)
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    most = 0
    post = compiled.TorchWire.irecv

    def note(wire: Any, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        nonlocal most
        alive[tensor.untyped_storage().data_ptr()] = tensor
        most = max(most, sum(each.numel() * each.element_size() for each in alive.values()))
        return post(wire, tensor, peer, tag)

    compiled.TorchWire.irecv = note
    batch, targets = tokens(0, 2 * m)
    for _ in range(3):
        pipe.step(batch, targets)
    return most


@case
def receive_buffers_do_not_grow_with_m(job: Job) -> None:
    few, many = most_receives(job, "whole", M), most_receives(job, "whole_128", 128)
    assert 0 < many <= 2 * few, (few, many)


class ViewOfInput(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.view(x.shape[0], 2, 2), x


class ViewOfParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Any) -> Any:
        view, whole = x
        return self.weight[:2], view.flatten(1) + whole


class AddPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> torch.Tensor:
        return self.inner(x[0] * x[1])


@case
def outputs_that_are_views(job: Job) -> None:
    for name in BOTH:
        torch.manual_seed(12)
        stages: list[nn.Module] = [nn.Linear(4, 4), ViewOfInput(), ViewOfParameter(), AddPair()]
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages, functional.mse_loss)
        for _ in range(2):
            batch, targets = torch.randn(8, 4), torch.randn(8, 4)
            pipe.step(batch, targets)
            alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference)


@case
def losses_and_outputs_by_microbatch(job: Job) -> None:
    """The last stage runs the last microbatch first."""
    torch.manual_seed(13)
    stages = mlp(P)
    reference = copy.deepcopy(stages)
    pipe = job.pipeline("last_first", stages)
    batch, targets = tokens(13)
    outputs = pipe.step(batch, train=False)
    losses = pipe.step(batch, targets)
    expected = alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
    compare(pipe, stages, reference, 0.0)
    if job.rank == P - 1:
        assert torch.equal(losses, expected)
        assert torch.equal(torch.cat(outputs), nn.Sequential(*reference)(batch))


@case
def names_in_the_profiler(job: Job) -> None:
    pipe = job.pipeline("split", mlp(P))
    pipe.step(*tokens(0))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        pipe.step(*tokens(1))
    names = [event.name for event in profiled.events()]
    for kind in "FIW":
        for microbatch in range(M):
            assert names.count(f"{kind} s{job.rank} mb{microbatch}") == 1
    if job.rank:
        assert f"wait F s{job.rank} mb0" in names


@case
def a_step_as_it_ran_on_all_ranks(job: Job) -> None:
    pipe = job.pipeline("split", mlp(P), trace=True)
    pipe.step(*tokens(0))
    timeline = pipe.timeline()
    slack = sum(timeline.errors)
    at = {event.label: event for events in timeline.ranks for event in events}
    assert len(at) == 3 * P * M
    for stage in range(1, P):
        for microbatch in range(M):
            assert at[f"F s{stage - 1} mb{microbatch}"].end <= at[f"F s{stage} mb{microbatch}"].start + slack
            assert at[f"I s{stage} mb{microbatch}"].end <= at[f"I s{stage - 1} mb{microbatch}"].start + slack
