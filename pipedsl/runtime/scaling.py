"""GradScaler over several ranks: all of them skip a step, or none."""

from __future__ import annotations

from typing import Any

import torch

from pipedsl.runtime.tied import local_part
from pipedsl.runtime.wire import Wire


def unscale_over_ranks(wire: Wire, scaler: Any, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """`scaler.unscale_(optimizer)`, which finds infinities here where any rank has one: the scaler looks at its own."""
    if not scaler.is_enabled():
        return
    scaler.scale(torch.zeros((), device=device))  # else it has no scale on ranks that have no loss
    gradients = [local_part(q.grad) for group in optimizer.param_groups for q in group["params"] if q.grad is not None]
    infinite = torch.zeros((), device=device)
    for gradient in gradients:
        infinite = torch.maximum(infinite, (~gradient.isfinite().all()).to(infinite))
    wire.all_reduce(infinite, largest=True)
    for gradient in gradients[:1]:
        gradient.mul_(torch.where(infinite > 0, torch.inf, 1.0).to(gradient.dtype))
    scaler.unscale_(optimizer)
    if not gradients:  # of which the scaler has noted nothing, and would refuse to step
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"][device] = infinite
