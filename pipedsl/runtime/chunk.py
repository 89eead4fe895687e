"""One stage's module: its forward, its backward, and the backward split in two without changing the module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipedsl.runtime.tree import Structure, unflatten


class _Enter(torch.autograd.Function):
    """Identity. Behind it the stage may change its input in place, which torch forbids on a leaf."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@dataclass(frozen=True)
class Arrived:
    """A stage's input for one microbatch: tensors without history, and which of them need a gradient."""

    structure: Structure
    leaves: Sequence[torch.Tensor]
    needs: Sequence[bool]


@dataclass
class _Kept:
    """What a microbatch keeps from its forward until its backward has run.

    `inputs`: the tensors whose gradient goes to the stage before. `outputs`: those that gradients come back for.
    `gradients`: these gradients, from I until W.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    gradients: Sequence[torch.Tensor] = ()


class Chunk:
    """A stage on its rank. Microbatches are kept apart by number."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._kept: dict[int, _Kept] = {}
        self._parameters: list[torch.nn.Parameter] = []

    def begin(self, extra: Sequence[torch.nn.Parameter] = ()) -> None:
        """Start a step; `extra` are parameters outside the module that W must reach, as those of a loss."""
        self._kept.clear()
        known = {id(q): q for q in [*self.module.parameters(), *extra] if q.requires_grad}
        self._parameters = list(known.values())

    def forward(self, microbatch: int, arrived: Arrived) -> Any:
        """Run the module on what came from the stage before."""
        inputs, leaves = [], []
        for leaf, needed in zip(arrived.leaves, arrived.needs, strict=True):
            if needed:
                own = leaf.detach().requires_grad_()
                inputs.append(own)
                leaves.append(_Enter.apply(own))  # type: ignore[no-untyped-call]
            else:
                leaves.append(leaf)
        output = self.module(unflatten(arrived.structure, leaves))
        self._kept[microbatch] = _Kept(inputs, [])
        return output

    def run_first(self, microbatch: int, value: Any) -> Any:
        """Run the first stage on its part of the batch, which gets no gradient."""
        self._kept[microbatch] = _Kept([], [])
        return self.module(value)

    def keep(self, microbatch: int, outputs: Sequence[torch.Tensor]) -> None:
        """Note the tensors that the backward starts from."""
        self._kept[microbatch].outputs = [y for y in outputs if y.requires_grad]

    def forget(self, microbatch: int) -> None:
        """No backward will follow."""
        del self._kept[microbatch]

    def seed(self, microbatch: int, value: float) -> list[torch.Tensor]:
        """The gradients that the backward of a loss starts with."""
        return [torch.full_like(y, value) for y in self._kept[microbatch].outputs]

    def backward(self, microbatch: int, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """B: accumulate the parameters' gradients; the inputs' gradients, in order."""
        kept = self._kept.pop(microbatch)
        if kept.outputs:
            torch.autograd.backward(kept.outputs, gradients)
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in kept.inputs]

    def backward_input(self, microbatch: int, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """I: the inputs' gradients alone. The graph stays for W where there are parameters."""
        kept = self._kept[microbatch]
        more = bool(self._parameters)
        found: Sequence[torch.Tensor | None] = [None] * len(kept.inputs)
        if kept.inputs and kept.outputs:
            found = torch.autograd.grad(kept.outputs, kept.inputs, gradients, retain_graph=more, allow_unused=True)
        results = [torch.zeros_like(x) if g is None else g for x, g in zip(kept.inputs, found, strict=True)]
        kept.inputs = []
        if more:
            kept.gradients = gradients
        else:
            kept.outputs = []
        return results

    def backward_weight(self, microbatch: int) -> None:
        """W: accumulate the parameters' gradients alone."""
        kept = self._kept.pop(microbatch)
        if kept.outputs and self._parameters:
            torch.autograd.backward(kept.outputs, kept.gradients, inputs=self._parameters)
