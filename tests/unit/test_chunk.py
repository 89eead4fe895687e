"""A stage's module by itself: how often it runs, and what is left of it and in it."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

from pipedsl.runtime.chunk import Arrived, Chunk
from tests.support.splitting import gradient_for

X = torch.linspace(-1, 1, 512 * 512).view(512, 512)  # large enough for its product to wait


def arrived(x: torch.Tensor, needs: bool = True) -> Arrived:
    return Arrived(("tensor",), [x.clone()], [needs], len(x))


class WritesLater(nn.Module):
    """Draws, and writes to its input in all forwards but the first. Counts how often it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun += 1
        drawn = torch.rand(x.shape)
        x = x.mul_(2) if self.ended else x * 2
        self.ended += 1
        return x * drawn


@pytest.mark.parametrize("once", [True, False])
def test_a_forward_that_draws_what_it_is_to_draw_runs_once(once: bool) -> None:
    """Others, which write to their input where the first one did not, run a second time."""
    stage = WritesLater()
    chunk = Chunk(stage)
    chunk.begin()
    chunk.once = once
    for microbatch in range(3):
        torch.manual_seed(microbatch)
        y = chunk.forward(microbatch, arrived(torch.ones(4)), {})
        chunk.keep(microbatch, [y])
        torch.manual_seed(microbatch)
        drawn = [torch.rand(4) for _ in range(2)]
        again = microbatch == 1 and not once
        assert torch.equal(y, 2 * drawn[again])
        (gradient,) = chunk.backward(microbatch, [torch.ones(4)])
        assert gradient is not None
        assert torch.equal(gradient, 2 * drawn[again])
    assert (stage.begun, stage.ended) == (3 if once else 4, 3)


class Looks(nn.Module):
    """Notes whether its module runs as something else than what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(512, 512)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append("forward" in vars(self.inner))
        y: torch.Tensor = self.inner(x)
        return y


def test_evaluation_leaves_modules_as_they_are() -> None:
    """And so do microbatches whose backward is not split."""
    stage = Looks()
    chunk = Chunk(stage, [0])
    chunk.begin(train=False)
    with torch.no_grad():
        for microbatch in range(2):
            chunk.forward(microbatch, arrived(X, needs=False), {})
            chunk.forget(microbatch)
    chunk.begin()
    for microbatch in range(2):
        chunk.forward(microbatch, arrived(X), {})
    assert stage.seen == [False, False, True, False]


def test_a_step_leaves_nothing_behind() -> None:
    """What it has kept between its calls is freed by them, not by the next step."""
    chunk = Chunk(nn.Linear(512, 512), [0])
    for train in (True, False):
        chunk.begin(train)
        with torch.set_grad_enabled(train):
            for microbatch in range(2):
                y = chunk.forward(microbatch, arrived(X, needs=train), {})
                if train:
                    chunk.keep(microbatch, [y])
                else:
                    chunk.forget(microbatch)
        if train:
            chunk.backward_input(0, [gradient_for(y)])
            assert chunk._products
            chunk.backward(1, [gradient_for(y)])
            chunk.backward_weight(0)
        assert (chunk._kept, chunk._products) == ({}, {})


# --------------------------------------------------------------------- what the module does to its input


class Writes(nn.Module):
    """Writes to its input in the calls that it is told, counted from 1."""

    def __init__(self, *calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.begun = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun += 1
        return x.mul_(3) * 1 if self.begun in self.calls else x * 3


@pytest.mark.parametrize(
    ("calls", "needs", "begun"),
    [
        ((), (True, True, True), 3),
        ((1, 2, 3), (True, True, True), 3),
        ((1, 2, 3), (False, True, True), 3),  # nothing is learnt from the first one
        ((2, 4), (True, True, True), 4),  # runs once more for microbatch 1, and never again
    ],
)
def test_how_often_a_module_runs_that_writes_to_its_input(
    calls: tuple[int, ...], needs: tuple[bool, ...], begun: int
) -> None:
    stage = Writes(*calls)
    chunk = Chunk(stage)
    chunk.begin()
    for microbatch, needed in enumerate(needs):
        y = chunk.forward(microbatch, arrived(torch.ones(4), needed), {})
        assert torch.equal(y, torch.full((4,), 3.0))
        chunk.keep(microbatch, [y])
        assert [x.tolist() for x in chunk.backward(microbatch, [torch.ones(4)] * needed) if x is not None] == (
            [[3.0] * 4] * needed
        )
    assert stage.begun == begun


class RaisesLater(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.begun = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun += 1
        if self.begun > 1:
            raise self.error
        return x * 1


@pytest.mark.parametrize(
    ("error", "begun"),
    [
        (RuntimeError("another one"), 2),
        (RuntimeError(3), 2),
        (RuntimeError("a leaf Variable that requires grad is being used in an in-place operation."), 3),
    ],
)
def test_an_error_of_a_module_comes_out_as_it_is(error: Exception, begun: int) -> None:
    """It runs a second time only where a write to its input may be the cause, and no more often."""
    stage = RaisesLater(error)
    chunk = Chunk(stage)
    chunk.begin()
    chunk.forward(0, arrived(torch.ones(4)), {})
    with pytest.raises(RuntimeError) as found:
        chunk.forward(1, arrived(torch.ones(4)), {})
    assert found.value is error
    assert stage.begun == begun


class NoGradient(torch.autograd.Function):
    """Identity that has no gradient for its input, though one comes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Applies(nn.Module):
    """Runs any function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("state", torch.zeros(4))

    def forward(self, value: Any, **extras: Any) -> Any:
        return self.function(self, value, **extras)


def ran(function: Any, value: Arrived, times: int = 2) -> tuple[Chunk, Applies, Any]:
    """A chunk that has run that often; the last time the module's input is no longer guarded."""
    stage = Applies(function)
    chunk = Chunk(stage)
    chunk.begin()
    for microbatch in range(times):
        output = chunk.forward(microbatch, value, {})
    return chunk, stage, output


