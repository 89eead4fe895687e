"""Pipelines on threads, over a group that behaves as NCCL does, and what one process does with the same data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.compiled import CHIMERA
from tests.support.nccl_like import LAZY, Fabric, Rank, run_ranks
from tests.support.worker import alone, difference, gradients, load, mlp

Body = Callable[[Any, int], Any]


def pipelines(
    module: Any,
    held: dict[int, list[nn.Module]],
    body: Body,
    *,
    mode: str = LAZY,
    loss_fn: Any = functional.cross_entropy,
    tied: Callable[[int], Any] = lambda rank: None,
    **options: Any,
) -> list[Rank]:
    """Run `body` as every rank, with a pipeline over the modules that it holds."""

    def work(wire: Any) -> Any:
        pipe = module.Pipeline(
            held[wire.rank], loss_fn, process_group=wire, timeout=20, tied=tied(wire.rank), **options
        )
        return body(pipe, wire.rank)

    return run_ranks(Fabric(module.PLAN.ranks, mode), work)


def cut(module: Any, stages: Sequence[nn.Module]) -> dict[int, list[nn.Module]]:
    """Every rank's own copies of its stages."""
    return {rank: [copy.deepcopy(stages[s]) for s in module.stages_of(rank)] for rank in range(module.PLAN.ranks)}


def results(ranks: Sequence[Rank]) -> list[Any]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    assert not any(rank.hung for rank in ranks)
    return [rank.result for rank in ranks]


def errors(ranks: Sequence[Rank]) -> list[str]:
    assert not any(rank.hung for rank in ranks)
    assert all(rank.error is not None for rank in ranks), [rank.result for rank in ranks]
    return [str(rank.error) for rank in ranks]


def check(module: Any, held: dict[int, list[nn.Module]], reference: Sequence[nn.Module], bound: float = 1e-5) -> None:
    """Every copy has the gradients of one process, and all copies of a stage the same bits."""
    first: dict[tuple[int, str], torch.Tensor | None] = {}
    for rank, mine in held.items():
        for stage, ours in zip(module.stages_of(rank), mine, strict=True):
            expected = gradients(reference[stage])
            for name, gradient in gradients(ours).items():
                assert difference(gradient, expected[name]) <= bound, (rank, stage, name)
                other = first.setdefault((stage, name), gradient)
                assert (other is None) == (gradient is None)
                assert gradient is None or other is None or torch.equal(gradient, other), (rank, stage, name)


def data(module: Any, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * module.PLAN.microbatches
    return torch.randint(11, (rows,), generator=generator), torch.randint(5, (rows,), generator=generator)


def reference_step(module: Any, stages: list[nn.Module], batch: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    parts = module.PLAN.microbatches
    return alone(stages, functional.cross_entropy, list(batch.chunk(parts)), list(targets.chunk(parts)))


def refused(
    tmp_path: Path, spoil: Callable[[dict[int, list[nn.Module]]], Any], text: str = CHIMERA, p: int = 2, **options: Any
) -> list[str]:
    """What every rank says where `spoil` has done something to the modules."""
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=p, m=1))
    torch.manual_seed(8)
    held = cut(module, mlp(module.STAGES))
    spoil(held)
    return errors(pipelines(module, held, lambda pipe, rank: pipe.step(*data(module)), **options))
