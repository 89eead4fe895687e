"""I and W under autocast: what weights are cast to is kept for a step, and made anew where it would be another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Arrived, Chunk
from tests.support.splitting import Split, compare

X = torch.linspace(-1, 1, 18).view(3, 6)


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


class Changes(nn.Module):
    """Does something to a weight before it is used, and after."""

    def __init__(self, before: Callable[[nn.Linear], Any], after: Callable[[nn.Linear, Any], None]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.before(self.first)
        with torch.autocast("cpu", torch.bfloat16):
            y: torch.Tensor = self.first(x)
        self.after(self.first, kept)
        return y.float()


def shrink(linear: nn.Linear) -> None:
    with torch.no_grad():
        linear.weight.mul_(0.5)


def exchange(linear: nn.Linear) -> torch.Tensor:
    """Of the second forward on: in the first one the weight is what it was before."""
    own = linear.weight.data
    linear.calls = getattr(linear, "calls", 0) + 1  # type: ignore[assignment]
    if linear.calls > 1:
        linear.weight.data = own * 2
    return own


def put_back(linear: nn.Linear, own: torch.Tensor) -> None:
    linear.weight.data = own


CHANGES: dict[str, Callable[[], nn.Module]] = {
    "written to": lambda: Changes(shrink, lambda *_: None),
    "exchanged": lambda: Changes(exchange, put_back),
}


def run(chunk: Chunk, microbatch: int) -> torch.Tensor:
    y: torch.Tensor = chunk.forward(microbatch, Arrived(("tensor",), [X], [True], len(X)), {})
    return y


@pytest.mark.parametrize("kind", CHANGES)
def test_a_weight_that_changes_is_cast_anew(kind: str) -> None:
    torch.manual_seed(0)
    module = CHANGES[kind]()
    plain = copy.deepcopy(module)
    split = Chunk(module, [0, 1])
    split.begin()
    for microbatch in range(2):
        assert torch.equal(run(split, microbatch), plain(X))


def test_nothing_that_was_cast_is_left_for_the_next_step() -> None:
    """Optimizers write to `data`, too, which autograd does not count."""
    module = nn.Linear(6, 6)
    split = Chunk(module, [0])
    for _ in range(2):
        split.begin()
        with torch.autocast("cpu", torch.bfloat16):  # which keeps casts as long as it lasts
            assert torch.equal(run(split, 0), module(X))
        module.weight.data.mul_(2)


class TwoTypes(nn.Module):
    """One module under two types of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype):
                total = total + self.inner(x).float()
        return total


def test_each_type_has_its_own_cast() -> None:
    compare(TwoTypes(), X, waits=3, bound=0.05)


@pytest.mark.parametrize("types", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_of_doubles_that_autocast_leaves_alone_torch_says_what_is_wrong(types: tuple[torch.dtype, torch.dtype]) -> None:
    of_input, of_weight = types
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
        Split(nn.Linear(6, 6).to(of_weight)).forward(X.to(of_input))


class AsksOutside(nn.Module):
    """Differentiates, outside of autocast and to be differentiated again, what has run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            energy = self.inner(x)
        (slope,) = torch.autograd.grad(energy.float().square().sum(), x, create_graph=True)
        y: torch.Tensor = self.outer(slope)
        return y


def test_a_module_may_ask_for_gradients_outside_of_autocast() -> None:
    compare(AsksOutside(), X, waits=2, bound=0.05)