@pytest.mark.parametrize("times", [1, 2])
def test_an_input_without_a_gradient_has_none(times: int) -> None:
    def function(stage: nn.Module, x: torch.Tensor) -> Any:
        return NoGradient.apply(x)  # type: ignore[no-untyped-call]

    chunk, _, y = ran(function, arrived(torch.ones(4)), times)
    chunk.keep(times - 1, [y])
    assert chunk.backward(times - 1, [torch.ones(4)]) == [None]


@pytest.mark.parametrize("times", [1, 2])
def test_inputs_have_gradients_of_their_own(times: int) -> None:
    """Also where one tensor has come twice. What needs none is given to the module as it came; nothing is marked."""
    x, other = torch.ones(4), torch.ones(4)
    seen: list[torch.Tensor] = []

    def function(stage: nn.Module, parts: Any) -> torch.Tensor:
        seen.append(parts[2])
        y: torch.Tensor = parts[0] * 2 + parts[1] * 3 + parts[2]
        return y

    value = Arrived(("tuple", (("tensor",),) * 3), [x, x, other], [True, True, False], 4)
    chunk, _, y = ran(function, value, times)
    chunk.keep(times - 1, [y])
    found = chunk.backward(times - 1, [torch.ones(4)])
    assert [None if g is None else g.tolist() for g in found] == [[2.0] * 4, [3.0] * 4]
    assert all(each is other for each in seen)
    assert not x.requires_grad
    assert not other.requires_grad


# --------------------------------------------------------------------- outputs


def handed(function: Any, value: Arrived | None = None) -> tuple[Any, list[torch.Tensor], Any, Applies]:
    """What a module has returned, what is handed over of it, which of these share memory, and the module."""
    chunk, stage, output = ran(function, arrived(torch.ones(4)) if value is None else value)
    outputs = list(output) if isinstance(output, tuple) else [output]
    tensors, shared = chunk.handed_over(1, outputs)
    assert not any(x.requires_grad for x in tensors)
    assert all(type(x) is torch.Tensor for x in tensors)
    assert all(map(torch.equal, tensors, outputs))
    return outputs, tensors, shared, stage


def is_copied(y: torch.Tensor, x: torch.Tensor) -> bool:
    return y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def through_a_buffer(stage: Any, x: torch.Tensor) -> torch.Tensor:
    stage.state.detach_()
    y: torch.Tensor = stage.state.copy_(x)
    return y


