"""What a rank saves, by the names of the whole model: the same however it is cut, so for any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch


def names_within(whole: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> set[str]:
    """What the parameters and buffers of `modules` are called in `whole`. ValueError where they are none of its."""
    own = {id(x) for module in modules for x in itertools.chain(module.parameters(), module.buffers())}
    tensors = itertools.chain(
        whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False)
    )
    found = {name: id(x) for name, x in tensors if id(x) in own}
    if own - set(found.values()):
        raise ValueError(
            "this rank's stages have tensors that are none of the model's; cut the stages from its modules"
        )
    return set(found)


def stage_state(
    modules: Sequence[torch.nn.Module], whole: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> dict[str, Any]:
    """The state of this rank's part of `whole`, and that of its optimizer."""
    names = names_within(whole, modules)
    state: dict[str, Any] = {"model": {name: x for name, x in whole.state_dict().items() if name in names}}
    if optimizer is not None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state["optimizer"] = get_optimizer_state_dict(whole, optimizer, options=options)
    return state


def load_stage_state(whole: torch.nn.Module, state: dict[str, Any], optimizer: torch.optim.Optimizer | None) -> None:
    """Take over a state that `stage_state` gave and `torch.distributed.checkpoint.load` filled."""
    whole.load_state_dict(state["model"], strict=False)
    if optimizer is not None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        options = StateDictOptions(flatten_optimizer_state_dict=True)
        set_optimizer_state_dict(whole, optimizer, state["optimizer"], options=options)
