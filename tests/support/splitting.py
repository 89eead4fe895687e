"""One stage whose backward is split in two, against torch's own backward of a copy."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from pipedsl.runtime.chunk import Arrived, Chunk


class Split:
    """A stage whose only microbatch's backward is split."""

    def __init__(self, module: nn.Module) -> None:
        self.chunk = Chunk(module, [0])
        self.chunk.begin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        arrived = Arrived(("tensor",), [x], [x.is_floating_point()], len(x))
        y: torch.Tensor = self.chunk.forward(0, arrived, {})
        self.chunk.keep(0, [y])
        return y.detach()

    def backward_input(self, gradient: torch.Tensor) -> torch.Tensor | None:
        found = self.chunk.backward_input(0, [gradient])
        return found[0] if found else None

    def backward_weight(self) -> None:
        self.chunk.backward_weight(0)

    @property
    def waiting(self) -> int:
        """How many modules' weight gradients wait for W."""
        return len(self.chunk._products.get(0, ()))


def gradient_for(y: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, y.numel()).view(y.shape).to(y.dtype)


def compare(module: nn.Module, x: torch.Tensor, *, waits: int, bound: float = 0.0) -> nn.Module:
    """Split the backward of `module` at `x`, and compare with a plain one of a copy; the module afterwards."""
    theirs = copy.deepcopy(module)
    needs = x.is_floating_point()
    leaf = x.clone().requires_grad_(needs)
    expected = theirs(leaf * 1 if needs else leaf)
    torch.autograd.backward(expected, gradient_for(expected))
    ours = Split(module)
    y = ours.forward(x.clone())
    assert torch.equal(y, expected)
    found = ours.backward_input(gradient_for(y))
    assert ours.waiting == waits
    if needs:
        assert found is not None
        torch.testing.assert_close(found, leaf.grad, rtol=0, atol=bound)
    ours.backward_weight()
    for (name, q), r in zip(module.named_parameters(), theirs.parameters(), strict=True):
        assert (q.grad is None) == (r.grad is None), name
        if q.grad is not None:
            torch.testing.assert_close(q.grad, r.grad, rtol=0, atol=bound)
            assert q.grad.dtype == q.dtype
            assert not q.grad.requires_grad
    return module


def two_steps(make: Callable[[], nn.Module], x: torch.Tensor, *, bound: float = 1e-5) -> tuple[nn.Module, nn.Module]:
    """Three microbatches, I first and W last, against torch's backward of each in another such module; both of them."""
    torch.manual_seed(2)
    module = make()
    torch.manual_seed(2)
    theirs = make()
    chunk = Chunk(module, range(3))
    inputs = [x, x + 0.5, x * 2] if x.is_floating_point() else [x, x.flip(0), x]
    for _ in range(2):
        for each in inputs:
            y = theirs(each)
            y.backward(gradient_for(y))
        chunk.begin()
        for i, each in enumerate(inputs):
            y = chunk.forward(i, Arrived(("tensor",), [each.clone()], [each.is_floating_point()], len(x)), {})
            chunk.keep(i, [y])
            chunk.backward_input(i, [gradient_for(y)])
        for i in range(3):
            chunk.backward_weight(i)
        for (name, q), r in zip(module.named_parameters(), theirs.parameters(), strict=True):
            assert (q.grad is None) == (r.grad is None), name
            if q.grad is not None:
                torch.testing.assert_close(q.grad, r.grad, rtol=bound, atol=bound)
    return module, theirs
