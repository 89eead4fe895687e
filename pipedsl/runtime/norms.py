"""The norm of the gradients of all stages together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from pipedsl.runtime.tied import local_part
from pipedsl.runtime.wire import Wire

CLIPPING = "clipping the gradients"


def clip_over_ranks(
    wire: Wire,
    parameters: Iterable[torch.nn.Parameter],
    counted_elsewhere: Collection[int],
    device: torch.device,
    max_norm: float,
    norm_type: float,
    note: Callable[[str, Collection[int]], None],
) -> torch.Tensor:
    """Scale the gradients of `parameters` so that those of all ranks together have at most this norm; that norm before.

    `counted_elsewhere`: `id`s of parameters whose gradient another rank counts. Every rank computes with the same norm.
    It is float64 where this rank has gradients of that type, float32 elsewhere. `note` is told what begins, and with
    which ranks, by their numbers in the whole job.
    """
    norm_type = float(norm_type)
    every = list(dict.fromkeys(parameters))
    own = [q for q in every if q.grad is not None]
    double = any((q if q.grad is None else q.grad).dtype is torch.float64 for q in every)
    counted: list[torch.Tensor] = [q.grad for q in own if q.grad is not None and id(q) not in counted_elsewhere]
    norms = []
    for each in _by_mesh(counted):
        mesh: Any = getattr(each[0], "device_mesh", None)
        if mesh is not None:
            note(f"{CLIPPING}: those of a stage over its replicas", mesh.mesh.flatten().tolist())
        norms.append(_norm(each, norm_type).to(device, torch.float64))
    note(CLIPPING, wire.ranks)
    norm = _combine(wire, norms, device, norm_type)
    for group in _by_mesh([q.grad for q in own if q.grad is not None]):
        # A factor of 1 is no synchronisation, where asking for it on a GPU would be one.
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in group:
            local_part(gradient).mul_(factor.to(gradient.dtype))
    return norm if double else norm.to(torch.float32)


def _combine(wire: Wire, norms: list[torch.Tensor], device: torch.device, norm_type: float) -> torch.Tensor:
    """The norm of what the parts on all ranks have these norms of; 0 where there are none, as torch has it."""
    parts = torch.stack([*norms, torch.zeros((), dtype=torch.float64, device=device)])[:-1]
    if math.isinf(norm_type):
        sign = math.copysign(1.0, norm_type)  # the smallest is what has the largest negative
        both = torch.stack(
            [(sign * parts).amax() if norms else parts.new_tensor(-math.inf), parts.new_tensor(len(norms))]
        )
        wire.all_reduce(both, largest=True)
        found = sign * both[0]
    else:
        power = norm_type or 1.0  # of type 0 it is how many of the gradients are not all zero
        both = torch.stack([parts.pow(power).sum(), parts.new_tensor(len(norms))])
        wire.all_reduce(both)
        found = both[0].pow(1 / power)
    return torch.where(both[1] > 0, found, 0.0)


def _by_mesh(gradients: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Gradients that torch can handle together: plain ones, and the distributed ones of each mesh."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    return list(groups.values())


def _norm(gradients: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    norm: torch.Tensor = torch.nn.utils.get_total_norm(gradients, norm_type)
    whole: Any = getattr(norm, "full_tensor", None)  # of a distributed tensor: over all its parts
    if whole is not None:
        norm = whole()
    return norm
