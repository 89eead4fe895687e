"""Tied parameters, and those of copies, that are others, or of another kind, than when the pipeline was made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import compiled
from tests.support.on_threads import cut, data, errors, pipelines, results
from tests.support.worker import alone, difference, load, mlp


class Adds(nn.Module):
    """`weight`, of which gradients have another type, is used or not."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6, dtype=torch.bfloat16))
        self.weight.grad_dtype = torch.float32
        self.uses = uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.float() if self.uses else x


def adds_of(stage: nn.Module) -> Adds:
    return next(each for each in stage.modules() if isinstance(each, Adds))


def weight_of(stage: Any) -> nn.Parameter:
    """That of a stage's first Linear."""
    found: nn.Parameter = next(each for each in stage.modules() if isinstance(each, nn.Linear)).weight
    return found


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(compiled.compile_to(tmp_path_factory.mktemp("changed") / "x.py", compiled.SPLIT, p=2, m=2))


@pytest.fixture(scope="module")
def two_ways(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(compiled.compile_to(tmp_path_factory.mktemp("changed") / "y.py", compiled.TWO_WAYS, p=2, m=2))


def tied_stages(module: Any) -> dict[int, list[nn.Module]]:
    """Those of two ranks that have a stage each with equal weights, or copies of both."""
    torch.manual_seed(2)
    held = cut(module, mlp(2))
    if len(held[0]) > 1:
        return held
    with torch.no_grad():
        weight_of(held[1][0]).copy_(weight_of(held[0][0]))
    return held


@pytest.mark.parametrize("uses", [(True, False), (False, True), (True, True)])
def test_gradients_of_another_type_than_the_tied_parameter(uses: tuple[bool, bool], split: Any) -> None:
    torch.manual_seed(1)
    reference = mlp(2)
    for stage, here in zip(reference, uses, strict=True):
        stage.append(Adds(here))  # type: ignore[operator]
    reference[1].append(nn.Linear(6, 5))  # type: ignore[operator]
    del reference[1][-3]  # type: ignore[attr-defined]
    held = cut(split, reference)
    own = {rank: adds_of(mine[0]).weight for rank, mine in held.items()}
    for q in own.values():
        q.grad_dtype = torch.float32
    results(pipelines(split, held, lambda pipe, rank: pipe.step(*data(split)), tied=lambda rank: {"w": own[rank]}))
    batch, targets = data(split)
    shared = list(map(adds_of, reference))
    for each in shared:
        each.weight = shared[0].weight
    alone(reference, nn.functional.cross_entropy, list(batch.chunk(2)), list(targets.chunk(2)))
    for q in own.values():
        assert q.grad is not None
        assert q.grad.dtype == torch.float32
        assert difference(q.grad, shared[0].weight.grad) <= 1e-5


def test_types_of_gradients_are_agreed_on(split: Any) -> None:
    held = {rank: [Adds(True)] for rank in range(2)}
    held[1][0].weight.grad_dtype = torch.bfloat16
    own = {rank: mine[0].weight for rank, mine in held.items()}
    ranks = pipelines(split, dict(held), lambda pipe, rank: None, tied=lambda rank: {"w": own[rank]})
    for message in errors(ranks):
        assert (
            "tied parameter 'w' is bfloat16 [6, 6] with gradients of float32 on rank 0, but bfloat16 [6, 6] on rank 1"
            in message
        )


@pytest.mark.parametrize("copies", [False, True])
def test_gradients_whose_type_changes_later_are_refused(copies: bool, split: Any, two_ways: Any) -> None:
    """They would be added to what has another size."""
    module = two_ways if copies else split
    held = tied_stages(module)

    def body(pipe: Any, rank: int) -> None:
        pipe.step(*data(module))
        for stage in held[rank] if rank == 0 else ():
            weight_of(stage).grad = None
            weight_of(stage).grad_dtype = torch.float64
        pipe.step(*data(module))

    tied = (lambda rank: None) if copies else (lambda rank: {"w": weight_of(held[rank][0])})
    for message in errors(pipelines(module, held, body, tied=tied)):
        assert "is torch.float64, but torch.float32 was agreed on" in message


def test_a_tied_parameter_that_is_unfrozen_later_is_refused(split: Any) -> None:
    held = tied_stages(split)
    for mine in held.values():
        weight_of(mine[0]).requires_grad_(False)

    def body(pipe: Any, rank: int) -> None:
        pipe.step(*data(split))
        weight_of(held[rank][0]).requires_grad_(True)
        pipe.step(*data(split), train=False)
        pipe.step(*data(split))

    for message in errors(pipelines(split, held, body, tied=lambda rank: {"w": weight_of(held[rank][0])})):
        assert "ValueError: tied parameter 'w' was frozen when this Pipeline was made, and is trained now" in message


def test_a_tied_parameter_may_be_frozen_later(split: Any) -> None:
    held = tied_stages(split)

    def body(pipe: Any, rank: int) -> None:
        weight_of(held[rank][0]).requires_grad_(False)
        pipe.step(*data(split))
        assert weight_of(held[rank][0]).grad is None
        weight_of(held[rank][0]).requires_grad_(True)
        pipe.step(*data(split))

    results(pipelines(split, held, body, tied=lambda rank: {"w": weight_of(held[rank][0])}))
    grads = [weight_of(mine[0]).grad for mine in held.values()]
    assert grads[0] is not None
    assert grads[1] is not None
    assert torch.equal(grads[0], grads[1])


@pytest.mark.parametrize("copies", [False, True])
def test_parameters_that_are_exchanged_for_others_are_refused(copies: bool, split: Any, two_ways: Any) -> None:
    """As `load_state_dict(assign=True)` does: what is summed would be the gradients of those before."""
    module = two_ways if copies else split
    held = tied_stages(module)

    def body(pipe: Any, rank: int) -> None:
        pipe.step(*data(module))
        for stage in held[rank]:
            stage.load_state_dict(copy.deepcopy(stage.state_dict()), assign=True)
        pipe.step(*data(module))

    tied = (lambda rank: None) if copies else (lambda rank: {"w": weight_of(held[rank][0])})
    for message in errors(pipelines(module, held, body, tied=tied)):
        assert "exchanged for " in message
        assert "since this Pipeline was made; make a new one on every rank" in message


def test_what_is_tied_has_to_be_a_parameter_of_this_rank(split: Any) -> None:
    for wrong, says in (
        (nn.Parameter(torch.ones(6, 6)), "tied parameter 'w' is none of this rank's stages'"),
        (None, "tied parameter 'w' must be a Parameter, not a NoneType"),
    ):
        held = tied_stages(split)

        def tied(rank: int, held: Any = held, wrong: Any = wrong) -> Any:
            return {"w": weight_of(held[rank][0]) if rank == 0 else wrong}

        for message in errors(pipelines(split, held, lambda pipe, rank: None, tied=tied)):
            assert f"rank 1: {says}" in message
