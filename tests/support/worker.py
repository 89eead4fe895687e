"""What the worker scripts of the tests share."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

PATIENCE = 240.0  # seconds that ranks wait for each other, where it is not time that is to run out
_COUNT = itertools.count()


def start() -> int:
    """Join the job; this process's rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE + 20))
    return dist.get_rank()


def load(path: str | Path) -> Any:
    """Import a generated file, or another one. Its W has something to do in stages as small as those of tests, too."""
    spec = importlib.util.spec_from_file_location(f"compiled_{next(_COUNT)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "WORTH_DEFERRING"):
        module.WORTH_DEFERRING = 1
    return module


def mlp(stages: int, width: int = 6) -> list[nn.Module]:
    """A classifier of integers in `stages` stages."""
    parts = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(stages)]
    parts[0].insert(0, nn.Embedding(11, width))
    parts[-1].append(nn.Linear(width, 5))
    return list(parts)


class Nested(nn.Module):
    """Returns a dict with tensors of three dtypes, constants and an unused tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if isinstance(x, dict):
            x = x["pair"][0] + x["pair"][1].to(x["pair"][0].dtype) * x["scale"]
        y = self.inner(x)
        return {
            "pair": (y, y.double() * 2),
            "index": [torch.arange(2), y > 0],
            "scale": 0.5,
            "none": None,
            "unused": y.sum(),
        }


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.inner(x["pair"][0] + x["pair"][1].to(x["pair"][0].dtype) * x["scale"])


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: q.grad for name, q in module.named_parameters()}


def alone(
    stages: list[nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    batches: list[Any],
    targets: list[Any],
) -> torch.Tensor:
    """One process that accumulates the same microbatches; the losses. Gradients are left in `.grad`."""
    losses = []
    for value, target in zip(batches, targets, strict=True):
        for stage in stages:
            value = stage(value)
        loss = loss_fn(value, target)
        (loss / len(batches)).backward()
        losses.append(loss.detach().reshape(()))
    return torch.stack(losses)


def difference(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> float:
    """The largest difference relative to the largest entry; a missing gradient counts as zeros.

    Infinite, and not a number that compares with nothing, where either has entries that are no numbers.
    """
    if ours is None or theirs is None:
        present = theirs if ours is None else ours
        return 0.0 if present is None or not present.any() else float("inf")
    if ours.shape != theirs.shape or not (ours.isfinite().all() and theirs.isfinite().all()):
        return float("inf")
    scale = theirs.abs().max().clamp_min(1e-30)
    return float((ours - theirs).abs().max() / scale)
