"""What copies of the stages that train together are refused for, on threads as in `test_copies`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.compiled import (
    CHIMERA,
    TWO_WAYS,
)
from tests.support.nccl_like import Fabric, run_ranks
from tests.support.on_threads import cut, data, errors, pipelines, refused
from tests.support.worker import load, mlp


def test_copies_that_begin_unequal(tmp_path: Path) -> None:
    def spoil(held: dict[int, list[nn.Module]]) -> None:
        nn.init.normal_(held[1][1][1].weight)

    says = "the copies of `1.weight` of stage 0 on ranks 0 and 1 did not begin equal; give all copies"
    assert all(says in error for error in refused(tmp_path, spoil))


def test_copies_that_begin_unequal_where_they_are_frozen(tmp_path: Path) -> None:
    def spoil(held: dict[int, list[nn.Module]]) -> None:
        for mine in held.values():
            for parameter in nn.ModuleList(mine).parameters():
                parameter.requires_grad_(False)
        held[0][1][0].weight.data += 1e-7

    def loss_fn(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, targets)

    says = "the copies of `0.weight` of stage 1 on ranks 0 and 1 did not begin equal"
    assert all(says in error for error in refused(tmp_path, spoil, loss_fn=loss_fn))


def test_copies_that_begin_unequal_on_one_rank(tmp_path: Path) -> None:
    def spoil(held: dict[int, list[nn.Module]]) -> None:
        for parameter in held[1][1].parameters():
            parameter.data += 1

    says = "the copies of `0.weight` of stage 1 on rank 1 did not begin equal, nor 1 others"
    assert all(says in error for error in refused(tmp_path, spoil, TWO_WAYS, 3))


def test_state_that_one_rank_alone_takes_over(tmp_path: Path) -> None:
    """It would compare its copies with those of ranks that do not."""
    module = load(compiled.compile_to(tmp_path / "x.py", CHIMERA, p=2, m=1))
    held = cut(module, mlp(2))

    def body(pipe: Any, rank: int) -> None:
        pipe.step(*data(module))
        if rank == 1:
            model = nn.ModuleList(held[rank])
            pipe.load_state_dict(model, pipe.state_dict(model))
        pipe.step(*data(module))

    says = "step 2 (training) on rank 0, but step 2 (training, after load_state_dict()) on rank 1"
    assert all(says in error for error in errors(pipelines(module, held, body)))


@pytest.mark.parametrize("later", [False, True])
def test_copies_that_are_given_batches_of_two_sizes(later: bool, tmp_path: Path) -> None:
    """At first, and after sizes were free to change; each rank's targets are for its own batch."""
    module = load(compiled.compile_to(tmp_path / "x.py", TWO_WAYS, p=2, m=2))
    held = cut(module, mlp(2))

    def step(pipe: Any, rows: int) -> Any:
        return pipe.step(torch.zeros(rows).long(), torch.zeros(rows).long())

    def body(pipe: Any, rank: int) -> None:
        if later:
            for rows in (8, 16):
                step(pipe, rows)
                pipe.renew_shapes()
        step(pipe, 8 + 4 * rank)

    said = errors(pipelines(module, held, body))
    ways = {f"the batch has {8 + 4 * r} rows on rank {r}, but {12 - 4 * r} on rank {1 - r}" for r in range(2)}
    assert all(any(way in error for way in ways) for error in said)


def test_copies_of_two_kinds(tmp_path: Path) -> None:
    def narrow(held: dict[int, list[nn.Module]]) -> None:
        held[1][1] = mlp(2, width=5)[0]

    def lacking(held: dict[int, list[nn.Module]]) -> None:
        held[0][1] = nn.Sequential(nn.Linear(6, 6))

    def frozen(held: dict[int, list[nn.Module]]) -> None:
        held[0][0][0].weight.requires_grad_(False)

    for spoil, says in (
        (narrow, "`0.weight` is float32 [11, 6] in 0/down on rank 0, but float32 [11, 5] in 0/up on rank 1"),
        (lacking, "`2.weight` is missing in 1/up on rank 0, but float32 [5, 6] in 1/down on rank 1"),
        (frozen, "`0.weight` is float32 [11, 6], frozen in 0/down on rank 0, but float32 [11, 6] in 0/up on rank 1"),
    ):
        for error in refused(tmp_path, spoil):
            assert "cannot start: the copies of stage " in error
            assert says in error


def test_a_loss_with_parameters_on_one_of_the_last_stages(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", CHIMERA, p=2, m=1))
    held = cut(module, mlp(2))

    class Loss(nn.Linear):
        def forward(self, x: Any, targets: Any = None) -> Any:
            return functional.cross_entropy(super().forward(x), targets)

    def work(wire: Any) -> Any:
        loss_fn = Loss(5, 5) if wire.rank == 0 else functional.cross_entropy
        return module.Pipeline(held[wire.rank], loss_fn, process_group=wire, timeout=20)

    says = "the copies of the loss function are not alike: `weight` is float32 [5, 5] on rank 0, but missing on rank 1"
    assert all(says in error for error in errors(run_ranks(Fabric(2), work)))


def test_parameters_that_are_frozen_later(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", CHIMERA, p=2, m=1))
    held = cut(module, mlp(2))

    def body(pipe: Any, rank: int) -> None:
        pipe.step(*data(module))
        if rank == 1:
            held[1][0].requires_grad_(False)
        pipe.step(*data(module))

    for error in errors(pipelines(module, held, body)):
        assert "rank 1 failed at beginning a step: ValueError: parameters have been frozen or unfrozen" in error


def test_a_sparse_gradient(tmp_path: Path) -> None:
    def spoil(held: dict[int, list[nn.Module]]) -> None:
        for stage in (held[0][0], held[1][1]):
            stage[0].sparse = True

    for error in refused(tmp_path, spoil):
        assert "the gradient of `0.weight` of stage 0 is sparse, which cannot be summed over copies" in error
