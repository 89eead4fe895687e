"""Training that stops and goes on, on as many ranks or on others, to the bit as if it had not stopped."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional

from tests.support.job import Case, Job, tokens
from tests.support.worker import PATIENCE

PARTS = 4
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6, momentum=0.3)  # has buffers, of two types
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x + self.norm(self.inner(x)).tanh() / self.seen

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Again(nn.Module):
    """Runs twice where it is wrapped, and then has other names in the model than in what is saved of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.scale = torch.nn.Buffer(torch.rand(()))
        self.mark = float(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).tanh() * self.scale

    def get_extra_state(self) -> dict[str, float]:
        return {"mark": self.mark}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.mark = state["mark"]


class Model(nn.Module):
    """What people have before they cut it into stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(checkpoint_wrapper(Again()) if s % 2 else Layer() for s in range(PARTS))
        self.head = nn.Linear(6, 5)

    def stages(self, count: int) -> list[nn.Module]:
        each = PARTS // count
        stages = [nn.Sequential(*self.layers[s * each : (s + 1) * each]) for s in range(count)]
        stages[0].insert(0, self.embed)
        stages[-1].append(self.head)
        return list(stages)


class Fused(nn.Module):
    """Saves its weight in parts, as many do for compatibility."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self._register_state_dict_hook(self.split)
        self.register_load_state_dict_pre_hook(self.join)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.inner(x).chunk(2, -1)
        return x + first.tanh() * second

    @staticmethod
    def split(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for kind in ("weight", "bias"):
            parts = state.pop(f"{prefix}inner.{kind}").chunk(2)
            state[f"{prefix}first.{kind}"], state[f"{prefix}second.{kind}"] = parts

    @staticmethod
    def join(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for kind in ("weight", "bias"):
            names = [f"{prefix}{each}.{kind}" for each in ("first", "second")]
            if state.keys() >= set(names):
                state[f"{prefix}inner.{kind}"] = torch.cat([state.pop(name) for name in names])


class Tied(nn.Module):
    """Its embedding is its head, too; on two ranks the second has a copy."""

    def __init__(self, untie: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(checkpoint_wrapper(Fused()) if s else Fused() for s in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = nn.Parameter(self.embed.weight.detach().clone()) if untie else self.embed.weight

    def stages(self, count: int) -> list[nn.Module]:
        parts = [nn.Sequential(self.embed, self.layers[0]), nn.Sequential(self.layers[1], self.head)]
        return list(parts) if count > 1 else [nn.Sequential(*parts)]


class Training:
    """One rank's part of the training of a model on the ranks of a group."""

    def __init__(self, job: Job, ranks: int, group: Any, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model()
        self.group = group
        stages = self.model.stages(ranks)
        self.stage = stages[job.rank]
        for other in stages:
            if other is not self.stage:  # as where the whole model does not fit on a rank
                other.to("meta")
        self.pipe = job.compiled("whole" if ranks == PARTS else f"whole_{ranks}").Pipeline(
            self.stage, functional.cross_entropy, process_group=group, timeout=PATIENCE
        )
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=0.1)

    def run(self, steps: range) -> None:
        for step in steps:
            self.pipe.step(*tokens(step))
            self.pipe.clip_grad_norm_(1e6)  # without effect
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        state = self.pipe.state_dict(self.model, self.optimizer)
        with redirect_stderr(io.StringIO()):
            dcp.save(state, checkpoint_id=folder, process_group=self.group)

    def resume(self, folder: Path) -> None:
        state = self.pipe.state_dict(self.model, self.optimizer)
        dcp.load(state, checkpoint_id=folder, process_group=self.group)
        self.pipe.load_state_dict(self.model, state, self.optimizer)


@case
def stopping_and_going_on(job: Job) -> None:
    """Two steps on as many ranks as the key says, then two on four, against four on four."""
    undisturbed = Training(job, PARTS, job.group, seed=1)
    undisturbed.run(range(4))
    groups = {PARTS: dist.new_group(), 2: dist.new_group([0, 1]), 1: dist.new_group([0])}
    for before, group in groups.items():
        folder = job.folder / f"checkpoint_{before}"
        if job.rank < before:
            first = Training(job, before, group, seed=1)
            first.run(range(2))
            first.save(folder)
        dist.barrier()
        second = Training(job, PARTS, job.group, seed=2)
        second.resume(folder)
        second.run(range(2, 4))
        ours, theirs = second.stage.state_dict(), undisturbed.stage.state_dict()
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
            assert same, (before, name)
        moments = [
            [x for state in each.optimizer.state_dict()["state"].values() for x in state.values()]
            for each in (second, undisturbed)
        ]
        assert len(moments[0]) == len(moments[1]) > 0
        assert all(map(torch.equal, *moments))


class TiedTraining(Training):
    """The same of such a model, on one rank or two."""

    def __init__(self, job: Job, ranks: int, group: Any, seed: int) -> None:
        torch.manual_seed(seed)
        rank = dist.get_rank(group)
        self.model, self.group = Tied(untie=rank > 0), group
        self.stage = self.model.stages(ranks)[rank]
        shared = self.model.head.weight if rank else self.model.embed.weight
        self.pipe = job.compiled(f"whole_{ranks}").Pipeline(
            self.stage,
            functional.cross_entropy,
            tied={"shared": shared} if ranks > 1 else None,
            process_group=group,
            timeout=PATIENCE,
        )
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=0.1)

    def all(self) -> dict[str, torch.Tensor]:
        """What this rank holds, and what its optimizer does, by names of the model."""
        values: dict[str, torch.Tensor] = {}
        inside = {id(q) for q in self.stage.parameters()}
        for name, q in self.model.named_parameters(remove_duplicate=False):
            if id(q) in inside:
                values[name] = q.detach().clone()
                values |= {f"{name}.{key}": x.clone() for key, x in self.optimizer.state[q].items()}
        return values


@case
def a_tied_model_goes_on_however_it_is_cut(job: Job) -> None:
    """What one rank has trained, two take over to the bit, and one from these; fused weights and wrapped ones, too."""
    alone = [dist.new_group([rank]) for rank in range(PARTS)]
    pair = dist.new_group([0, 1])
    if job.rank > 1:
        return
    folders = [job.folder / f"tied_{count}" for count in (1, 2)]
    one = TiedTraining(job, 1, alone[job.rank], seed=4)  # each its own, of the same bits
    one.run(range(2))
    if job.rank == 0:
        one.save(folders[0])
    dist.barrier(pair)
    two = TiedTraining(job, 2, pair, seed=5)
    two.resume(folders[0])
    held, theirs = two.all(), one.all()
    assert len(held) >= 12  # of three parameters, each with three of the optimizer
    assert all(torch.equal(x, theirs[name]) for name, x in held.items())
    two.run(range(2, 4))
    two.save(folders[1])
    again = TiedTraining(job, 1, alone[job.rank], seed=6)
    again.resume(folders[1])
    held, theirs = two.all(), again.all()
    assert all(torch.equal(x, theirs[name]) for name, x in held.items())
    again.run(range(4, 5))


@case
def what_is_saved(job: Job) -> None:
    """All of the model once, by the name that it has there."""
    training = Training(job, PARTS, job.group, seed=3)
    names: list[Any] = [None] * PARTS
    dist.all_gather_object(names, sorted(training.pipe.state_dict(training.model)["model"]))
    assert sorted(name for each in names for name in each) == sorted(training.model.state_dict())
    with pytest.raises(ValueError, match="this rank's stages have tensors that are none of the model's"):
        training.pipe.state_dict(Model())
