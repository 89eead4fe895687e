"""I and W of stages that do more than run modules: checkpoints, gradients of their own, compiled code."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pipedsl.runtime import deferred
from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.extras import asked_for
from tests.support.splitting import Split, compare, gradient_for, two_steps


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


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


def keep_products(context: Any, function: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if function in products else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(nn.Module):
    """Of its forward products are kept, and the rest is computed again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        def contexts() -> Any:
            return create_selective_checkpoint_contexts(keep_products)

        return checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,)])
def test_a_checkpoint_that_keeps_products(shape: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    compare(Selective(nn.Sequential(Block(), Block())), torch.randn(shape), waits=4, bound=1e-6)


def test_what_a_checkpoint_keeps_must_not_be_written_to() -> None:
    """As torch has it where nothing waits: what is kept would be used as what it has become."""

    def run(chunk: Chunk) -> None:
        chunk.begin()
        output = chunk.run_first(0, torch.randn(2, 3, 4), {})
        chunk.keep(0, [output])
        chunk.backward(0, [gradient_for(output)])

    for waits in ([], [0]):
        chunk = Chunk(Selective(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))), waits)
        with pytest.raises(RuntimeError, match=r"is a view and is being modified inplace|has been mutated"):
            run(chunk)


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


class Holding(torch.autograd.Function):
    """Keeps a tensor for its backward otherwise than autograd does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.held = x * 2
        return ctx.held * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_what_made_a_module_s_input_is_not_held_until_w() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    class Holds(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = Holding.apply(self.up(x))
            held.append(weakref.ref(y.grad_fn.held))
            return self.down(y)

    ours = Split(Holds())
    y = ours.forward(torch.randn(5, 4))
    assert held[0]() is not None
    ours.backward_input(gradient_for(y))
    assert ours.waiting == 2
    gc.collect()
    assert held[0]() is None


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


class Penalty(nn.Module):
    """Under a checkpoint, what it returns depends on its slope. All sizes are one, so no mistake has another shape."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.outer = (
            (nn.Linear(6, 6), nn.Linear(6, 6, bias=False))
            if kind == "linear"
            else (nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1))
        )

    def penalised(self, x: torch.Tensor) -> torch.Tensor:
        y = self.outer(self.inner(x).sin())
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + 0.3 * slope.square().mean() + 0.1 * slope

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.penalised, x, use_reentrant=False)


@pytest.mark.parametrize(("kind", "shape"), [("linear", (6, 6)), ("linear", (2, 3, 6)), ("convolution", (6, 6, 6))])
@pytest.mark.parametrize("cast", [False, True])
def test_a_checkpoint_may_hold_what_is_differentiated_twice(kind: str, shape: tuple[int, ...], cast: bool) -> None:
    """It is recomputed with the same tensors kept, one for one: else one is taken for another, and not noticed."""
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        compare(Penalty(kind), torch.randn(shape), waits=2, bound=0.05 if cast else 1e-5)


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


def test_code_inside_of_a_stage_is_compiled_once_for_all_its_layers_and_steps() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        @torch.compile(backend=keep, fullgraph=True)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tanh(self.inner(x))

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), *[Layer() for _ in range(10)])

    two_steps(make, torch.randn(5, 4))
    assert len(graphs) == 2  # in the pipeline, and in the one process that it is compared with


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


class LocalLoss(nn.Module):
    """Has a loss of its own, whose backward it runs in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.shared = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.shared(self.trunk(x))
        self.head(self.shared(y.detach())).square().mean().backward()
        return y


def test_a_backward_in_a_forward_gives_weights_their_gradients() -> None:
    x = torch.linspace(-1, 1, 18).view(3, 6)
    two_steps(LocalLoss, x)
    compare(LocalLoss(), x, waits=2, bound=1e-6)


def test_of_weights_made_in_inference_mode_torch_says_what_is_wrong() -> None:
    with torch.inference_mode():
        linear = nn.Linear(6, 6)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        Split(linear).forward(torch.ones(3, 6))


def test_of_an_embedding_of_complex_numbers_torch_says_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="complex"):
        Split(nn.Embedding(7, 3, dtype=torch.complex64)).forward(torch.tensor([1, 2]))


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Ended(nn.Module):
    """A gradient that ends on its way, before a module."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.used, self.cut_off = nn.Linear(6, 6), nn.Linear(6, 6)
        self.reentrant = reentrant

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Nothing.apply(self.cut_off(x))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = self.reentrant
        other = self.branch(x) if way is None else checkpoint(self.branch, x, use_reentrant=way)
        y: torch.Tensor = self.used(x) + other
        return y


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpointed", "reentrant"])
def test_a_gradient_that_ends_before_a_module_leaves_its_weights_without(reentrant: bool | None) -> None:
    module = compare(Ended(reentrant), torch.linspace(-1, 1, 18).view(3, 6), waits=1)
    assert isinstance(module, Ended)
    assert module.cut_off.weight.grad is None
