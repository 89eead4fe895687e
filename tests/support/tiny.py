"""A model of tiny stages that is really run, with torch's autograd in double precision, thousands of times a minute.

A computation with the same inputs has the same outputs, so each is run once and looked up from then on: programs that
differ in one operation share nearly all of them. Inputs are told apart by which value they are, not by what it is
called, so whoever gets another microbatch's message gets another microbatch's gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Value:
    """What one stage sends another. Two are the same only if they were made by the same computation."""

    tensor: torch.Tensor


@dataclass(eq=False)
class Kept:
    """What a forward keeps for its backward; `output` is what the next stage gets, None after the last stage."""

    stage: int
    leaf: torch.Tensor
    result: torch.Tensor
    output: Value | None


@dataclass(eq=False)
class Gradients:
    """What a backward makes: for the stage before, and for the stage's own parameters; None for what it left out."""

    input: Value | None
    own: tuple[float, ...] | None


@dataclass(eq=False)
class Model:
    """`stages` of two parameters each, and a microbatch's data and target for each of `microbatches`."""

    stages: int
    microbatches: int
    parameters: list[tuple[torch.Tensor, torch.Tensor]] = field(init=False, repr=False)
    data: list[Value] = field(init=False, repr=False)
    targets: list[torch.Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(20)

        def numbers(size: int, low: float, high: float) -> torch.Tensor:
            return low + (high - low) * torch.rand(size, generator=draw, dtype=torch.float64)

        self.parameters = [
            (numbers(1, 0.7, 1.3).requires_grad_(), numbers(1, -0.2, 0.2).requires_grad_()) for _ in range(self.stages)
        ]
        self.data = [Value(numbers(2, -1, 1)) for _ in range(self.microbatches)]
        self.targets = [numbers(2, -1, 1) for _ in range(self.microbatches)]
        self._forwards: dict[tuple[int, int, Value], Kept] = {}
        self._backwards: dict[tuple[Kept, Value | None, str], Gradients] = {}

    def _apply(self, stage: int, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.parameters[stage]
        return torch.tanh(x * weight + bias)

    def _loss(self, y: torch.Tensor, microbatch: int) -> torch.Tensor:
        return ((y - self.targets[microbatch]) ** 2).sum()

    def forward(self, stage: int, microbatch: int, x: Value) -> Kept:
        """Run a stage; the last one compares with the target of `microbatch`."""
        last = stage == self.stages - 1
        key = (stage, microbatch if last else -1, x)
        if key not in self._forwards:
            leaf = x.tensor.detach().requires_grad_()
            y = self._apply(stage, leaf)
            result = self._loss(y, microbatch) if last else y
            self._forwards[key] = Kept(stage, leaf, result, None if last else Value(y.detach()))
        return self._forwards[key]

    def backward(self, kept: Kept, gradient: Value | None, kind: str) -> Gradients:
        """B, I or W of what `kept` is of; `gradient` is of its output, None after the last stage."""
        key = (kept, gradient, kind)
        if key not in self._backwards:
            wanted = {"I": (kept.leaf,), "W": self.parameters[kept.stage]}.get(
                kind, (kept.leaf, *self.parameters[kept.stage])
            )
            found = torch.autograd.grad(
                kept.result, wanted, None if gradient is None else gradient.tensor, retain_graph=True
            )
            own = tuple(float(one) for one in found[-2:]) if kind != "I" else None
            self._backwards[key] = Gradients(Value(found[0]) if kind != "W" else None, own)
        return self._backwards[key]

    def one_process(self) -> list[tuple[float, ...]]:
        """The gradients of every stage, as one process makes them from the whole batch."""
        total = torch.zeros((), dtype=torch.float64)
        for microbatch in range(self.microbatches):
            x = self.data[microbatch].tensor
            for stage in range(self.stages):
                x = self._apply(stage, x)
            total = total + self._loss(x, microbatch)
        flat = torch.autograd.grad(total, [each for pair in self.parameters for each in pair])
        return [(float(flat[2 * s]), float(flat[2 * s + 1])) for s in range(self.stages)]

    def equal(self, contributions: Iterable[tuple[int, tuple[float, ...]]]) -> bool:
        """Whether (stage, gradients) of all backwards add up to what one process makes."""
        sums = [[0.0, 0.0] for _ in range(self.stages)]
        for stage, own in contributions:
            sums[stage][0] += own[0]
            sums[stage][1] += own[1]
        return all(
            abs(a - b) <= 1e-12 * max(1.0, abs(b))
            for ours, theirs in zip(sums, self._reference(), strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )

    def _reference(self) -> list[tuple[float, ...]]:
        if not hasattr(self, "_known"):
            self._known = self.one_process()
        return self._known
