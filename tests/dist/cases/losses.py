"""Losses of sharded stages that depend on what a stage returns in some microbatches only, on each replica in others.

Ranks are those of `composing`. All blocks are of one size: where replicas gather another one each, nothing is noticed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.dist.cases.composing import REPLICAS, check, mesh, pipeline
from tests.support.job import BOTH, Case, Job, M, tokens
from tests.support.worker import PATIENCE

CASES: dict[str, Case] = {}
IGNORED = ((0,), (1,))  # by replica: the microbatches of a step in which the loss does not depend on the stage


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Tail(nn.Module):
    """Three blocks, of which the last two give an output each."""

    def __init__(self, gives: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.gives = gives

    def forward(self, x: torch.Tensor) -> Any:
        y = self.b(self.a(x))
        return self.gives(y, self.c(y))


Loss = Callable[[Any, torch.Tensor, bool], torch.Tensor]  # of an output, targets, and whether to depend on the output


class Ignoring(nn.Module):
    """A loss that is told in which microbatches of a step it does not depend on the stage; with a parameter, or not."""

    def __init__(self, loss: Loss, *, learns: bool) -> None:
        super().__init__()
        self.loss = loss
        self.scale = nn.Parameter(torch.ones(())) if learns else 1.0
        self.ignored: Sequence[int] = ()
        self.calls = 0

    def forward(self, y: Any, targets: torch.Tensor) -> torch.Tensor:
        uses = self.calls % M not in self.ignored
        self.calls += 1
        return self.scale * self.loss(y, targets, uses)


def compare(
    job: Job,
    name: str,
    gives: Callable[[torch.Tensor, torch.Tensor], Any],
    loss: Loss,
    *,
    ignored: Sequence[Sequence[int]] = IGNORED,
    learns: bool = False,
    whole: bool = True,
    parts: bool = True,
    before: bool = False,
) -> None:
    """Two steps against one process. `whole`, `parts`: what of the last stage is sharded; `before`: it has run once."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    torch.manual_seed(23)
    stages: list[nn.Module] = [nn.Embedding(11, 6), Tail(gives)]
    mine = Ignoring(loss, learns=learns)
    expected, theirs = copy.deepcopy(stages), copy.deepcopy(mine)
    for step, each in itertools.product(range(2), range(REPLICAS)):
        theirs.ignored, theirs.calls = ignored[each], 0
        batch, targets = tokens(10 * step + each)
        for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
            one = theirs(expected[1](expected[0](x)), y)
            if one.requires_grad:
                (one / M / REPLICAS).backward()
    mine.ignored = ignored[replica]
    stage = stages[own]
    for part in stage.children() if parts else ():
        fully_shard(part, mesh=both["data"])
    if whole or not own:
        fully_shard(stage, mesh=both["data"])
    if before and own:
        with torch.no_grad():
            stage(torch.ones(2, 6))
    group = both.get_group("data")
    its = DistributedDataParallel(mine, process_group=group, find_unused_parameters=True) if learns else mine
    pipe = pipeline(job, name, stage, both.get_group("pipe"), its)
    for step in range(2):
        pipe.step(*tokens(10 * step + replica))
    check(stage, expected[own])
    for ours, other in zip(stage.parameters(), expected[own].parameters(), strict=True):
        assert (ours.grad is None) == (other.grad is None)
    if learns and own:
        check(mine, theirs)


def of_first(y: Any, targets: torch.Tensor, uses: bool) -> torch.Tensor:
    return functional.cross_entropy(y, targets) if uses else y.detach().mean()


@case
def a_loss_that_trains_without_its_stage(job: Job) -> None:
    """It has a gradient for its own parameter where it has none for the stage. Where it never has, there is none."""
    for name, whole in itertools.product(BOTH, (True, False)):
        compare(job, name, lambda b, c: c, of_first, learns=True, whole=whole)
    every = (tuple(range(M)),) * REPLICAS
    for gives in (lambda b, c: c, lambda b, c: [b, c]):
        compare(job, "whole", gives, lambda y, targets, _: y[0].detach().mean(), ignored=every, learns=True)


@dataclass
class Output:
    logits: torch.Tensor
    hidden: Any = None


@case
def outputs_in_objects(job: Job) -> None:
    """Which torch does not look into."""

    def loss(y: Any, targets: torch.Tensor, uses: bool) -> torch.Tensor:
        return functional.cross_entropy(y.logits, targets) if uses else torch.zeros(())

    kinds: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
        lambda b, c: Output(c),
        lambda b, c: SimpleNamespace(logits=c, hidden={"b": Output(b)}, size=c.shape),
    ]
    for gives, whole in itertools.product(kinds, (True, False)):
        compare(job, "whole", gives, loss, whole=whole)


@case
def outputs_that_are_not_found(job: Job) -> None:
    """As in what a function remembers. What the other replica is to do is not known then, so it is refused."""
    both = mesh()
    replica, own = both.get_local_rank("data"), both.get_local_rank("pipe")
    stage = [nn.Embedding(11, 6), Tail(lambda b, c: lambda: c)][own]
    fully_shard(stage, mesh=both["data"])
    compiled = job.compiled("whole_2")

    def loss(y: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(y(), targets)

    pipe = compiled.Pipeline(stage, loss, process_group=both.get_group("pipe"), timeout=PATIENCE)
    with pytest.raises(compiled.PipelineError, match="on no tensor that was found in what it returned"):
        pipe.step(*tokens(replica))


@case
def a_loss_that_writes_to_views(job: Job) -> None:
    """What it depends on is behind other nodes then than when the stage returned it."""

    def loss(y: dict[str, torch.Tensor], targets: torch.Tensor, uses: bool) -> torch.Tensor:
        total = functional.cross_entropy(y["b"].mul_(2.0), targets)
        return total + functional.cross_entropy(y["c"].mul_(2.0), targets) if uses else total

    def alone(y: torch.Tensor, targets: torch.Tensor, uses: bool) -> torch.Tensor:
        return of_first(y.mul_(2.0) if uses else y, targets, uses)

    for name in BOTH:
        compare(job, name, lambda b, c: {"b": (b + 1)[:, :], "c": (c + 1)[:, :]}, loss)
        compare(job, name, lambda b, c: (c + 1)[:, :], alone)


@case
def a_forward_before_the_pipeline_is_made(job: Job) -> None:
    """It leaves the parameters whole of what is sharded as one, and these know of no replicas."""

    def loss(y: Sequence[torch.Tensor], targets: torch.Tensor, uses: bool) -> torch.Tensor:
        return sum((of_first(each, targets, True) for each in y), torch.zeros(())) if uses else torch.zeros(())

    for name in BOTH:
        compare(job, name, lambda b, c: [b, c], loss, ignored=((M - 1,), (0,)), parts=False, before=True)
