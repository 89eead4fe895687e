"""First gradients that lie in memory which something else needs.

The first gradient of a parameter is what a backward has made, and that may be a view: behind `x + bias.view_as(x)` it
lies in the gradient of the sum. In one process nobody cares. In a pipeline that may be sent to another stage, wait for
W, or be what the backwards of other losses begin with, and the next microbatch would add to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


class Apart:
    """Who gets gradients in the backwards of a stage: `modules`, and what else their forwards make use of."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self._parameters: dict[torch.nn.Parameter, None] = {}
        self._others: list[weakref.ref[torch.Tensor]] = []  # that are in no module
        self.looked = False  # for these
        self.without: list[torch.Tensor] = []  # that had no gradient yet

    def begin(self) -> None:
        """A training step begins."""
        self._parameters = dict.fromkeys(q for module in self._modules for q in module.parameters())
        others = [q for each in self._others if (q := each()) is not None]
        self.without = [q for q in (*self._parameters, *others) if q.requires_grad and q.grad is None]

    def look(self, outputs: Iterable[torch.Tensor | GradientEdge], inputs: Sequence[torch.Tensor]) -> None:
        """Find those that are in no module, behind what the first forward has returned; but for its `inputs`.

        Or only in forwards and backwards, as the whole parameters of a sharded module.
        """
        self.looked = True
        known = {*map(id, self._parameters), *map(id, inputs)}
        others = [q for q in _leaves(outputs) if id(q) not in known]
        self._others = [weakref.ref(q) for q in others]
        self.without += [q for q in others if q.grad is None]

    def keep(self, held: Iterable[torch.Tensor | None]) -> None:
        """A backward has run: move the gradients that are new out of the memory of those that are `held`.

        And of each other: where two lie in one place, torch itself would add to both what is meant for one.
        """
        memory = {_address(x) for x in held if x is not None} - {0}
        left = []
        for q in self.without:
            if (g := q.grad) is None:
                left.append(q)
            elif (address := _address(g)) in memory:
                q.grad = g.clone()
            elif address:
                memory.add(address)
        self.without = left


def _address(x: torch.Tensor) -> int:
    """Of its memory; 0 where that is none, or of a kind that no other tensor lies in."""
    local: torch.Tensor = getattr(x, "_local_tensor", x)  # of a DTensor
    return local.untyped_storage().data_ptr() if local.layout == torch.strided else 0


def _leaves(outputs: Iterable[torch.Tensor | GradientEdge]) -> Iterator[torch.Tensor]:
    """The tensors that a backward from here adds gradients to."""
    stack: list[Any] = [y.node if isinstance(y, GradientEdge) else y.grad_fn for y in outputs]
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        stack.extend(each for each, _ in node.next_functions)
