"""One stage's module: its forward, its backward, and the backward split in two without changing the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipedsl.runtime.extras import asked_for, choose
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
    """A stage's input for one microbatch: tensors without history, and which of them need a gradient.

    `rows`: of the microbatch, in the batch that the first stage was given.
    """

    structure: Structure
    leaves: Sequence[torch.Tensor]
    needs: Sequence[bool]
    rows: int


@dataclass
class _Kept:
    """What a microbatch keeps from its forward until its backward has run.

    `inputs`: the tensors whose gradient goes to the stage before. `outputs`: those that gradients come back for.
    `gradients`: these gradients, and `leaves` what W accumulates into, from I until W.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    gradients: Sequence[torch.Tensor] = ()
    leaves: Sequence[torch.Tensor] = ()


class Chunk:
    """A stage on its rank. Microbatches are kept apart by number."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._asked = asked_for(module)
        self._kept: dict[int, _Kept] = {}
        self._buffers: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Start a step."""
        self._kept.clear()
        self._buffers = frozenset(b.untyped_storage().data_ptr() for b in self._module.buffers()) - {0}

    def forward(self, microbatch: int, arrived: Arrived, extras: Mapping[str, Any]) -> Any:
        """Run the module on what came from the stage before, and on those of the extras that it asks for."""
        inputs, leaves = [], []
        for leaf, needed in zip(arrived.leaves, arrived.needs, strict=True):
            if needed:
                own = leaf.detach().requires_grad_()
                inputs.append(own)
                leaves.append(_Enter.apply(own))  # type: ignore[no-untyped-call]
            else:
                leaves.append(leaf)
        output = self._module(unflatten(arrived.structure, leaves), **choose(extras, self._asked))
        self._kept[microbatch] = _Kept(inputs, [])
        return output

    def run_first(self, microbatch: int, value: Any, extras: Mapping[str, Any]) -> Any:
        """Run the first stage on its part of the batch, which no gradient is sent back for."""
        self._kept[microbatch] = _Kept([], [])
        return self._module(value, **choose(extras, self._asked))

    def handed_over(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs without history, for another stage to keep: copies of those that the module may write to again.

        These are tensors that no gradient goes through, and views of its buffers.
        """
        return [
            leaf.detach().clone(memory_format=torch.contiguous_format)
            if not leaf.requires_grad or leaf.untyped_storage().data_ptr() in self._buffers
            else leaf.detach()
            for leaf in outputs
        ]

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
        """I: the inputs' gradients alone. The graph stays for W where there is something for it to do."""
        kept = self._kept[microbatch]
        own = {id(x) for x in kept.inputs}
        kept.leaves = [leaf for leaf in graph_leaves(kept.outputs) if id(leaf) not in own]
        more = bool(kept.leaves)
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
        """W: accumulate the gradients of all that B would but the stage's inputs."""
        kept = self._kept.pop(microbatch)
        if kept.leaves:
            torch.autograd.backward(kept.outputs, kept.gradients, inputs=kept.leaves)


def graph_leaves(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that the backward of `outputs` accumulates into: parameters, registered or not, and inputs.

    Found in the graph, as a module may use tensors that it has not registered, and others for every microbatch. Takes
    less than a microsecond a node.
    """
    leaves = [y for y in outputs if y.grad_fn is None]
    nodes = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen = set(nodes)
    nodes = list(seen)
    accumulate: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
    while nodes:
        node = nodes.pop()
        if isinstance(node, accumulate):
            leaves.append(node.variable)
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return list({id(leaf): leaf for leaf in leaves}.values())
