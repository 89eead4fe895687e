"""For `executor_ranks.py`: a backward split in two, in our way and in PyTorch's, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import _backward as torch_backward
from torch.utils.checkpoint import checkpoint

from examples.train_gpt import Block
from pipedsl.runtime.chunk import Arrived, Chunk

WIDTH, SEQUENCE, LAYERS, HEADS = 256, 128, 8, 4
TENSOR = ("tensor",)


class Both:
    """A module's backward in our way and in PyTorch's: whole, or split in two."""

    def __init__(self, module: nn.Module, x: torch.Tensor) -> None:
        self.module = module
        self.chunk = Chunk(module, range(1 << 20))
        self.whole = Chunk(module)
        self.x = x
        self.gradient = torch.randn_like(module(x)) / x.numel()

    def ours(self, split: bool) -> float:
        """CPU seconds of the backward."""
        chunk = self.chunk if split else self.whole
        chunk.begin()
        output = chunk.forward(0, Arrived(TENSOR, [self.x], [True], 1), {})
        chunk.keep(0, [output])
        began = time.process_time()
        if split:
            chunk.backward_input(0, [self.gradient])
            chunk.backward_weight(0)
        else:
            chunk.backward(0, [self.gradient])
        return time.process_time() - began

    def by_kind(self, split: bool) -> list[tuple[str, float]]:
        """CPU seconds of a microbatch's computations, in our way."""
        chunk = self.chunk if split else self.whole
        chunk.begin()
        began = time.thread_time()
        output = chunk.forward(0, Arrived(TENSOR, [self.x], [True], 1), {})
        chunk.keep(0, [output])
        times = [began, time.thread_time()]
        (chunk.backward_input if split else chunk.backward)(0, [self.gradient])
        times.append(time.thread_time())
        if split:
            chunk.backward_weight(0)
            times.append(time.thread_time())
        return list(zip("FIW" if split else "FB", (b - a for a, b in pairwise(times)), strict=True))

    def torch(self, split: bool) -> float:
        x = self.x.detach().requires_grad_()
        output = self.module(x)
        began = time.process_time()
        if split:
            _, groups = torch_backward.stage_backward_input([output], [self.gradient], [x], self.module.parameters())
            torch_backward.stage_backward_weight(self.module.parameters(), groups)
        else:
            torch_backward.stage_backward(output, self.gradient, [x])
        return time.process_time() - began

    def ratio(self, way: Callable[[bool], float], times: int) -> float:
        """(I + W) / B, of times measured in turn."""
        found = [(way(True), way(False)) for _ in range(times)]
        return sum(split for split, _ in found) / sum(whole for _, whole in found)


class Counted(nn.Module):
    """Layers under activation checkpointing, and how often they ran."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64, HEADS) for _ in range(layers))
        self.runs = 0

    def one(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return block(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(self.one, block, x, use_reentrant=False)
        return x


class Custom(torch.autograd.Function):
    runs = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        Custom.runs += 1
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(tuple(range(x.dim() - 1)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Custom.apply(x, self.weight)


def tiny(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(layers)))


def split(task: dict[str, Any], rank: int) -> Any:
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    wide = Both(nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(2))), torch.randn(1, SEQUENCE, WIDTH))
    small = Both(tiny(48), torch.randn(4, 16))
    for name, both, times in (("2 layers of width 256", wide, 8), ("48 tiny layers", small, 20)):
        both.ratio(both.ours, 3), both.ratio(both.torch, 3)
        ways = {"ours": both.ours, "torch": both.torch}
        found[name] = {who: [] for who in ways}
        for _ in range(task["rounds"]):
            for who, way in ways.items():
                found[name][who].append(both.ratio(way, times))
    found["depths"] = {}
    for depth in (12, 48, 192):
        both = Both(tiny(depth), torch.randn(4, 16))
        found["depths"][depth] = [both.ratio(both.ours, 10) for _ in range(task["rounds"])]
    found["recomputed"] = {}
    for layers in (1, 4):
        module = Counted(layers)
        both = Both(module, torch.randn(1, 16, 64))
        counts = []
        for way in (both.ours, both.torch):
            module.runs = 0
            way(True)
            counts.append(module.runs / layers)
        found["recomputed"][f"{layers} checkpointed"] = counts
    both = Both(nn.Sequential(Scaled(), nn.Linear(16, 16)), torch.randn(4, 16))
    counts = []
    for way in (both.ours, both.torch):
        Custom.runs = 0
        way(True)
        counts.append(Custom.runs)
    found["custom"] = counts
    return found
