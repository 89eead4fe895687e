"""What a rank saves and takes over is named, whole and of its model; what is not is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pipedsl.runtime.checkpoint import load_stage_state, stage_state


class Loss(nn.Module):
    """Of what it has only `weight` is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("classes", torch.ones(3))


def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_a_loss_is_saved_with_the_model_that_has_it() -> None:
    model, loss = two(), Loss()
    whole = nn.ModuleDict({"model": model, "loss": loss})
    optimizer = torch.optim.AdamW([*model[1].parameters(), *loss.parameters()], lr=0.1)
    for q in whole.parameters():
        q.grad = torch.ones_like(q)
    optimizer.step()
    state = copy.deepcopy(stage_state([model[1]], [loss], whole, optimizer))
    assert set(state["model"]) == {"model.1.weight", "model.1.bias", "loss.weight", "loss.classes"}
    other = nn.ModuleDict({"model": two(), "loss": Loss()})
    theirs = torch.optim.AdamW([*other["model"][1].parameters(), *other["loss"].parameters()], lr=0.1)  # type: ignore[index]
    load_stage_state([other["model"][1]], [other["loss"]], other, state, theirs)  # type: ignore[index]
    for name in state["model"]:
        assert torch.equal(other.state_dict()[name], whole.state_dict()[name])
    for q, r in zip(theirs.param_groups[0]["params"], optimizer.param_groups[0]["params"], strict=True):
        assert torch.equal(theirs.state[q]["exp_avg"], optimizer.state[r]["exp_avg"])


def test_a_loss_that_no_model_has_is_refused_if_it_learns() -> None:
    model, loss = two(), Loss()
    with pytest.raises(ValueError, match="the loss_fn has parameters that are none of the model's"):
        stage_state([model[1]], [loss], model, None)
    weighted = nn.CrossEntropyLoss(weight=torch.ones(2))
    assert set(stage_state([model[1]], [weighted], model, None)["model"]) == {"1.weight", "1.bias"}


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model = two()
    optimizer = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="1 of the optimizer's parameters are none of the model's"):
        stage_state([model[0]], [], model, optimizer)
    state = stage_state([model[0]], [], model, None)
    with pytest.raises(ValueError, match="1 of the optimizer's parameters are none of the model's"):
        load_stage_state([model[0]], [], model, {**state, "optimizer": {}}, optimizer)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: {"model": {"wrong": torch.ones(2)}}, "has names that the model has not: 'wrong'"),
        (lambda state: {"model": {}}, "lacks names: '0.bias', '0.weight'"),
        (
            lambda state: {"model": {f"{name}.{i}": x for name, x in state["model"].items() for i in range(2)}},
            "has names that the model has not: '0.bias.0', '0.bias.1', '0.weight.0', and 1 more",
        ),
        (lambda state: state["model"], "the state has no 'model'"),
        (lambda state: {"model": state["model"]}, "the state has no 'optimizer'"),
    ],
)
def test_a_state_of_other_names_is_refused(change: Any, says: str) -> None:
    model = two()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1) if "optimizer" in says else None
    state = change(stage_state([model[0]], [], model, None))
    with pytest.raises(ValueError, match=says):
        load_stage_state([model[0]], [], model, state, optimizer)


def test_a_state_may_have_more_than_a_rank_s_part() -> None:
    model, saved = two(), two()
    load_stage_state([model[0]], [], model, {"model": saved.state_dict()}, None)
    assert torch.equal(model[0].weight, saved[0].weight)
