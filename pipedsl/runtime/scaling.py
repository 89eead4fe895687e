"""GradScaler over several ranks: all of them skip a step, or none."""

from __future__ import annotations

from typing import Any

import torch

from pipedsl.runtime.wire import Wire


def unscale_over_ranks(wire: Wire, scaler: Any, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """`scaler.unscale_(optimizer)`, after which the scaler knows of infinities on any rank: it looks at its own."""
    scaler.scale(torch.zeros((), device=device))  # else it has no scale on ranks that have no loss
    scaler.unscale_(optimizer)
    found: dict[torch.device, torch.Tensor] = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    infinite = torch.zeros((), device=device)
    for each in found.values():
        infinite = torch.maximum(infinite, each.to(infinite))
    wire.all_reduce(infinite, largest=True)
    for each in found.values():
        each.copy_(infinite)
    if not found:  # without gradients, and the scaler would refuse to step
        found[device] = infinite
