"""What a rank saves, by the names of the whole model: the same however it is cut, so for any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX


def names_within(whole: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> set[str]:
    """What the parameters, buffers and extra states of `modules` are called in `whole`.

    ValueError where some tensors are none of its.
    """
    own = {id(x) for module in modules for x in itertools.chain(module.parameters(), module.buffers())}
    tensors = itertools.chain(
        whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False)
    )
    found = {name: id(x) for name, x in tensors if id(x) in own}
    if own - set(found.values()):
        raise ValueError(
            "this rank's stages have tensors that are none of the model's; cut the stages from its modules"
        )
    inside = {id(each) for module in modules for each in module.modules()}
    parts = {name for name, each in whole.named_modules(remove_duplicate=False) if id(each) in inside}
    return {*found, *(f"{name}.{_EXTRA_STATE_KEY_SUFFIX}" if name else _EXTRA_STATE_KEY_SUFFIX for name in parts)}


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
