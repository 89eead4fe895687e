"""What a rank saves, by the names of the whole model: the same however it is cut, so for any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

_CHECKPOINTED = "_checkpoint_wrapped_module."
"""In the names of what torch's `checkpoint_wrapper` wraps, but not in those of its state."""


def names_within(
    whole: torch.nn.Module, modules: Sequence[torch.nn.Module], losses: Sequence[torch.nn.Module] = ()
) -> set[str]:
    """What the state of `whole` calls the parameters, buffers and extra states of `modules` and of the loss functions.

    ValueError where some tensors are none of its; but for a loss's buffers, as fixed weights of classes are.
    """
    own = {id(x) for module in modules for x in itertools.chain(module.parameters(), module.buffers())}
    learned = {id(x) for loss in losses for x in loss.parameters()}
    wanted = own | learned | {id(x) for loss in losses for x in loss.buffers()}
    tensors = itertools.chain(
        whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False)
    )
    found = {name: id(x) for name, x in tensors if id(x) in wanted}
    if own - set(found.values()):
        raise ValueError(
            "this rank's stages have tensors that are none of the model's; cut the stages from its modules"
        )
    if learned - set(found.values()):
        raise ValueError(
            "the loss_fn has parameters that are none of the model's, and would not be saved; give a model that has "
            "it, too, as torch.nn.ModuleDict({'model': model, 'loss': loss_fn})"
        )
    # Hooks may have other names in the state, or leave some out, so it is asked which tensors it holds.
    state = whole.state_dict(keep_vars=True)
    saved = {name for name, x in state.items() if id(x) in wanted or name in found}
    inside = {id(each) for module in (*modules, *losses) for each in module.modules()}
    parts = {name for name, each in whole.named_modules(remove_duplicate=False) if id(each) in inside}
    extra = {f"{name}.{_EXTRA_STATE_KEY_SUFFIX}" if name else _EXTRA_STATE_KEY_SUFFIX for name in parts}
    return saved | {_saved_as(name) for name in extra} | extra


def _saved_as(name: str) -> str:
    return name.replace(_CHECKPOINTED, "")


def stage_state(
    modules: Sequence[torch.nn.Module],
    losses: Sequence[torch.nn.Module],
    whole: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, Any]:
    """The state of this rank's part of `whole`, and that of its optimizer."""
    names = names_within(whole, modules, losses)
    state: dict[str, Any] = {"model": {name: x for name, x in whole.state_dict().items() if name in names}}
    if optimizer is not None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        _compare_parameters(whole, optimizer)
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state["optimizer"] = get_optimizer_state_dict(whole, optimizer, options=options)
    return state


def load_stage_state(
    modules: Sequence[torch.nn.Module],
    losses: Sequence[torch.nn.Module],
    whole: torch.nn.Module,
    state: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Take over a state that `stage_state` gave and `torch.distributed.checkpoint.load` filled.

    It may have more than this rank's part. ValueError where it has less, or what is none of the model's.
    """
    names = names_within(whole, modules, losses)
    for part in ["model"] + ["optimizer"] * (optimizer is not None):
        if part not in state:
            raise ValueError(f"the state has no {part!r}; give one that state_dict() has made, and `load` has filled")
    loaded = whole.load_state_dict(state["model"], strict=False)
    # Where nothing was loaded, by names in the module and in its state.
    unfilled = {each for name in loaded.missing_keys for each in (name, _saved_as(name))}
    missing = names.intersection(unfilled, whole.state_dict())
    for keys, what in ((loaded.unexpected_keys, "has names that the model has not"), (missing, "lacks names")):
        if keys:
            some = ", ".join(map(repr, sorted(keys)[:3]))
            raise ValueError(f"the state {what}: {some}{f', and {len(keys) - 3} more' if len(keys) > 3 else ''}")
    if optimizer is not None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        _compare_parameters(whole, optimizer)
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        set_optimizer_state_dict(whole, optimizer, state["optimizer"], options=options)


def _compare_parameters(whole: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """ValueError where the optimizer has some that have no name in the model."""
    known = {id(q) for q in whole.parameters()}
    strangers = sum(id(q) not in known for group in optimizer.param_groups for q in group["params"])
    if strangers:
        raise ValueError(
            f"{strangers} of the optimizer's parameters are none of the model's, so that nothing could be saved of "
            "them; give a model that has them, too"
        )
