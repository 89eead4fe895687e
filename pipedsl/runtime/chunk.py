"""One stage's module: its forward, its backward, and the backward split in two without changing the module."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from pipedsl.runtime.apart import Apart
from pipedsl.runtime.deferred import Deferral, Product, multiply, run_backward
from pipedsl.runtime.extras import asked_for, choose
from pipedsl.runtime.overlaps import overlapping
from pipedsl.runtime.tree import Structure, unflatten

Gradients = Sequence[torch.Tensor | None]

_WRITES_TO_LEAF = "leaf Variable that requires grad is being used in an in-place operation"


class _Enter(torch.autograd.Function):
    """Identity. Behind it the stage may change its input in place, which torch forbids on a leaf."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # what has no gradient is not to get zeros
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


class Arrived(NamedTuple):
    """A stage's input for one microbatch: tensors without history, and which of them need a gradient.

    `rows`: of the microbatch, in the batch that the first stage was given. `shared`: those that share memory with
    another one where the stage before returned them, by number.
    """

    structure: Structure
    leaves: Sequence[torch.Tensor]
    needs: Sequence[bool]
    rows: int
    shared: Sequence[int] = ()


@dataclass(slots=True)
class _Kept:
    """What a microbatch keeps from its forward until its backward has run, besides what autograd does.

    `inputs`: the tensors whose gradient goes to the stage before. `outputs`: where the backward starts, without holding
    the tensors.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor | GradientEdge]

    def start(self, gradients: Gradients) -> tuple[list[torch.Tensor | GradientEdge], Any]:
        """The outputs that have a gradient, and these."""
        if all(g is not None for g in gradients):
            return self.outputs, gradients
        pairs = [(y, g) for y, g in zip(self.outputs, gradients, strict=True) if g is not None]
        return [y for y, _ in pairs], [g for _, g in pairs]

    def gradients(self) -> list[torch.Tensor | None]:
        """Of the inputs, in order; None where the module made no use of one."""
        return [x.grad for x in self.inputs]


class Chunk:
    """A stage on its rank. Microbatches are kept apart by number.

    `split`: the microbatches whose backward runs as I and, later, W.
    """

    def __init__(self, module: torch.nn.Module, split: Collection[int] = ()) -> None:
        self._module = module
        self._split = frozenset(split)
        self._splits: frozenset[int] = frozenset()  # of this step
        self._asked = asked_for(module)
        self._writes: bool | None = None  # whether the module writes to its input; None until it has run once
        self.once = False  # a microbatch's forward must not run a second time, as it would draw other numbers
        self._deferral = Deferral(module)
        self._apart = Apart([module])
        self._beside: Sequence[Chunk] = (self,)
        self._kept: dict[int, _Kept] = {}
        self._products: dict[int, list[Product]] = {}
        self._buffers: frozenset[int] = frozenset()

    @property
    def is_trained(self) -> bool:
        """Whether it has a parameter that is to get a gradient."""
        return any(q.requires_grad for q in self._module.parameters())

    def learn(self, beside: Sequence[Chunk], loss: Any) -> None:
        """`beside`: the chunks of its rank, with itself. `loss`: the loss function, if it comes behind this stage."""
        self._beside = beside
        if isinstance(loss, torch.nn.Module):
            self._apart = Apart([self._module, loss])

    def begin(self, train: bool = True) -> None:
        """Start a step, with backwards or without."""
        self._buffers = frozenset(b.untyped_storage().data_ptr() for b in self._module.buffers())
        self._splits = self._split if train else frozenset()
        if self._splits:
            self._deferral.begin()
        if train:
            self._apart.begin()

    def renew(self) -> None:
        """The next step may be of another kind than those before."""

    def forward(self, microbatch: int, arrived: Arrived, extras: Mapping[str, Any]) -> Any:
        """Run the module on what came from the stage before, and on those of the extras that it asks for."""
        inputs: list[torch.Tensor] = []
        leaves = []
        guarded = self._writes is not False or self.once
        for leaf, needed in zip(arrived.leaves, arrived.needs, strict=True):
            if needed:
                own = leaf.detach().requires_grad_()
                inputs.append(own)
                leaves.append(_Enter.apply(own) if guarded else own)  # type: ignore[no-untyped-call]
            else:
                leaves.append(leaf)
        versions = [x._version for x in inputs] if guarded else []
        try:
            output = self._call(microbatch, unflatten(arrived.structure, leaves), extras)
        except RuntimeError as error:
            if guarded or not any(_WRITES_TO_LEAF in each for each in error.args if isinstance(each, str)):
                raise
            self._writes = True  # to this one, and not to the first: run it once more
            return self.forward(microbatch, arrived, extras)
        if self._writes is None and inputs:
            self._writes = versions != [x._version for x in inputs]
        self._kept[microbatch] = _Kept(inputs, [])
        return output

    def run_first(self, microbatch: int, value: Any, extras: Mapping[str, Any]) -> Any:
        """Run the first stage on its part of the batch, which no gradient is sent back for."""
        self._kept[microbatch] = _Kept([], [])
        return self._call(microbatch, value, extras)

    def _call(self, microbatch: int, value: Any, extras: Mapping[str, Any]) -> Any:
        if extras:
            extras = choose(extras, self._asked)
        if microbatch not in self._splits:
            return self._module(value, **extras)
        with self._deferral.used():
            return self._module(value, **extras)

    def handed_over(self, microbatch: int, outputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Sequence[int]]:
        """The outputs without history, for another stage to keep: copies of those that the module may write to again.

        These are tensors that no gradient goes through, and views of its buffers. Copies, too, of its parameters and
        views of these, for the other stage must not write to them. With them, which of the outputs share memory with
        another one.
        """
        tensors = []
        for y in outputs:
            x = y.detach()
            if type(x) is not torch.Tensor and (wait := getattr(x, "wait", None)) is not None:
                x = wait()  # a tensor parallel module has left it under way
            tensors.append(x)
        shared = overlapping(tensors, [id(y) for y in outputs]) if len(outputs) > 1 else ()
        for i, y in enumerate(outputs):
            if not y.requires_grad or self._is_own(microbatch, y) or self._is_buffer(tensors[i]):
                tensors[i] = tensors[i].clone(memory_format=torch.contiguous_format)
        return tensors, shared

    def _is_own(self, microbatch: int, y: torch.Tensor) -> bool:
        """Whether it is a parameter, registered or not, or a view of one, and not of an input that is passed on."""
        whole = y if y._base is None else y._base
        return whole.is_leaf and all(whole is not x for x in self._kept[microbatch].inputs)

    def _is_buffer(self, x: torch.Tensor) -> bool:
        return bool(self._buffers) and x.untyped_storage().data_ptr() in self._buffers

    def keep(self, microbatch: int, outputs: Sequence[torch.Tensor]) -> None:
        """Note where the backward starts."""
        kept = self._kept[microbatch]
        kept.outputs = [
            y if y.grad_fn is None else GradientEdge(y.grad_fn, y.output_nr) for y in outputs if y.requires_grad
        ]
        if not self._apart.looked:
            self._apart.look(kept.outputs, kept.inputs)

    def forget(self, microbatch: int) -> None:
        """No backward will follow."""
        del self._kept[microbatch]

    def backward(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        """B: accumulate the parameters' gradients; the inputs' gradients, in order. None is for what has none."""
        kept = self._kept.pop(microbatch)
        outputs, present = kept.start(gradients)
        if outputs:
            run_backward(outputs, present)
        return self._gradients_of(kept, microbatch, present)

    def backward_input(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        """I: the inputs' gradients, and of the parameters' those that do not wait for W."""
        kept = self._kept.pop(microbatch)
        outputs, present = kept.start(gradients)
        if outputs:
            self._products[microbatch] = self._deferral.backward(outputs, present)
        return self._gradients_of(kept, microbatch, present)

    def _gradients_of(self, kept: _Kept, microbatch: int, given: Gradients) -> list[torch.Tensor | None]:
        """The inputs' gradients, in memory that no parameter's first gradient is left in; nor in what waits for W."""
        found = kept.gradients()
        if self._apart.without:
            waiting = [g for each in self._beside for _, g, *_ in each._products.get(microbatch, ())]
            self._apart.keep([*given, *found, *waiting])
        return found

    def backward_weight(self, microbatch: int) -> None:
        """W: accumulate the parameters' gradients that have waited."""
        multiply(self._products.pop(microbatch, []))
