"""Clipping and GradScaler over ranks, against torch's own on the whole model in one process."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.on_threads import check, cut, pipelines, reference_step, results
from tests.support.worker import load, mlp


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """1F1B on two ranks."""
    folder: Path = tmp_path_factory.mktemp("compiled")
    return load(compiled.compile_to(folder / "two_ranks.py", compiled.ONE_F_ONE_B, p=2, m=4))


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(11, (8,), generator=generator), torch.randint(5, (8,), generator=generator)


@pytest.mark.parametrize("bare", [(), (0,), (0, 1)])
@pytest.mark.parametrize("norm_type", [2.0, 0.5, 0, -1.0, -2.0, math.inf, -math.inf])
def test_norms_are_torch_s(norm_type: float, bare: tuple[int, ...], module: Any) -> None:
    """`bare`: ranks without gradients."""
    torch.manual_seed(3)
    stages = [stage.double() for stage in mlp(2)]
    stages[0][0].requires_grad_(False)  # type: ignore[operator]  # else the smallest is that of a word that is not there
    held = cut(module, stages)
    reference_step(module, stages, *data(0))
    for stage in bare:
        stages[stage].zero_grad()

    def body(pipe: Any, rank: int) -> list[torch.Tensor]:
        pipe.step(*data(0))
        if rank in bare:
            held[rank][0].zero_grad()
        return [pipe.clip_grad_norm_(most, norm_type) for most in (1e9, 0.01)]

    found = results(pipelines(module, held, body))
    for most, *norms in zip((1e9, 0.01), *found, strict=True):
        expected = nn.utils.clip_grad_norm_(nn.ModuleList(stages).parameters(), most, norm_type)
        for norm in norms:
            torch.testing.assert_close(norm, expected.to(norm.dtype), rtol=1e-9, atol=0)
    check(module, held, stages)


def test_a_scaler_looks_into_sparse_gradients(module: Any) -> None:
    """As torch's own, it finds infinities in them; and skips a step of theirs for one on another rank."""
    torch.manual_seed(4)
    stages = mlp(2)
    stages[0][0] = nn.Embedding(11, 6, sparse=True)  # type: ignore[operator]
    held = cut(module, stages)
    whole = nn.ModuleList(stages)
    theirs = torch.optim.SGD(whole.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    broken = {1: 0, 3: 1}  # steps in which a stage has an infinity

    def spoil(step: int, stage: int, module: nn.Module) -> None:
        if broken.get(step) == stage:
            gradient = next(module.parameters()).grad
            assert gradient is not None
            (gradient._values() if gradient.is_sparse else gradient).view(-1)[-1] = torch.inf

    def body(pipe: Any, rank: int) -> list[float]:
        (own,) = held[rank]
        optimizer = torch.optim.SGD(own.parameters(), lr=0.5)
        mine = copy.deepcopy(scaler)
        scales = []
        for step in range(5):
            pipe.step(*data(step), scale=mine.get_scale())
            spoil(step, rank, own)
            pipe.unscale_(mine, optimizer)
            mine.step(optimizer)
            mine.update()
            optimizer.zero_grad()
            scales.append(mine.get_scale())
        return scales

    found = results(pipelines(module, held, body))
    expected = []
    for step in range(5):
        scale = scaler.get_scale()
        batch, targets = data(step)
        for x, y in zip(batch.chunk(4), targets.chunk(4), strict=True):
            scaler.scale(functional.cross_entropy(stages[1](stages[0](x)), y) / 4).backward()
        for number, stage in enumerate(stages):
            spoil(step, number, stage)
        scaler.unscale_(theirs)
        scaler.step(theirs)
        scaler.update()
        theirs.zero_grad()
        expected.append(scaler.get_scale())
        assert (scaler.get_scale() < scale) == (step in broken)
    assert found == [expected, expected]
    for rank in range(2):
        for ours, other in zip(held[rank][0].parameters(), stages[rank].parameters(), strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
