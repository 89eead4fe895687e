"""I and W of stages whose modules are not what they seem, or change while they run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune
from torch.overrides import TorchFunctionMode

from pipedsl.runtime import deferred
from tests.support.splitting import compare, two_steps


@pytest.fixture(autouse=True)
def everything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 1)


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


def other_weight(linear: nn.Linear) -> Any:
    weight = linear.weight * 2
    return lambda x: torch.func.functional_call(linear, {"weight": weight}, (x,))


def hidden_weight(linear: nn.Linear) -> None:
    vars(linear)["weight"] = linear.weight.detach() * 3


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


def hooked_bias(linear: nn.Linear) -> None:
    if not linear.bias._backward_hooks:
        linear.bias.register_hook(lambda g: g * 3)


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


class DoubledWhenRead(nn.Linear):
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return 2 * found if name == "weight" else found


class DoubledWhenLookedUp(nn.Linear):
    def __getattribute__(self, name: str) -> Any:
        return 2 * self._parameters["weight"] if name == "weight" else super().__getattribute__(name)


class DoubledWhenUsed(torch.Tensor):
    """Its products are twice as large."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **(kwargs or {}))
        return 2 * found if function is functional.linear else found


class DoubledParameter(DoubledWhenUsed, nn.Parameter):
    pass


def of_class(kind: type[nn.Linear]) -> Callable[[nn.Linear], None]:
    def change(linear: nn.Linear) -> None:
        linear.__class__ = kind

    return change


