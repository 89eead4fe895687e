"""What I and W do grows with a stage's depth as what B does, counted in operations and in calls of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Arrived, Chunk
from pipedsl.runtime.tree import flatten


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def counted(run: Callable[[], None]) -> tuple[int, int]:
    """Operations of torch, and calls of Python functions, each counted in a run of its own."""
    with Counting() as mode:
        run()
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return mode.operations, calls


def tiny(depth: int) -> nn.Module:
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.Tanh())])


def backward_of(module: nn.Module, kind: str) -> tuple[int, int]:
    chunk = Chunk(module, [0] if kind == "split" else ())
    structure, leaves = flatten(torch.randn(2, 4))

    def run() -> None:
        chunk.begin()
        y = chunk.forward(0, Arrived(structure, leaves, [True], 2), {})
        chunk.keep(0, [y])
        if kind == "split":
            chunk.backward_input(0, [torch.ones_like(y)])
            chunk.backward_weight(0)
        else:
            chunk.backward(0, [torch.ones_like(y)])

    run()  # the first gradients are made, later ones added
    return counted(run)


def test_a_split_backward_is_linear_in_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)
    depths = (16, 32, 64)
    whole, split = ([backward_of(tiny(depth), kind) for depth in depths] for kind in ("whole", "split"))
    for what in range(2):
        shallow, middle, deep = (each[what] for each in split)
        assert deep - middle <= 2.05 * (middle - shallow), split
    for depth, (operations, _), (expected, _) in zip(depths, split, whole, strict=True):
        # A product in W stands for one in B; the weight that was used is kept as a view.
        assert operations <= expected + depth, (split, whole)
