"""Steps, losses and parameters as people use them, on four ranks over gloo, each against one process."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
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


@case
def three_steps_before_one_of_the_optimizer(job: Job) -> None:
    for name in BOTH:
        torch.manual_seed(1)
        stages = mlp(P)
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages)
        for step in range(3):
            batch, targets = tokens(step)
            pipe.step(batch, targets)
            alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference, 0.0 if name == "whole" else 1e-5)


@case
def threads_end_with_their_pipeline(job: Job) -> None:
    for name in BOTH:
        before = set(threading.enumerate())
        pipe = job.pipeline(name, mlp(P))
        pipe.step(*tokens(0))
        started = [each for each in set(threading.enumerate()) - before if each.name.startswith("pipedsl")]
        assert started
        del pipe
        gc.collect()
        for each in started:
            each.join(60)
            assert not each.is_alive(), each.name


class Scores(nn.Module):
    """A head whose weight may be the embedding's."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.norm = nn.LayerNorm(weight.shape[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.norm(x), self.weight)


def tied_stages(count: int) -> list[nn.Module]:
    stages: list[nn.Module] = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
    embedding = nn.Embedding(11, 6)
    stages[0] = nn.Sequential(embedding, nn.Linear(6, 6))
    stages[-1] = Scores(embedding.weight)
    return stages


