"""What a rank really holds is what verification said it would, from sizes measured on one stage alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipedsl.occupancy import memory_used
from pipedsl.profile import Profile, apply_profile
from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Arrived, Chunk
from tests.support import compiled
from tests.support.live_bytes import LiveBytes
from tests.support.nccl_like import Fabric, run_ranks
from tests.support.worker import load

ROWS, WIDTH = 32, 32  # of a microbatch


class Block(nn.Module):
    """As of a transformer. Autograd does not keep what it returns, and W needs less than autograd keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))


def loss_fn(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(y, target)


def make_stages(count: int) -> list[nn.Module]:
    """Stages of several sizes, whose gradients are there."""
    return [with_gradients(nn.Sequential(*(Block() for _ in range(1 + s % 2)))) for s in range(count)]


def with_gradients(stage: nn.Module) -> nn.Module:
    for q in stage.parameters():
        q.grad = torch.zeros_like(q)
    return stage


@dataclass(frozen=True)
class Sizes:
    """Of a stage, in bytes, as a profile has them."""

    activation: int
    held_by_w: int
    output: int


def measure(stage: nn.Module, *, first: bool, last: bool) -> Sizes:
    """One microbatch through a stage by itself."""
    batch, target = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    chunk = Chunk(stage, [0])
    chunk.begin()
    with LiveBytes() as live:
        if first:
            y = chunk.run_first(0, batch, {})
        else:
            y = chunk.forward(0, Arrived(("tensor",), [batch * 1], [True], ROWS), {})
        y = loss_fn(y, target) if last else y
        chunk.keep(0, [y])
        gradient, output = torch.ones_like(y), 0 if last else y.nbytes
        y = torch.empty(0) if last else y.detach()
        activation = live.now - gradient.nbytes - output
        del y
        found = chunk.backward_input(0, [gradient])
        del gradient
        held = live.now - sum(each.nbytes for each in found)
    return Sizes(activation, held, output)


def predicted(schedule: str, sizes: Sequence[Sizes], *, p: int, m: int) -> tuple[Fraction, ...]:
    """The peaks that `verify --profile` reports."""
    _, program, calls = compiled.build(schedule, p=p, m=m)
    memory = {
        name: tuple(Fraction(getattr(each, name)) for each in sizes) for name in ("activation", "held_by_w", "output")
    }
    return memory_used(apply_profile(Profile("measured", memory=memory), program), calls).peaks()


def peak_of(pipe: Any, step: Callable[[], Any], steps: int = 1) -> int:
    """The most that is alive here after any call of the last step, with all memory that messages are sent by."""
    held: list[int] = []
    with LiveBytes() as live:

        def noting(act: Callable[[], None]) -> Callable[[], None]:
            def acting() -> None:
                act()
                held.append(live.now + sum(link.memory for link in pipe._wire.links.values()))

            return acting

        programs = pipe._loop._programs
        programs[True] = [(call, noting(act)) for call, act in programs[True]]
        for _ in range(steps):
            held.clear()
            step()
    return max(held)


def measured(schedule: str, folder: Path, *, p: int, m: int, steps: int = 1) -> list[int]:
    """The most that is alive on every rank after any call of the last step, as a pipeline really runs."""
    module = load(compiled.compile_to(folder / "pipeline.py", schedule, p=p, m=m))
    module.WORTH_DEFERRING = 1
    stages = make_stages(module.STAGES)
    rows = module.PLAN.microbatches * ROWS
    batch, targets = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)

    def work(wire: Any) -> int:
        mine = [with_gradients(copy.deepcopy(stages[s])) for s in module.stages_of(wire.rank)]
        pipe = module.Pipeline(mine, loss_fn, process_group=wire, timeout=20)
        return peak_of(pipe, lambda: pipe.step(batch, targets), steps)

    peaks = []
    for rank in run_ranks(Fabric(p), work):
        if rank.error is not None:
            raise rank.error
        peaks.append(rank.result)
    return peaks


SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved_1f1b": "interleaved_1f1b",
    "zb_h1": "zb_h1",
    "zb_h2": "zb_h2",
    "all W at the end": compiled.SPLIT,
    "two copies of all stages": compiled.TWO_WAYS,
    "two copies, all W at the end": compiled.TWO_WAYS_SPLIT,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_peak_is_the_predicted_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)
    p, m = 3, 9
    schedule = SCHEDULES[name]
    _, program, _ = compiled.build(schedule, p=p, m=m)
    last = program.stages - 1
    sizes = [measure(each, first=s == 0, last=s == last) for s, each in enumerate(make_stages(program.stages))]
    assert all(0 < each.held_by_w < each.activation for each in sizes)
    found = measured(schedule, tmp_path, p=p, m=m)
    for rank, (ours, theirs) in enumerate(zip(found, predicted(schedule, sizes, p=p, m=m), strict=True)):
        assert abs(ours - theirs) <= 0.05 * theirs, (rank, ours, float(theirs))


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_memory_does_not_grow_with_the_number_of_microbatches(schedule: str, tmp_path: Path) -> None:
    """Nor with the number of steps; but for the losses, which are a number each."""
    few, many = (measured(schedule, tmp_path, p=2, m=m, steps=2) for m in (8, 128))
    assert all(b - a <= 128 * 8 for a, b in zip(few, many, strict=True)), (few, many)
