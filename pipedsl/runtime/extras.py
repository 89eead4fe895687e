"""Keyword inputs: what a stage wants to know besides what the stage before returned, as masks or positions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipedsl.runtime.tree import flatten, split

Extras = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_PASSING_ON = ("_orig_mod", "_checkpoint_wrapped_module")
"""What torch.compile and checkpoint_wrapper, which take anything and pass it on, call the module inside."""


def asked_for(module: torch.nn.Module) -> frozenset[str] | None:
    """The keywords that a module's forward takes besides its input; None where it takes any."""
    inner = module
    while True:
        wrapped = [x for name in _PASSING_ON if isinstance(x := getattr(inner, name, None), torch.nn.Module)]
        if isinstance(inner, torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif wrapped:
            inner = wrapped[0]
        else:
            break
    try:
        parameters = inspect.signature(inner.forward).parameters.values()
    except (TypeError, ValueError):  # TorchScript's traces do not say
        return frozenset()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return frozenset(by_name) - frozenset(positional[:1])


def choose(extras: Mapping[str, Any], asked: frozenset[str] | None) -> Mapping[str, Any]:
    """Those of one microbatch's extras that a stage asks for."""
    return extras if asked is None else {name: value for name, value in extras.items() if name in asked}


def split_extras(extras: Extras | None, parts: int) -> Sequence[Mapping[str, Any]]:
    """The extras of every microbatch.

    A mapping's tensors are split along dimension 0, as the batch is; what has no tensor goes to all. A sequence is one
    mapping per microbatch already. ValueError where that cannot be.
    """
    if extras is None:
        return ({},) * parts
    if not isinstance(extras, Mapping):
        if len(extras) != parts or not all(isinstance(each, Mapping) for each in extras):
            raise ValueError(f"extras must be a dict, or a list of m = {parts} dicts, one per microbatch")
        return extras
    shares: list[dict[str, Any]] = [{} for _ in range(parts)]
    for name, value in extras.items():
        what = f"extra {name!r}"
        values = split(value, parts, what)[0] if flatten(value, what)[1] else [value] * parts
        for share, each in zip(shares, values, strict=True):
            share[name] = each
    return shares