@pytest.mark.parametrize(
    ("function", "copied"),
    [
        (lambda stage, x: x * stage.weight, False),
        (lambda stage, x: x, False),
        (lambda stage, x: x.view(2, 2), False),
        (lambda stage, x: x.detach() * 2, True),
        (lambda stage, x: stage.weight, True),
        (lambda stage, x: stage.weight.view(2, 2), True),
        (lambda stage, x: stage.state[:2], True),
        (through_a_buffer, True),
    ],
    ids=["made", "passed on", "view", "without", "parameter", "its view", "buffer", "written buffer"],
)
def test_what_the_module_may_write_to_again_is_copied(function: Any, copied: bool) -> None:
    (y,), (x,), shared, _ = handed(function)
    assert is_copied(y, x) == copied
    assert not shared


def test_copies_are_contiguous() -> None:
    (y,), (x,), _, _ = handed(lambda stage, x: x.detach().view(2, 2).t() * 1)
    assert not y.is_contiguous()
    assert x.is_contiguous()


def test_outputs_that_share_memory_are_told() -> None:
    def function(stage: nn.Module, x: torch.Tensor) -> Any:
        y = x * 2
        return y, x * 3, y[:2]

    assert list(handed(function)[2]) == [0, 2]


class UnderWay(torch.Tensor):
    """Stands for the tensor of a collective that has begun."""

    def wait(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_what_is_under_way_is_waited_for() -> None:
    handed(lambda stage, x: (x * 2).as_subclass(UnderWay))


def test_outputs_do_not_outlive_their_use() -> None:
    """What a backward needs is kept by autograd, not by the chunk."""
    chunk, _, y = ran(lambda stage, x: x * 2, arrived(torch.ones(4)))
    chunk.keep(1, [y])
    gone = weakref.ref(y)
    del y
    assert gone() is None


# --------------------------------------------------------------------- backwards


@pytest.mark.parametrize("split", [True, False])
def test_a_backward_begins_with_the_gradients_that_there_are(split: bool) -> None:
    """Outputs without a gradient function have no gradient either; the others' are told by their places."""

    def function(stage: Any, x: torch.Tensor) -> Any:
        first, second = (x * stage.weight).view(2, 2).unbind()
        return first, x.detach(), second, second.sum()

    stage = Applies(function)
    for present in ((True, True, True), (True, False, False), (False, True, False), (False, False, False)):
        chunk = Chunk(stage, [0] if split else [])
        chunk.begin()
        stage.zero_grad()
        chunk.keep(0, chunk.forward(0, arrived(torch.ones(4)), {}))
        values = (torch.ones(2), torch.full((2,), 5.0), torch.tensor(7.0))
        given = [value if there else None for value, there in zip(values, present, strict=True)]
        (gradient,) = chunk.backward_input(0, given) if split else chunk.backward(0, given)
        if split:
            chunk.backward_weight(0)
        assert (chunk._kept, chunk._products) == ({}, {})
        if not any(present):
            assert gradient is None
            assert stage.weight.grad is None
            continue
        first, second, total = (value * there for value, there in zip(values, present, strict=True))
        expected = torch.cat([first, second + total])
        assert gradient is not None
        assert torch.equal(gradient, expected * 2)
        found = stage.weight.grad
        assert found is not None
        assert torch.equal(found, expected)


# --------------------------------------------------------------------- what it is told of its module


class Asks(nn.Module):
    def forward(self, x: torch.Tensor, mask: Any = None) -> Any:
        return mask


def test_a_module_is_given_what_it_names() -> None:
    chunk = Chunk(Asks())
    chunk.begin(train=False)
    assert chunk.forward(0, arrived(torch.ones(4), needs=False), {"mask": 3, "other": 4}) == 3
    assert chunk.run_first(1, torch.ones(4), {"other": 4}) is None


@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True), (False, False)])
def test_whether_anything_is_trained(trained: tuple[bool, ...]) -> None:
    stage = nn.Linear(2, 2)
    for parameter, needs in zip(stage.parameters(), trained, strict=True):
        parameter.requires_grad_(needs)
    assert Chunk(stage).is_trained == any(trained)
