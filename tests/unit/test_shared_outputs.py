"""Outputs of a stage that share memory: one process sees in all what is written to one, messages bring them apart."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import compiled
from tests.support.nccl_like import Rank
from tests.support.worker import alone
from tests.unit.test_executor import check, mean_square, results, train

PLACES = {"sent": (compiled.SPLIT, 2), "handed over on one rank": (compiled.V_SHAPE, 1)}
EVERYWHERE = pytest.mark.parametrize("place", PLACES)
MASK = torch.tensor([True, False, True, True])

OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "twice": lambda y: (y, y),
    "a view": lambda y: {"whole": y, "part": [y[:, :3]]},
    "a view first": lambda y: (y[:, 1:], y),
    "without history": lambda y: (y, y.detach()),
    "nothing of it trained": lambda y: (y, *[MASK.float().repeat(2, 1)] * 2),
    "slices that meet": lambda y: (y[:, :3], y[:, 1:]),
}


class Gives(nn.Module):
    def __init__(self, outputs: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> Any:
        return self.outputs(self.inner(x))


class Takes(nn.Module):
    """Uses all of its inputs; before that, it writes to the last of them, in those of its calls that are named."""

    def __init__(self, writes: tuple[int, ...] = (), how: Any = contextlib.nullcontext) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.writes = writes
        self.how = how
        self.calls = 0

    def forward(self, x: Any) -> torch.Tensor:
        leaves = list(x) if isinstance(x, tuple) else [x["whole"], *x["part"]]
        if self.calls in self.writes:
            with self.how():
                leaves[-1].mul_(2)
        self.calls += 1
        y: torch.Tensor = self.inner(sum((k + 1) * leaf[:, -3:] for k, leaf in enumerate(leaves)))
        return y


def run(
    place: str,
    gives: Callable[[torch.Tensor], Any],
    takes: nn.Module,
    folder: Path,
    *,
    exact: bool = False,
    **more: Any,
) -> list[Rank]:
    """A step of four microbatches; where `exact`, it is as one process's."""
    schedule, p = PLACES[place]
    torch.manual_seed(3)
    stages = [Gives(gives), takes]
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)
    ranks = train(schedule, stages, batch, targets, mean_square, folder, p=p, m=4, **more)
    if exact:
        expected = alone(reference, mean_square, list(batch.chunk(4)), list(targets.chunk(4)))
        torch.testing.assert_close(results(ranks)[-1], expected)
        check(stages, reference, 1e-6)
    return ranks


def refused(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert "ValueError: stage 1 writes to an input that shares memory with another one" in str(rank.error)
        assert "as stage 0 returned a tensor twice, or a view of it, too; write to a copy" in str(rank.error)


@EVERYWHERE
@pytest.mark.parametrize("kind", OUTPUTS)
def test_who_reads_them_is_as_in_one_process(kind: str, place: str, tmp_path: Path) -> None:
    run(place, OUTPUTS[kind], Takes(), tmp_path, exact=True)


@EVERYWHERE
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("how", [contextlib.nullcontext, torch.no_grad])
def test_who_writes_to_them_is_refused(how: Any, kind: str, place: str, tmp_path: Path) -> None:
    refused(run(place, OUTPUTS[kind], Takes((2,), how), tmp_path))


@EVERYWHERE
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_is_told_too(mode: Any, place: str, tmp_path: Path) -> None:
    takes = Takes((5,))

    def body(pipe: Any, rank: int) -> None:
        with mode():
            for _ in range(2):
                pipe.step(torch.randn(8, 4), train=False)

    refused(run(place, OUTPUTS["a view"], takes, tmp_path, body=body))
    assert takes.calls == 6


@EVERYWHERE
@pytest.mark.parametrize("kind", ["chunks", "copies"])
def test_outputs_that_do_not_share_may_be_written_to(kind: str, place: str, tmp_path: Path) -> None:
    def outputs(y: torch.Tensor) -> Any:
        y = torch.cat((y, y * y), 1)
        return (y[:, :4], y[:, 4:]) if kind == "chunks" else (y, y[:, 2:].clone())

    run(place, outputs, Takes((0, 1, 2, 3)), tmp_path, exact=True)


class Sometimes:
    """Gives one tensor twice for some microbatches, as a module does that leaves out a layer at random."""

    def __init__(self, *twice: int) -> None:
        self.twice = twice
        self.calls = 0

    def __call__(self, y: torch.Tensor) -> Any:
        self.calls += 1
        return (y, y if self.calls - 1 in self.twice else y.tanh())


@EVERYWHERE
@pytest.mark.parametrize("twice", [(0,), (2,), (1, 3)])
def test_microbatches_may_differ_in_what_is_shared(twice: tuple[int, ...], place: str, tmp_path: Path) -> None:
    run(place, Sometimes(*twice), Takes(), tmp_path, exact=True)
    if 0 not in twice:  # so that it is known from the first on that it may be
        refused(run(place, Sometimes(*twice), Takes(twice), tmp_path))


def test_what_is_shared_later_is_told_by_the_end_of_the_step(tmp_path: Path) -> None:
    """Also in later steps, and in those only that write to it."""
    (schedule, p), writes = PLACES["sent"], []
    takes = Takes()

    def body(pipe: Any, rank: int) -> None:
        for step, writing in enumerate([False, False, True]):
            if rank == 1:
                takes.writes = (4 * step,) if writing else ()
                writes.append(writing)
            pipe.step(torch.randn(8, 4), torch.randn(8))

    stages: list[nn.Module] = [Gives(Sometimes(6)), takes]
    refused(train(schedule, stages, None, None, mean_square, tmp_path, p=p, m=4, body=body))
    assert writes == [False, False, True]