class Doubles(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def of_class_for_once(linear: nn.Linear) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        linear.__class__ = Doubles
        y: torch.Tensor = linear(x)
        linear.__class__ = nn.Linear
        return y + linear(x)

    return run


def parameter_of_class(name: str, trained: bool) -> Callable[[nn.Linear], None]:
    def change(linear: nn.Linear) -> None:
        own = getattr(linear, name).detach()
        setattr(linear, name, DoubledParameter(own, requires_grad=trained))  # type: ignore[call-arg]

    return change


def input_of_class(linear: nn.Linear) -> Any:
    return lambda x: linear(x.as_subclass(DoubledWhenUsed)).as_subclass(torch.Tensor)


def unpatched(linear: nn.Linear) -> Any:
    """Its own forward goes after the first use, and the next use is none that waits."""

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = linear(x)
        vars(linear).pop("forward", None)
        return linear(x) * factor

    return run


def doubling_forward(linear: nn.Linear) -> None:
    linear.forward = lambda x: 2 * functional.linear(x, linear.weight)  # type: ignore[method-assign]


def patched(linear: nn.Linear) -> None:
    if not getattr(linear, "is_patched", False):
        linear.is_patched = True  # type: ignore[assignment]
        inner = linear.forward
        linear.forward = lambda x: inner(x) * 2  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[], nn.Module]] = {
    "another bias for one call": lambda: Changes(other_bias),
    "another weight for one call": lambda: Changes(other_weight),
    "a weight that an attribute hides": lambda: Changes(nothing, before=hidden_weight),
    "a weight that is doubled when it is read": lambda: Changes(nothing, before=of_class(DoubledWhenRead)),
    "a weight that is doubled when it is looked up": lambda: Changes(nothing, before=of_class(DoubledWhenLookedUp)),
    "a weight that has functions of its own": lambda: Changes(nothing, before=parameter_of_class("weight", True)),
    "a frozen bias that has functions of its own": lambda: Changes(nothing, before=parameter_of_class("bias", False)),
    "an input that has functions of its own": lambda: Changes(input_of_class),
    "no bias any more": lambda: Changes(without_bias),
    "a bias that is a buffer": lambda: Changes(nothing, before=bias_as_buffer),
    "a bias that is an attribute": lambda: Changes(nothing, before=bias_as_attribute),
    "a parametrized bias": lambda: Changes(nothing, before=doubled_bias),
    "a pruned bias": lambda: Changes(nothing, before=pruned_bias),
    "frozen for one use": lambda: Changes(frozen_for_once),
    "a weight frozen for one use": lambda: Changes(frozen_weight_for_once),
    "a bias frozen for one use": lambda: Changes(frozen_bias_for_once),
    "a hook from the first forward on": lambda: Changes(hooked),
    "a hook on the bias": lambda: Changes(nothing, before=hooked_bias),
    "a hook on the bias from the first forward on": lambda: Changes(hooked_bias),
    "a forward of its own that is taken away": lambda: Changes(unpatched, before=doubling_forward),
    "a copy made in the forward": lambda: Changes(copied),
    "a pickled copy": lambda: Changes(pickled),
    "a forward replaced in the forward": lambda: Changes(patched),
    "a class set in the forward": lambda: Changes(of_class(Doubles)),
    "a class set in the forward for one use": lambda: Changes(of_class_for_once),
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


class PlacesLater(Positions):
    """The same, but not in the first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) if self.calls > 1 else self.words(x)


def larger_embedding() -> nn.Module:
    module = nn.Embedding(4, 3)
    module.weight = nn.Parameter(torch.randn(9, 3))
    return module


def with_other_products() -> nn.Module:
    """A convolution that one module alone does otherwise."""
    module = nn.Conv1d(2, 3, 3)
    run = module._conv_forward
    module._conv_forward = lambda x, weight, bias: run(x, weight * 2, bias)  # type: ignore[method-assign]
    return module


def test_what_is_not_torch_s_own_convolution() -> None:
    two_steps(lambda: Standardized(2, 3, 3), torch.randn(2, 2, 8))
    two_steps(with_other_products, torch.randn(2, 2, 8))
    two_steps(Dilated, torch.randn(2, 2, 9))


def test_a_gradient_that_lies_in_one_that_waits() -> None:
    two_steps(Positions, torch.tensor([[1, 2, 2]]))
    two_steps(PlacesLater, torch.tensor([[1, 2, 2]]))


def test_an_embedding_larger_than_it_says() -> None:
    two_steps(larger_embedding, torch.tensor([8, 0, 8]))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)


class Quantizes(Two):
    """Runs with other weights than it has, and puts these back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.first.weight.data
        self.first.weight.data = own.sign()
        y: torch.Tensor = self.first(self.second(x))
        self.first.weight.data = own
        return y


class QuantizesConvolution(nn.Module):
    """The same of a convolution, of which torch keeps the weight with what it has in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(6, 6), nn.Conv1d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.convolution.weight.data
        self.convolution.weight.data = own.sign()
        y: torch.Tensor = self.convolution(self.linear(x)[..., None])
        self.convolution.weight.data = own
        return y[..., 0]


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        return 2 * found if function is functional.linear else found


class InMode(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Doubling():
            return cast(torch.Tensor, self.second(self.first(x)))


class Patches(nn.Module):
    """Puts functions of its own in the place of torch's while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolution, self.words = nn.Linear(6, 6), nn.Conv1d(6, 6, 1), nn.Embedding(5, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("linear", "conv1d", "embedding"):
                patch.setattr(functional, name, twice(getattr(functional, name)))
            y = self.linear(x) + self.words(torch.tensor([3]))
            return cast(torch.Tensor, self.convolution(y[..., None])[..., 0])


def twice(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


class Freezes(Two):
    """Freezes a module that it has used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.requires_grad_(True)
        y: torch.Tensor = self.second(self.first(x))
        self.first.requires_grad_(False)
        self.second.bias.requires_grad_(False)
        return y


class Thaws(Two):
    """Trains a bias that it has used frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.bias.requires_grad_(False)
        y: torch.Tensor = self.second(self.first(x))
        self.first.bias.requires_grad_(True)
        return y


@pytest.mark.parametrize(
    "make", [Quantizes, QuantizesConvolution, InMode, Patches, Freezes, Thaws], ids=lambda make: str(make.__name__)
)
def test_what_a_stage_does_around_its_modules_counts(make: Callable[[], nn.Module]) -> None:
    two_steps(make, torch.linspace(-1, 1, 18).view(3, 6))


def test_modules_wait_where_tensors_are_made_on_a_device_by_default() -> None:
    with torch.device("cpu"):
        compare(nn.Linear(6, 6), torch.linspace(-1, 1, 18).view(3, 6), waits=1, bound=1e-6)
