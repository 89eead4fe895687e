"""I and W where hooks, gradients and modules are others by the time of W than at the use, or than torch's own."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Chunk
from tests.support.splitting import Split, compare, gradient_for


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)


@pytest.mark.parametrize("way", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_hook_that_is_set_after_the_use_is_called(way: str, name: str) -> None:
    """Where there is a gradient that another one could be added to without autograd."""
    module = nn.Linear(4, 3)
    for q in module.parameters():
        q.grad = torch.zeros_like(q)
    ours = Split(module)
    y = ours.forward(torch.randn(5, 4))
    called: list[torch.Tensor] = []
    getattr(getattr(module, name), way)(called.append)
    ours.backward_input(gradient_for(y))
    assert ours.waiting == 1
    ours.backward_weight()
    assert len(called) == 1


class Untouched(torch.Tensor):
    """Nothing of Python's may be done to it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function not in (torch.Tensor.add_, torch.Tensor.addmm_)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [lambda g: g.as_subclass(Untouched), torch.Tensor.to_sparse], ids=["class", "sparse"])
def test_autograd_adds_to_gradients_of_other_kinds(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(3)
    module = nn.Linear(4, 3)
    theirs = copy.deepcopy(module)
    for each in (module, theirs):
        for q in each.parameters():
            q.grad = make(torch.ones_like(q))
    x = torch.randn(5, 4)
    y = theirs(x)
    y.backward(gradient_for(y))
    ours = Split(module)
    ours.backward_input(gradient_for(ours.forward(x)))
    ours.backward_weight()
    for q, r in zip(module.parameters(), theirs.parameters(), strict=True):
        assert q.grad is not None
        assert r.grad is not None
        assert type(q.grad) is type(r.grad)
        torch.testing.assert_close(q.grad.to_dense(), r.grad.to_dense(), check_layout=False)


class MadeInInference(torch.autograd.Function):
    """Its gradients are of a kind that cannot be told whether they have been written to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return gradient * 2


class BeforeInference(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = MadeInInference.apply(self.first(x))  # type: ignore[no-untyped-call]
        return y + self.second(x)


def test_gradients_that_are_made_in_inference_mode() -> None:
    compare(BeforeInference(), torch.linspace(-1, 1, 18).view(3, 6), waits=2)


class Learned(Two):
    """The first module's input is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(x) + self.first(self.places)
        return y


def test_modules_wait_whose_input_is_a_parameter() -> None:
    compare(Learned(), torch.linspace(-1, 1, 18).view(3, 6), waits=2)


def test_what_a_stage_keeps_of_a_module_s_forward_is_plain_outside_of_the_stage() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.kept: list[Any] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.append(self.inner.forward)
            y: torch.Tensor = self.kept[-1](x)
            return y

    module = Keeps()
    Split(module).forward(torch.ones(2, 4))
    (found,) = torch.autograd.grad(module.kept[0](torch.ones(2, 4)).sum(), module.inner.weight)
    assert torch.equal(found, torch.full((4, 4), 2.0))


def test_a_module_that_the_stage_has_no_more_is_let_go() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    ours = Split(module)
    ours.forward(torch.ones(2, 4))
    ours.backward_input(torch.ones(2, 4))
    ours.backward_weight()
    gone = weakref.ref(module[0])
    module[0] = nn.Linear(4, 4)
    ours.chunk.begin()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("kind", ["linear", "embedding"])
def test_a_weight_that_no_input_s_gradient_is_made_with_may_be_written_to(kind: str, checkpointed: bool) -> None:
    """As by a first layer that clamps its weights in each forward: torch keeps none of them for the backward."""

    class Clamps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 5) if kind == "linear" else nn.Embedding(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.inner.weight.clamp_(-0.2, 0.2)
            if not checkpointed:
                y: torch.Tensor = self.inner(x)
                return y
            again: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return again

    torch.manual_seed(5)
    module = Clamps()
    theirs = copy.deepcopy(module)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)] if kind == "linear" else [torch.arange(3), torch.arange(1, 4)]
    chunk = Chunk(module, range(2))
    chunk.begin()
    outputs = [theirs(x) for x in inputs]
    for i, x in enumerate(inputs):
        chunk.keep(i, [chunk.run_first(i, x, {})])
    for i, y in enumerate(outputs):
        y.backward(gradient_for(y))
        chunk.backward_input(i, [gradient_for(y)])
        assert len(chunk._products[i]) == 1
    for i in range(2):
        chunk.backward_weight(i)
    for q, r in zip(module.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(q.grad, r.grad)
