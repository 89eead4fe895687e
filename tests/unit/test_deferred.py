"""I and W of one stage against torch's own backward: same gradients, nothing done twice, nothing left behind."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Arrived, Chunk
from pipedsl.runtime.extras import asked_for


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


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
    return module


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


def test_hooks_where_autograd_accumulates_hear_of_each_microbatch() -> None:
    """As DistributedDataParallel and others set them: on a node that lives as long as they hold it."""
    module = nn.Linear(4, 3)
    seen: list[str] = []
    nodes = [q.expand_as(q).grad_fn.next_functions[0][0] for q in module.parameters()]  # type: ignore[union-attr]
    for name, node in zip(("weight", "bias"), nodes, strict=True):
        node.register_hook(lambda *_, name=name: seen.append(name))
    for _ in range(2):
        ours = Split(module)
        ours.backward_input(gradient_for(ours.forward(torch.randn(5, 4))))
        assert ours.waiting == 1
        ours.backward_weight()
    assert seen.count("weight") == seen.count("bias") == 2


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


class Counting(torch.autograd.Function):
    """Identity that counts its backwards."""

    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Counting.backwards += 1
        return gradient


class Block(nn.Module):
    forwards = 0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Block.forwards += 1
        return Counting.apply(x + self.scale * self.down(functional.gelu(self.up(x))))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_a_checkpoint_is_recomputed_once(reentrant: bool, cast: bool) -> None:
    torch.manual_seed(3)
    module = Checkpointed(reentrant=reentrant)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        compare(module, torch.randn(5, 4), waits=0 if reentrant else 6)
        ours = Split(module)
        Block.forwards = Counting.backwards = 0
        y = ours.forward(torch.randn(5, 4))
        assert Block.forwards == 3
        ours.backward_input(gradient_for(y))
        ours.backward_weight()
    assert Block.forwards == 6
    assert Counting.backwards == 3


def test_a_checkpoint_keeps_no_activation_until_i() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    class Noting(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = functional.gelu(self.up(x))
            kept.append(weakref.ref(inner))
            return self.down(inner)

    module = Checkpointed(reentrant=False)
    module.blocks = nn.ModuleList([Noting()])
    ours = Split(module)
    y = ours.forward(torch.randn(5, 4))
    assert kept[0]() is None
    ours.backward_input(gradient_for(y))
    assert ours.waiting == 2


class AsksForGradients(nn.Module):
    """Gradients inside of a forward: of a checkpoint or not, to be differentiated again or not."""

    def __init__(self, *, again: bool, inside: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again, self.inside = again, inside

    def force(self, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        energy = self.inner(x).square().sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=self.again)
        return slope if self.again else slope + self.inner(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(checkpoint(self.force, x, use_reentrant=False) if self.inside else self.force(x))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("cast", [False, True])
def test_a_module_may_ask_for_gradients_itself(again: bool, cast: bool) -> None:
    torch.manual_seed(4)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        compare(AsksForGradients(again=again, inside=False), torch.randn(5, 4), waits=2, bound=0.2 if cast else 1e-5)


def test_a_checkpoint_may_hold_such_a_module() -> None:
    compare(AsksForGradients(again=False, inside=True), torch.randn(5, 4), waits=2, bound=1e-6)


def test_transforms_of_functions_inside() -> None:
    class PerRow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(torch.vmap(self.inner)(x))

    compare(PerRow(), torch.randn(5, 4), waits=1, bound=1e-6)


def test_compiled_code_does_not_wait() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)
            self.compiled = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
            self.function = torch.compile(lambda x: self.inner(x).tanh(), backend="eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.compiled(self.plain(x)))

    module = Half()
    ours = Split(module)
    y = ours.forward(torch.randn(5, 4))
    ours.backward_input(gradient_for(y))
    assert ours.waiting == 1
    assert module.plain.weight.grad is None
    assert module.inner.weight.grad is not None
    ours.backward_weight()
    assert all(q.grad is not None for q in module.parameters())


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


def test_only_inputs_and_gradients_are_held_until_w() -> None:
    """Of a block the activation function's input goes in I; the two products keep what they multiply."""
    alive: dict[str, weakref.ref[torch.Tensor]] = {}

    class Noting(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.up(x)
            after = functional.gelu(before)
            alive["before"], alive["after"] = (weakref.ref(each.untyped_storage()) for each in (before, after))
            return self.down(after)

    ours = Split(Noting())
    y = ours.forward(torch.randn(5, 4))
    assert all(each() is not None for each in alive.values())
    ours.backward_input(gradient_for(y))
    (_, g, x, *_), (_, h, z, *_) = ours.chunk._products[0]
    assert [list(each.shape) for each in (g, x, h, z)] == [[5, 4], [5, 8], [5, 8], [5, 4]]
    assert alive["before"]() is None
    assert alive["after"]() is not None
    del g, x, h, z
    ours.backward_weight()
    assert alive["after"]() is None


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


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Changes(nn.Module):
    """Two modules with weights, around what its forward does to the first of them."""

    def __init__(self, change: Callable[[nn.Linear], Any], *, before: Callable[[nn.Linear], Any] | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.change = change
        if before is not None:
            before(self.first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.change(self.first)
        return self.second(torch.tanh(self.first(x) if y is None else y(x)))


def other_bias(linear: nn.Linear) -> Any:
    bias = linear.bias * 2
    return lambda x: torch.func.functional_call(linear, {"bias": bias}, (x,))


def without_bias(linear: nn.Linear) -> None:
    linear.bias = None  # type: ignore[assignment]


def bias_as_buffer(linear: nn.Linear) -> None:
    bias = linear.bias.detach() * 3
    del linear.bias
    linear.register_buffer("bias", bias)


def bias_as_attribute(linear: nn.Linear) -> None:
    bias = linear.bias.detach() * 3
    del linear.bias
    linear.bias = bias  # type: ignore[assignment]


def frozen_for_once(linear: nn.Linear) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        linear.requires_grad_(False)
        y: torch.Tensor = linear(x) * 2
        linear.requires_grad_(True)
        return y + linear(x)

    return run


def frozen_bias_for_once(linear: nn.Linear) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        linear.bias.requires_grad_(False)
        y: torch.Tensor = linear(x) * 2
        linear.bias.requires_grad_(True)
        return y

    return run


def frozen_weight_for_once(linear: nn.Linear) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        linear.weight.requires_grad_(False)
        y: torch.Tensor = linear(x) * 2
        linear.weight.requires_grad_(True)
        return y + linear(x)

    return run


def doubled_bias(linear: nn.Linear) -> None:
    parametrizations_of(linear, "bias")


def parametrizations_of(linear: nn.Linear, name: str) -> None:
    parametrize.register_parametrization(linear, name, Doubled())


def pruned_bias(linear: nn.Linear) -> None:
    prune.l1_unstructured(linear, "bias", amount=2)


def nothing(linear: nn.Linear) -> None:
    pass


def hooked(linear: nn.Linear) -> None:
    if not linear.weight._backward_hooks:
        linear.weight.register_hook(lambda g: g * 3)


def copied(linear: nn.Linear) -> Any:
    other = copy.deepcopy(linear)
    with torch.no_grad():
        other.weight.mul_(2)
    return lambda x: linear(x) + other(x)


def pickled(linear: nn.Linear) -> Any:
    other = pickle.loads(pickle.dumps(linear))
    with torch.no_grad():
        other.weight.mul_(2)
    return lambda x: linear(x) + other(x)


def patched(linear: nn.Linear) -> None:
    if not getattr(linear, "is_patched", False):
        linear.is_patched = True  # type: ignore[assignment]
        inner = linear.forward
        linear.forward = lambda x: inner(x) * 2  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], nn.Module]] = {
    "another bias for one call": lambda: Changes(other_bias),
    "no bias any more": lambda: Changes(without_bias),
    "a bias that is a buffer": lambda: Changes(nothing, before=bias_as_buffer),
    "a bias that is an attribute": lambda: Changes(nothing, before=bias_as_attribute),
    "a parametrized bias": lambda: Changes(nothing, before=doubled_bias),
    "a pruned bias": lambda: Changes(nothing, before=pruned_bias),
    "frozen for one use": lambda: Changes(frozen_for_once),
    "a weight frozen for one use": lambda: Changes(frozen_weight_for_once),
    "a bias frozen for one use": lambda: Changes(frozen_bias_for_once),
    "a hook from the first forward on": lambda: Changes(hooked),
    "a copy made in the forward": lambda: Changes(copied),
    "a pickled copy": lambda: Changes(pickled),
    "a forward replaced in the forward": lambda: Changes(patched),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_forward_changes_is_seen(kind: str) -> None:
    two_steps(CHANGES[kind], torch.randn(5, 4))


class Standardized(nn.Conv1d):
    """A convolution whose weight is made of its parameter, as in weight standardization."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = super()._conv_forward(input, (weight - weight.mean()) / weight.std(), bias)
        return found


class Dilated(nn.Module):
    """One convolution with three dilations."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x[..., :1] * 0
        for dilation in (1, 2, 3):
            self.convolution.dilation = (dilation,)
            self.convolution.padding = (dilation,)
            total = total + self.convolution(x)
        return total


class Positions(nn.Module):
    """One row's embedding plus one that every row shares, whose gradient is a view of the first's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(7, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.words(x) + self.places[None]
        return y


def larger_embedding() -> nn.Module:
    module = nn.Embedding(4, 3)
    module.weight = nn.Parameter(torch.randn(9, 3))
    return module


def test_what_is_not_torch_s_own_convolution() -> None:
    two_steps(lambda: Standardized(2, 3, 3), torch.randn(2, 2, 8))
    two_steps(Dilated, torch.randn(2, 2, 9))


def test_a_gradient_that_lies_in_one_that_waits() -> None:
    two_steps(Positions, torch.tensor([[1, 2, 2]]))


def test_an_embedding_larger_than_it_says() -> None:
    two_steps(larger_embedding, torch.tensor([8, 0, 8]))


def partly_scripted() -> nn.Module:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))  # type: ignore[no-untyped-call]
    return nn.Sequential(nn.Linear(4, 4), scripted)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_inside() -> None:
    x = torch.randn(5, 4)
    two_steps(partly_scripted, x)
    traced = torch.jit.trace(nn.Linear(4, 4), x)  # type: ignore[no-untyped-call]
    assert asked_for(traced) == frozenset()
    Chunk(traced, [0]).begin()


def test_forward_derivatives_inside() -> None:
    linear = nn.Linear(4, 4)
    ours = Split(linear)
    with torch.autograd.forward_ad.dual_level(), ours.chunk._deferral.used():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(5, 4), torch.ones(5, 4))
        tangent = torch.autograd.forward_ad.unpack_dual(linear(dual)).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, torch.ones(5, 4) @ linear.weight.T)


def test_a_frozen_bias_under_a_checkpoint() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = checkpoint(self.linear, x, use_reentrant=False)
            return y

    compare(Once(), torch.randn(5, 4), waits=1)


class Equilibrium(nn.Module):
    """A fixed point, whose gradient a hook finds by iteration: many gradients of the input alone (Bai et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)

    def step(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(0.3 * self.inner(z) + self.outer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.step(x, x)
        start = z.detach().requires_grad_()
        again = self.step(start, x)

        def solve(gradient: torch.Tensor) -> torch.Tensor:
            found = gradient
            for _ in range(5):
                found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
            return found

        z.register_hook(solve)
        return z


class _OfInput(torch.autograd.Function):
    """What a module answers; its backward is of the input alone, or with `weights` of the weights as well."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module, weights: bool) -> torch.Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = module(ctx.x)
        ctx.weights = weights
        y: torch.Tensor = ctx.y.detach()
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if ctx.weights:
            torch.autograd.backward(ctx.y, gradient)
            return ctx.x.grad, None, None
        return torch.autograd.grad(ctx.y, ctx.x, gradient)[0], None, None


class Inside(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x) + _OfInput.apply(x, self.second, self.weights)
        return y


def test_gradients_that_a_backward_asks_for_of_other_things_are_not_those_of_weights() -> None:
    x = torch.linspace(-1, 1, 18).view(3, 6)
    compare(Equilibrium(), x, waits=2, bound=1e-6)
    compare(Inside(weights=False), x, waits=1, bound=1e-6)
    compare(Inside(weights=True), x, waits=2, bound=1e-6)


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Ended(nn.Module):
    """A gradient that ends on its way, before a module."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.used, self.cut_off = nn.Linear(6, 6), nn.Linear(6, 6)
        self.checkpointed = checkpointed

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Nothing.apply(self.cut_off(x))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = checkpoint(self.branch, x, use_reentrant=False) if self.checkpointed else self.branch(x)
        y: torch.Tensor = self.used(x) + other
        return y


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_gradient_that_ends_before_a_module_leaves_its_weights_without(checkpointed: bool) -> None:
    module = compare(Ended(checkpointed), torch.linspace(-1, 1, 18).view(3, 6), waits=1)
    assert isinstance(module, Ended)
    assert module.cut_off.weight.grad is None
