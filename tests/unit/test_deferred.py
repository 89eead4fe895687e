"""I and W of one stage against torch's own backward: same gradients, nothing done twice, nothing left behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from pipedsl.runtime import deferred
from tests.support.splitting import Split, compare, gradient_for


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


def frozen(parameter: nn.Parameter) -> None:
    parameter.requires_grad_(False)


def half_frozen(name: str) -> nn.Module:
    linear = nn.Linear(4, 3)
    frozen(getattr(linear, name))
    return linear


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | torch.Tensor, int]] = {
    "linear": (lambda: nn.Linear(4, 3), (5, 4), 1),
    "linear without a bias": (lambda: nn.Linear(4, 3, bias=False), (2, 5, 4), 1),
    "linear on one row": (lambda: nn.Linear(4, 3), (4,), 1),
    "linear on rows of rows": (lambda: nn.Linear(4, 3), (2, 2, 3, 4), 1),
    "linear with a frozen weight": (lambda: half_frozen("weight"), (5, 4), 0),
    "linear with a frozen bias": (lambda: half_frozen("bias"), (5, 4), 1),
    "linear, then in place": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)), (2, 5, 4), 1),
    "in place, then linear": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), (2, 5, 4), 1),
    "several": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), (5, 4), 2),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.complex64), torch.randn(5, 4, dtype=torch.complex64), 0),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), (5, 4), 0),
    "lazy": (lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU()), (5, 4), 1),
    "embedding": (lambda: nn.Embedding(7, 3), torch.tensor([[1, 2, 2], [6, 0, 1]]), 1),
    "embedding with padding": (lambda: nn.Embedding(7, 3, padding_idx=2), torch.tensor([1, 2, 2]), 1),
    "embedding, then in place": (
        lambda: nn.Sequential(nn.Embedding(7, 3), nn.ReLU(inplace=True)),
        torch.tensor([[1, 2, 2], [6, 0, 1]]),
        1,
    ),
    "embedding with sparse gradients": (lambda: nn.Embedding(7, 3, sparse=True), torch.tensor([1, 2, 2]), 0),
    "embedding of a largest norm": (lambda: nn.Embedding(7, 3, max_norm=0.5), torch.tensor([1, 2, 2]), 0),
    "embedding by frequency": (lambda: nn.Embedding(7, 3, scale_grad_by_freq=True), torch.tensor([1, 2, 2]), 0),
    "convolution of one dimension": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9), 1),
    "convolution of two": (lambda: nn.Conv2d(3, 4, (3, 2), dilation=(1, 2), bias=False), (2, 3, 8, 7), 1),
    "convolution of three": (lambda: nn.Conv3d(2, 2, 2), (2, 2, 3, 4, 5), 1),
    "convolution of same size": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 8, 7), 0),
    "convolution with a wrapped edge": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 8), 0),
    "convolution without a batch": (lambda: nn.Conv1d(3, 4, 3), (3, 8), 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_torch(kind: str) -> None:
    torch.manual_seed(1)
    make, x, waits = KINDS[kind]
    compare(
        make(),
        x if isinstance(x, torch.Tensor) else torch.randn(x),
        waits=waits,
        bound=1e-5 if "convolution" in kind else 0.0,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_add_up_where_they_are(kind: str) -> None:
    """A second step's: in the same tensors, which others may hold, and as much as torch would add."""
    torch.manual_seed(1)
    make, x, _ = KINDS[kind]
    x = x if isinstance(x, torch.Tensor) else torch.randn(x)
    module = compare(make(), x, waits=KINDS[kind][2], bound=1e-5)
    before = [q.grad for q in module.parameters()]
    once = [None if g is None else g.clone() for g in before]
    ours = Split(module)
    ours.backward_input(gradient_for(ours.forward(x.clone())))
    ours.backward_weight()
    for q, g, each in zip(module.parameters(), before, once, strict=True):
        assert q.grad is g
        if g is not None:
            assert each is not None
            torch.testing.assert_close(g, 2 * each, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hooked", [("weight", "bias"), ("weight",), ("bias",)], ids="-".join)
def test_hooks_where_autograd_accumulates_hear_of_each_microbatch(hooked: tuple[str, ...]) -> None:
    """As DistributedDataParallel and others set them: on a node that lives as long as they hold it."""
    module = nn.Linear(4, 3)
    seen: list[str] = []
    nodes = [q.expand_as(q).grad_fn.next_functions[0][0] for q in map(module.get_parameter, hooked)]  # type: ignore[union-attr]
    for name, node in zip(hooked, nodes, strict=True):
        node.register_hook(lambda *_, name=name: seen.append(name))
    for _ in range(2):
        ours = Split(module)
        ours.backward_input(gradient_for(ours.forward(torch.randn(5, 4))))
        assert ours.waiting == 1
        ours.backward_weight()
    assert sorted(seen) == sorted(2 * hooked)


def test_a_weight_used_in_three_ways_is_counted_once() -> None:
    class Tied(nn.Module):
        """An embedding whose weight is a head's too, and used once more without its module."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(7, 7)
            self.head = nn.Linear(7, 7)
            self.head.weight = self.words.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.head(self.words(x)).tanh()) + self.words.weight.sum()

    compare(Tied(), torch.tensor([1, 2, 2, 6]), waits=3, bound=1e-5)


@pytest.mark.parametrize("kind", ["linear", "embedding", "convolution of two", "several"])
def test_autocast(kind: str) -> None:
    torch.manual_seed(2)
    make, x, waits = KINDS[kind]
    with torch.autocast("cpu", torch.bfloat16):
        module = compare(
            make(), x if isinstance(x, torch.Tensor) else torch.randn(x), waits=waits, bound=1e-2 * ("conv" in kind)
        )
    assert all(q.grad is not None and q.grad.dtype == torch.float32 for q in module.parameters())


def test_autocast_leaves_doubles_alone() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        compare(nn.Linear(4, 3).double(), torch.randn(5, 4, dtype=torch.float64), waits=0)


def test_hooks_see_each_gradient_once() -> None:
    """Those on a parameter see the whole of it, in I; those on a module what they always do."""
    seen: list[str] = []
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].weight.register_hook(lambda g: seen.append("tensor") or g * 2)
    module[1].weight.register_post_accumulate_grad_hook(lambda q: seen.append("after"))
    module[2].register_full_backward_hook(lambda *_: seen.append("module"))
    module[2].register_forward_hook(lambda *_: seen.append("forward"))
    reference = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    reference.load_state_dict(module.state_dict())
    x = torch.randn(5, 4)
    y = reference(x)
    torch.autograd.backward(y, gradient_for(y))
    ours = Split(module)
    ours.backward_input(gradient_for(ours.forward(x)))
    assert ours.waiting == 1
    ours.backward_weight()
    assert sorted(seen) == ["after", "forward", "module", "tensor"]
    for k, (q, r) in enumerate(zip(module.parameters(), reference.parameters(), strict=True)):
        assert q.grad is not None
        assert r.grad is not None
        assert torch.equal(q.grad, r.grad * 2 if k == 0 else r.grad)


def test_nothing_is_left_in_the_modules() -> None:
    class Failing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            raise ValueError("on purpose")

    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = [dict(vars(each)) for each in module.modules()]
    ours = Split(module)
    ours.backward_input(gradient_for(ours.forward(torch.randn(5, 4))))
    ours.backward_weight()
    module.append(Failing(4, 4))
    ours = Split(module)
    with pytest.raises(ValueError, match="on purpose"):
        ours.forward(torch.randn(5, 4))
    del module[-1]
    assert [list(vars(each)) for each in module.modules()] == [list(each) for each in before]
    pickle.loads(pickle.dumps(module))


def test_a_forward_of_its_own_is_left_alone() -> None:
    module = nn.Linear(4, 4)
    module.forward = lambda x: functional.linear(x, module.weight)  # type: ignore[method-assign]
    ours = Split(module)
    y = ours.forward(torch.randn(5, 4))
    ours.backward_input(gradient_for(y))
    assert ours.waiting == 0
    assert module.bias.grad is None
    assert "forward" in vars(module)


class Remembers(nn.Module):
    """Its Linear's input is a buffer that every forward writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("memory", torch.randn(6, 8))
        self.memory: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        keys = self.inner(self.memory)
        y: torch.Tensor = (x @ keys.t()) @ keys
        return y


def test_an_input_that_is_written_to_before_w_is_noticed() -> None:
    torch.manual_seed(13)
    ours = Split(Remembers())
    y = ours.forward(torch.randn(4, 8))
    ours.backward_input(gradient_for(y))
    ours.chunk._module(torch.randn(4, 8))  # as the forward of another microbatch
    with pytest.raises(RuntimeError, match=r"the input of 'inner' \(Linear\).* modified by an inplace operation"):
        ours.backward_weight()


class Halved(torch.autograd.Function):
    """Halves the gradient in place, which may be another's, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.mul_(0.5)


class Branches(nn.Module):
    """The sum of a Linear and of a branch whose backward, which runs after the Linear's, writes to their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = Halved.apply(x)  # type: ignore[no-untyped-call]
        y: torch.Tensor = self.inner(x) + branch
        return y


def test_a_gradient_that_is_written_to_before_w_is_noticed() -> None:
    torch.manual_seed(14)
    ours = Split(Branches())
    y = ours.forward(torch.randn(4, 8))
    ours.backward_input(gradient_for(y))
    with pytest.raises(RuntimeError, match=r"the output's gradient of 'inner' \(Linear\).* modified by an inplace"):
        ours.backward_weight()


def test_small_products_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 5 * 4 * 4)
    ours = Split(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 8)))
    ours.backward_input(gradient_for(ours.forward(torch.randn(5, 4))))
    assert ours.waiting == 2