def next_tokens(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch, _ = tokens(seed)
    return batch, batch.roll(1)


@case
def tied_on_one_rank(job: Job) -> None:
    torch.manual_seed(2)
    stages = tied_stages(2 * P)
    reference = copy.deepcopy(stages)
    pipe = job.pipeline("v_shape", stages)
    for step in range(2):
        batch, targets = next_tokens(step)
        pipe.step(batch, targets)
        alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
    compare(pipe, stages, reference)
    norm = pipe.clip_grad_norm_(0.01)
    theirs = nn.utils.clip_grad_norm_(nn.ModuleList(reference).parameters(), 0.01)
    torch.testing.assert_close(norm, theirs)
    compare(pipe, stages, reference)


@case
def tied_across_ranks(job: Job) -> None:
    """Each owner has a copy; every copy gets the sum, to the bit, and it counts once in the norm."""
    for name in BOTH:
        torch.manual_seed(3)
        stages = tied_stages(P)
        reference = copy.deepcopy(stages)
        stages[-1].weight = nn.Parameter(stages[-1].weight.detach().clone())
        own = {0: stages[0][0].weight, P - 1: stages[-1].weight}
        pipe = job.pipeline(name, stages, tied={"embedding": own[job.rank]} if job.rank in own else None)
        optimizer = torch.optim.Adam(nn.ModuleList(pipe.mine).parameters(), lr=0.1)
        theirs = torch.optim.Adam(nn.ModuleList(reference).parameters(), lr=0.1)
        for step in range(4):
            batch, targets = next_tokens(step)
            pipe.step(batch, targets)
            alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
            compare(pipe, stages, reference, 1e-4)
            if step % 2:  # gradients of two steps add up
                norm = pipe.clip_grad_norm_(0.5)
                expected = nn.utils.clip_grad_norm_(nn.ModuleList(reference).parameters(), 0.5)
                torch.testing.assert_close(norm, expected, rtol=1e-4, atol=0)
                optimizer.step()
                theirs.step()
                optimizer.zero_grad()
                theirs.zero_grad()
        copies: list[Any] = [None] * P
        dist.all_gather_object(copies, own[job.rank].detach() if job.rank in own else None)
        assert torch.equal(copies[0], copies[P - 1])


class Sharing(nn.Module):
    """Uses its weight, which other stages may share, in the calls that it is told."""

    def __init__(self, weight: nn.Parameter, *calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.weight = weight
        self.at = calls
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).tanh()
        self.calls += 1
        return functional.linear(y, self.weight) if self.calls - 1 in self.at else y


@case
def tied_and_not_used_everywhere(job: Job) -> None:
    """Copies that no rank has used keep None, as one process's do; where one rank has, all get its gradient."""
    always, later = tuple(range(3 * M)), tuple(range(M, 2 * M))
    uses: dict[str, dict[int, tuple[int, ...]]] = {
        "nowhere": {},
        "by the first": {0: always},
        "by the last": {P - 1: always},
        "by the one between, later": {1: later},
        "at first": {0: (0,), 1: (1,)},
    }
    for name in BOTH:
        for kind, at in uses.items():
            torch.manual_seed(17)
            weight = nn.Parameter(torch.randn(4, 4))
            reference: list[nn.Module] = [nn.Linear(4, 4) for _ in range(P)]
            for stage in (0, 1, P - 1):
                reference[stage] = Sharing(weight, *at.get(stage, ()))
            stages = [copy.deepcopy(each) for each in reference]  # one by one: each has a copy of the weight
            mine = stages[job.rank]
            tied = {"weight": mine.weight} if isinstance(mine, Sharing) else None
            pipe = replace(job, group=dist.new_group()).pipeline(name, stages, functional.mse_loss, tied=tied)
            for step in range(3):
                batch, targets = torch.randn(8, 4), torch.randn(8, 4)
                pipe.step(batch, targets)
                alone(reference, functional.mse_loss, batch.chunk(M), targets.chunk(M))
                compare(pipe, stages, reference)
                if step == 1 and kind == "at first":  # gradients of several steps add up, until they are cleared
                    nn.ModuleList(stages).zero_grad()
                    nn.ModuleList(reference).zero_grad()
            assert (weight.grad is None) == (kind in ("nowhere", "at first"))


@case
def tied_copies_of_two_kinds(job: Job) -> None:
    compiled = job.compiled("whole")
    sizes = {0: 3, 2: 4}
    tied = {"x": nn.Parameter(torch.zeros(sizes[job.rank]))} if job.rank in sizes else None
    says = r"tied parameter 'x' is float32 \[3\] on rank 0, but float32 \[4\] on rank 2"
    with pytest.raises(compiled.PipelineError, match=says):
        compiled.Pipeline(nn.ParameterDict(tied), tied=tied, timeout=PATIENCE, process_group=job.group)


@case
def a_tied_name_with_one_owner(job: Job) -> None:
    """As where a rank has written it in another way."""
    compiled = job.compiled("whole")
    names = {0: "embedding", 1: "embeding", 3: "head"}
    tied = {names[job.rank]: nn.Parameter(torch.zeros(3))} if job.rank in names else None
    says = r"only rank 0 has a tied parameter 'embedding' \(.*'embedding', 'embeding', 'head'\).*; only rank 1 has "
    with pytest.raises(compiled.PipelineError, match=says):
        compiled.Pipeline(nn.ParameterDict(tied), tied=tied, timeout=PATIENCE, process_group=job.group)


@case
def tied_copies_that_begin_apart(job: Job) -> None:
    """Noticed before anything is computed with them, unless what is loaded first makes them equal."""
    others = {
        "as made": "tied parameter 'embedding' has other values on rank 3 than on rank 0",
        "frozen": "tied parameter 'embedding' has other values on rank 3 than on rank 0",
        "loaded": "",
        "loaded apart": "tied parameter 'embedding' has other values on rank 3 than on rank 0",
    }
    for kind, says in others.items():
        torch.manual_seed(3)
        stages = tied_stages(P)
        whole = nn.Sequential(*stages)
        stages[-1].weight = nn.Parameter(stages[-1].weight.detach() + 1)
        own = {0: stages[0][0].weight, P - 1: stages[-1].weight}
        for weight in own.values():
            weight.requires_grad = kind != "frozen"
        tied = {"embedding": own[job.rank]} if job.rank in own else None
        pipe = replace(job, group=dist.new_group()).pipeline("whole", stages, tied=tied)
        batch, targets = next_tokens(0)
        pipe.step(batch, targets, train=False)
        state = {"model": whole.state_dict()}
        if kind.startswith("loaded"):
            state["model"]["0.0.weight"] = state["model"][f"{P - 1}.weight"].clone()
            pipe.load_state_dict(whole, state)
            pipe.step(batch, targets)
        if kind == "loaded apart":
            state["model"]["0.0.weight"] = -state["model"]["0.0.weight"]
            pipe.load_state_dict(whole, state)
        if says:
            nn.ModuleList(stages).zero_grad()
            with pytest.raises(RuntimeError) as caught:
                pipe.step(batch, targets)
            assert says in str(caught.value)
            assert "load one state into both, or broadcast it, before the first step" in str(caught.value)
            assert all(q.grad is None for stage in stages for q in stage.parameters())
        else:
            pipe.step(batch, targets)


@case
def a_parameter_tied_by_two_names(job: Job) -> None:
    compiled = job.compiled("whole")
    weight = nn.Parameter(torch.zeros(3))
    tied = {"x": weight, "y": weight if job.rank == 2 else nn.Parameter(torch.zeros(3))}
    with pytest.raises(compiled.PipelineError, match="rank 2: one Parameter is tied by two names, 'x' and 'y'"):
        compiled.Pipeline(nn.ParameterDict(tied), tied=tied, timeout=PATIENCE, process_group=job.group)


@case
def norms_of_all_kinds(job: Job) -> None:
    kinds = [(1.0, torch.float32), (2.0, torch.float32), (3.0, torch.float64), (float("inf"), torch.float32)]
    for norm_type, dtype in kinds:
        torch.manual_seed(4)
        stages = [stage.to(dtype) for stage in mlp(P)]
        reference = copy.deepcopy(stages)
        pipe = job.pipeline("whole", stages)
        batch, targets = tokens(0)
        pipe.step(batch, targets)
        alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        for most in (1e9, 0.01):  # above what is there, and below
            norm = pipe.clip_grad_norm_(most, norm_type)
            expected = nn.utils.clip_grad_norm_(nn.ModuleList(reference).parameters(), most, norm_type)
            torch.testing.assert_close(norm, expected)
            compare(pipe, stages, reference, 0.0 if most > 1 else 1e-5)


@case
def ignored_tokens_unevenly_spread(job: Job) -> None:
    """The mean over all tokens that count, though one microbatch has none of them."""

    def summed(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(y, target, ignore_index=-100, reduction="sum")

    for name in BOTH:
        torch.manual_seed(7)
        stages = mlp(P)
        reference = nn.Sequential(*copy.deepcopy(stages))
        pipe = job.pipeline(name, stages, summed, count_fn=lambda targets: (targets != -100).sum())
        batch, targets = tokens(7)
        targets[[0, 3, 4, 5]] = -100
        losses = pipe.step(batch, targets)
        whole = functional.cross_entropy(reference(batch), targets, ignore_index=-100)
        whole.backward()
        compare(pipe, stages, list(reference))
        if job.rank == P - 1:
            torch.testing.assert_close(losses.mean(), whole.detach())
            assert float(losses[2]) == 0.0


@case
def nothing_but_ignored_tokens(job: Job) -> None:
    pipe = job.pipeline("whole", mlp(P), count_fn=lambda targets: (targets != -100).sum())
    with pytest.raises(RuntimeError, match="count_fn must return a positive number for the batch's targets, not 0"):
        pipe.step(tokens(0)[0], torch.full((2 * M,), -100))


@case
def a_scaled_loss(job: Job) -> None:
    torch.manual_seed(8)
    stages = mlp(P)
    reference = copy.deepcopy(stages)
    pipe = job.pipeline("split", stages)
    batch, targets = tokens(8)
    losses = pipe.step(batch, targets, scale=1024.0)
    expected = alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
    for stage in reference:
        for parameter in stage.parameters():
            assert parameter.grad is not None
            parameter.grad *= 1024
    compare(pipe, stages, reference)
    if job.rank == P - 1:
        torch.testing.assert_close(losses, expected)


def train(job: Job, name: str, between: Callable[[Any], None]) -> list[torch.Tensor]:
    """Parameters after two steps, with something in between."""
    torch.manual_seed(9)
    stages = mlp(P)
    for stage in stages:
        stage.append(nn.Dropout(0.3))
    pipe = job.pipeline(name, stages)
    optimizer = torch.optim.AdamW(nn.ModuleList(pipe.mine).parameters(), lr=0.1)
    torch.manual_seed(10 + job.rank)
    for step in range(2):
        pipe.step(*tokens(step))
        optimizer.step()
        optimizer.zero_grad()
        between(pipe)
    return [q.detach().clone() for q in nn.ModuleList(pipe.mine).parameters()]


@case
def evaluation_changes_nothing(job: Job) -> None:
    def evaluate(pipe: Any) -> None:
        for module in pipe.mine:
            module.eval()
        outputs = pipe.step(tokens(5)[0], train=False)
        losses = pipe.step(*tokens(5), train=False)
        if job.rank == P - 1:
            assert not any(each.requires_grad for each in outputs)
            expected = [functional.cross_entropy(y, t) for y, t in zip(outputs, tokens(5)[1].chunk(M), strict=True)]
            torch.testing.assert_close(losses, torch.stack(expected))
        for module in pipe.mine:
            module.train()

    for name in BOTH:
        undisturbed = train(job, name, lambda pipe: None)
        assert all(map(torch.equal, undisturbed, train(job, name, evaluate)))
