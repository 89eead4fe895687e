"""What a rank saves, by the names of the whole model: the same however it is cut, so for any number of ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

_CHECKPOINTED = "_checkpoint_wrapped_module."
"""In the names of what torch's `checkpoint_wrapper` wraps, but not in those of its state."""


def names_within(
    whole: torch.nn.Module, modules: Sequence[torch.nn.Module], losses: Sequence[torch.nn.Module] = ()
) -> set[str]:
    """What the state of `whole` calls the parameters, buffers and extra states of `modules` and of the loss functions.

    And what hooks of these modules have in their place. ValueError where some tensors, or a module that has a state of
    its own, are none of the model's, but for those of a loss that are not learned, as fixed weights of classes are; and
    where no rank would save what a hook has made of some.
    """
    own = {id(x) for module in modules for x in itertools.chain(module.parameters(), module.buffers())}
    learned = {id(x) for loss in losses for x in loss.parameters()}
    wanted = own | learned | {id(x) for loss in losses for x in loss.buffers()}
    tensors = dict(
        itertools.chain(whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False))
    )
    found = {name: id(x) for name, x in tensors.items() if id(x) in wanted}
    if own - set(found.values()):
        raise ValueError(
            "this rank's stages have tensors that are none of the model's; cut the stages from its modules"
        )
    if learned - set(found.values()):
        raise ValueError(
            "the loss_fn has parameters that are none of the model's, and would not be saved; give a model that has "
            "it, too, as torch.nn.ModuleDict({'model': model, 'loss': loss_fn})"
        )
    inside = {id(each) for module in (*modules, *losses) for each in module.modules()}
    parts = dict(whole.named_modules(remove_duplicate=False))
    theirs = {id(each) for each in parts.values()}
    strangers = [each for module in modules for each in module.modules() if id(each) not in theirs and _has_extra(each)]
    if strangers:
        raise ValueError(
            f"this rank's stages have a module with extra state ({type(strangers[0]).__name__}) that is none of "
            "the model's, and would not be saved; cut the stages from its modules"
        )
    ours = {_saved_as(name) for name, each in parts.items() if id(each) in inside}
    plain = set(found) | {_saved_as(name) for name in found}
    # Hooks may have other names in the state, or other tensors, or leave some out: so what lies below a module is its.
    state = whole.state_dict(keep_vars=True)
    saved = {name for name, x in state.items() if id(x) in wanted or name in plain or not ours.isdisjoint(_above(name))}
    held = {id(state[name]) for name in saved} | {
        x for name, x in found.items() if not state.keys().isdisjoint((name, _saved_as(name)))
    }
    known, usual = {id(x) for x in tensors.values()}, _missed(whole)
    others = {name for name, x in state.items() if name not in saved and name not in usual and id(x) not in known}
    lost = {name for name, x in found.items() if x not in held} - _transient(parts)
    own_states = _extra_states({name: each for name, each in parts.items() if id(each) in inside})
    lost |= {name for name in own_states if _saved_as(name) not in state}
    _refuse_lost(lost, others, {_saved_as(name) for name in parts})
    return saved


def _refuse_lost(lost: set[str], others: set[str], parts: set[str]) -> None:
    """ValueError where some entry of no stage may be what has become of one that is lost.

    What a module of a stage leaves out is left out by one process, too. But a hook of a module around several stages
    may have put it into an entry of its own, of which no rank knows whose it is.
    """
    makers = {next(each for each in _above(name) if each in parts): name for name in sorted(others, reverse=True)}
    for name in sorted(lost):
        for maker in _above(_saved_as(name)):
            if maker in makers:
                raise ValueError(
                    f"the model's state_dict() has no entry for {name!r}, but {makers[maker]!r}, which is below no "
                    "module of one stage, so that the checkpoint would lack both; let hooks that exchange entries be "
                    "those of modules that are whole on one rank"
                )


def _saved_as(name: str) -> str:
    return name.replace(_CHECKPOINTED, "").removesuffix(f".{_CHECKPOINTED[:-1]}").removesuffix(_CHECKPOINTED[:-1])


def _above(name: str) -> Iterator[str]:
    """The modules that an entry of this name may lie in, from the innermost to the model."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _below(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _has_extra(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _extra_states(parts: Mapping[str, torch.nn.Module]) -> set[str]:
    return {_below(part, _EXTRA_STATE_KEY_SUFFIX) for part, each in parts.items() if _has_extra(each)}


def _transient(parts: Mapping[str, torch.nn.Module]) -> set[str]:
    """The buffers that are never saved."""
    return {
        _below(part, name) for part, each in parts.items() for name in getattr(each, "_non_persistent_buffers_set", ())
    }


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
        with _made_new(optimizer):
            state["optimizer"] = get_optimizer_state_dict(whole, optimizer, options=options)
        _spread(state["optimizer"], whole)
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
    # torch does not miss entries that hooks have made; and other hooks may not take over what is left of them.
    _refuse_names(names - _missed(whole) - state["model"].keys(), "lacks names")
    loaded = whole.load_state_dict(state["model"], strict=False)
    # Where nothing was loaded, by names in the module and in its state.
    unfilled = {each for name in loaded.missing_keys for each in (name, _saved_as(name))}
    missing = names.intersection(unfilled, whole.state_dict())
    _refuse_names(loaded.unexpected_keys, "has names that the model has not")
    _refuse_names(missing, "lacks names")
    if optimizer is not None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        _compare_parameters(whole, optimizer)
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        with _made_new(optimizer):
            set_optimizer_state_dict(whole, optimizer, _folded(state["optimizer"], whole), options=options)


@contextlib.contextmanager
def _made_new(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While inside, an optimizer that has no state yet has no gradients either.

    Else torch, which makes a state by a step of zeros, makes none, and neither saves nor loads any.
    """
    if optimizer.state:
        yield
        return
    gradients = [(q, q.grad) for group in optimizer.param_groups for q in group["params"]]
    try:
        for q, _ in gradients:
            q.grad = None
        yield
    finally:
        for q, gradient in gradients:
            q.grad = gradient


def _refuse_names(keys: Collection[str], what: str) -> None:
    if keys:
        some = ", ".join(map(repr, sorted(keys)[:3]))
        raise ValueError(f"the state {what}: {some}{f', and {len(keys) - 3} more' if len(keys) > 3 else ''}")


def _missed(whole: torch.nn.Module) -> set[str]:
    """What `load_state_dict` notices the lack of by itself, by its names in the module and in its state."""
    tensors = itertools.chain(
        whole.named_parameters(remove_duplicate=False), whole.named_buffers(remove_duplicate=False)
    )
    parts = dict(whole.named_modules(remove_duplicate=False))
    names = {name for name, _ in tensors} - _transient(parts) | _extra_states(parts)
    return names | {_saved_as(name) for name in names}


_OPTIMIZER_PARTS = ("state", "param_groups")
"""Of an optimizer's state; the names of parameters come after these."""


def _shared_names(whole: torch.nn.Module) -> list[list[str]]:
    """Where a parameter has several, its names in an optimizer's state; first the one that torch has there."""
    from torch.distributed.checkpoint.state_dict import _get_fqns

    names: dict[int, dict[str, None]] = {}
    for name, q in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(q), {}).update(dict.fromkeys(_get_fqns(whole, name)))
    return [list(each) for each in names.values() if len(each) > 1]


def _entries(state: Mapping[str, Any], name: str) -> dict[str, str]:
    """Those of a parameter: what comes before and after its name."""
    starts = [f"{part}.{name}." for part in _OPTIMIZER_PARTS]
    return {key: start for key in state for start in starts if key.startswith(start)}


def _spread(state: dict[str, Any], whole: torch.nn.Module) -> None:
    """Let what a parameter has be there by all of its names, as where it is cut in two each is asked for."""
    for first, *others in _shared_names(whole):
        for key, start in _entries(state, first).items():
            part = start.partition(".")[0]
            for other in others:
                state[f"{part}.{other}.{key.removeprefix(start)}"] = state[key]


def _folded(state: Mapping[str, Any], whole: torch.nn.Module) -> dict[str, Any]:
    """With what a parameter has by one of its names only, as torch has it."""
    folded = dict(state)
    for first, *others in _shared_names(whole):
        has = bool(_entries(folded, first))
        for other in others:
            for key, start in _entries(folded, other).items():
                value = folded.pop(key)
                if not has:
                    folded[f"{start.partition('.')[0]}.{first}.{key.removeprefix(start)}"] = value
            has = has or bool(_entries(folded, first))
    return folded


def _compare_parameters(whole: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """ValueError where the optimizer has some that have no name in the model."""
    known = {id(q) for q in whole.parameters()}
    strangers = sum(id(q) not in known for group in optimizer.param_groups for q in group["params"])
    if strangers:
        raise ValueError(
            f"{strangers} of the optimizer's parameters are none of the model's, so that nothing could be saved of "
            "them; give a model that has them, too"
        )
