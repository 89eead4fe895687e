"""Weight gradients that wait: how I costs less than B without a change to the model, and W only the rest.

I is one ordinary backward but for the products behind the weights of Linear, convolution and Embedding modules. Of
these it puts aside what they are made of, the module's input and its output's gradient, and W multiplies them. So
nothing is computed twice, a custom function's backward and a checkpoint's recomputation included, and what is put aside
is all that stays in memory from I until W.

All other gradients are accumulated in I, as in B: of other modules, of weights that are used without their module, in
compiled code, of weights with hooks, and where the product is too small for waiting to be worth it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._device import DeviceContext

from pipedsl.runtime.rules import RULES, Rule

WORTH_DEFERRING = 1 << 24  # multiplications behind a gradient; to put one aside costs about as much as 1 << 20
_EXACT = (torch.Tensor, torch.nn.Parameter)  # no subclass, whose functions may be its own
_run_backward = torch.autograd.Variable._execution_engine.run_backward


def run_backward(outputs: Sequence[torch.Tensor | GradientEdge], gradients: Sequence[torch.Tensor]) -> None:
    """`torch.autograd.backward`, without the 10 µs that it takes to look at the gradients' shapes in Python."""
    _run_backward(tuple(outputs), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


@dataclass(frozen=True, slots=True)
class _Use:
    """A module and what it multiplies by: `weight` and `bias`, its `parameters` or casts of them.

    `settings`: the module's, as it was used. `in_place`: nobody wants to hear from autograd when the parameters'
    gradients change.
    """

    deferral: Deferral
    module: Any
    rule: Rule
    settings: tuple[Any, ...]
    parameters: tuple[torch.nn.Parameter, torch.nn.Parameter | None]
    trains_bias: bool
    weight: torch.Tensor
    bias: torch.Tensor | None
    in_place: bool


class _Waiting(torch.autograd.Function):
    """A module whose weight gradients wait. Its weights are no inputs, so that autograd knows nothing of them.

    The anchor is one in their place: where gradients of other things alone are asked for, it gets none, nor do they.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor, use: _Use) -> torch.Tensor:
        # As torch keeps it: else the module may write to it for the next microbatch.
        ctx.save_for_backward(x, use.rule.keep(use.weight) if ctx.needs_input_grad[0] else None)
        ctx.set_materialize_grads(False)
        ctx.use = use
        return use.rule.run(use.module, x, use.weight, use.bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        if gradient is None:
            return None, None, None
        x, weight = ctx.saved_tensors
        use = ctx.use
        deferral = use.deferral
        if torch._C._will_engine_execute_node(deferral.anchored):
            product = (use, gradient, x.detach(), _version(gradient), _version(x))
            if deferral.waiting is not None:
                deferral.waiting.append(product)
            else:  # the stage runs a backward of its own, in its forward
                multiply([product])
        if not ctx.needs_input_grad[0]:
            return None, None, None
        if torch.is_grad_enabled():  # and wants to differentiate these again
            weight = use.parameters[0].to(weight.dtype)
        return use.rule.of_input(use.settings, gradient, x, weight), None, None


class _Again(torch.autograd.Function):
    """A module as a checkpoint recomputes it in I: keeps what `_Waiting` has kept, but nothing of it waits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, use: _Use) -> torch.Tensor:
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.set_materialize_grads(False)
        ctx.use = use
        return use.rule.run(use.module, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        rule, settings = ctx.use.rule, ctx.use.settings
        wants_input, wants_weight, wants_bias, _ = ctx.needs_input_grad
        with torch.no_grad():  # as `_Waiting` multiplies: else what a checkpoint has kept is taken for something else
            of_weight = rule.of_weight(settings, gradient, x, ctx.use.weight) if wants_weight else None  # by its sizes
            of_bias = rule.of_bias(gradient) if wants_bias else None
        return rule.of_input(settings, gradient, x, weight) if wants_input else None, of_weight, of_bias, None


# What is used, its output's gradient, its input, and the versions that both had when they were put aside.
Product = tuple[_Use, torch.Tensor, torch.Tensor, int, int]


class Deferral:
    """The modules of a stage whose weight gradients can wait.

    `waiting`: in I, what it has put aside so far. `inside`: how many forwards and backwards of the stage are running.
    `anchored`: the node of autograd that runs where weights are to get gradients.
    """

    def __init__(self, stage: torch.nn.Module) -> None:
        self.stage = stage
        self._drop_anchor(torch.device("cpu"))
        self._uses: dict[torch.nn.Module, _Forward] = {}
        self._forward = _forward_by(self._uses)
        self._places: list[tuple[dict[str, Any], Any]] = []  # modules' attributes, and what they run as their forward
        self._casts: dict[torch.nn.Parameter, tuple[torch.Tensor, int, int]] = {}  # and of what they were made
        self.waiting: list[Product] | None = None
        self.inside = 0

    def _drop_anchor(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self._anchor = torch.empty(0, requires_grad=True, device=device)
        self.anchored = get_gradient_edge(self._anchor).node

    def begin(self) -> None:
        """A training step begins: find the modules, which may be others than before, and forget what autocast made."""
        self._casts.clear()
        first = next(self.stage.parameters(), None)
        if first is not None and first.device != self._anchor.device:  # whose thread of autograd then need not wait
            self._drop_anchor(first.device)
        self._uses.clear()
        for module in _run_by_python(self.stage):
            if (rule := RULES.get(type(module).forward)) and "forward" not in vars(module) and _may_wait(module):
                self._uses[module] = _Forward(self, module, rule)
        self._places = [(vars(module), MethodType(self._forward, module)) for module in self._uses]

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While inside, the modules put their weight gradients aside. Nothing of it is left in them afterwards."""
        self.inside += 1
        try:
            for place, forward in self._places:
                place.setdefault("forward", forward)
            yield
        finally:
            self.inside -= 1
            for place, forward in self._places if not self.inside else ():
                if place.get("forward") is forward:  # and not what the stage has put there
                    del place["forward"]

    def backward(
        self, outputs: Sequence[torch.Tensor | GradientEdge], gradients: Sequence[torch.Tensor]
    ) -> list[Product]:
        """I: a backward, and what it puts aside."""
        waiting: list[Product] = []
        self.waiting = waiting
        try:
            with self.used():  # by checkpoints, which must keep the same again
                run_backward(outputs, gradients)
        finally:
            self.waiting = None
        return waiting

    def apply(self, use: _Use, x: torch.Tensor) -> Any:
        if self.waiting is not None:
            return _Again.apply(x, *use.parameters, use)  # type: ignore[no-untyped-call]
        return _Waiting.apply(x, self._anchor, use)  # type: ignore[no-untyped-call]

    def apply_cast(self, use: _Use, x: torch.Tensor) -> Any:
        """The same under autocast."""
        dtype = torch.get_autocast_dtype(x.device.type)
        x = x.to(dtype)
        weight, bias = use.parameters
        if self.waiting is not None:
            return _Again.apply(x, weight.to(dtype), None if bias is None else bias.to(dtype), use)  # type: ignore[no-untyped-call]
        cast = replace(use, weight=self._cast(weight, dtype), bias=None if bias is None else self._cast(bias, dtype))
        return _Waiting.apply(x, self._anchor, cast)  # type: ignore[no-untyped-call]

    def _cast(self, parameter: torch.nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        found, version, address = self._casts.get(parameter, (None, 0, 0))
        made_of = parameter._version, parameter.data_ptr()
        if found is None or found.dtype != dtype or (version, address) != made_of:
            found = parameter.detach().to(dtype)
            self._casts[parameter] = found, *made_of
        return found


def _forward_by(uses: dict[torch.nn.Module, _Forward]) -> Callable[[torch.nn.Module, torch.Tensor], Any]:
    """A method that modules run in their forward's place, as `uses` has it.

    It is the same in every step, and for all modules, so that `torch.compile` need not do anew what it has done. A copy
    of a module, and what is pickled, has the forward of its own class.
    """

    def forward(module: torch.nn.Module, input: torch.Tensor) -> Any:
        if torch.compiler.is_compiling() or (use := uses.get(module)) is None:
            return type(module).forward(module, input)
        return use(input)

    return forward


class _Forward:
    """How a module runs. What it is made of is looked at in every call: stages change it."""

    __slots__ = ("_bias", "_deferral", "_module", "_trains_bias", "_type", "_use", "_weight")

    def __init__(self, deferral: Deferral, module: Any, rule: Rule) -> None:
        weight, bias = module._parameters["weight"], module._parameters.get("bias")
        in_place = not any(is_watched(each) for each in (weight, bias) if each is not None)
        self._deferral, self._module = deferral, module
        self._type, self._weight, self._bias = type(module), weight, bias
        self._trains_bias = bias is not None and bias.requires_grad
        settings = rule.settings(module)
        self._use = _Use(deferral, module, rule, settings, (weight, bias), self._trains_bias, weight, bias, in_place)

    def __call__(self, input: torch.Tensor) -> Any:
        use, dtype = self._use, self._weight.dtype
        if (
            not self._deferral.inside
            or not torch.is_grad_enabled()
            or type(input) not in _EXACT
            or use.rule.worth(self._module, input, self._weight) < WORTH_DEFERRING
            or not self._is_as_before()
            or torch._C._are_functorch_transforms_active()
            or _is_in_a_mode()
            or forward_ad._current_level >= 0
        ):
            return self._plain(input)
        if not input.is_floating_point():
            return self._deferral.apply(use, input)
        if torch.is_autocast_enabled(input.device.type):
            plain = torch.float64 in (input.dtype, dtype)
            return self._plain(input) if plain else self._deferral.apply_cast(use, input)
        return (
            self._deferral.apply(use, input) if input.dtype == dtype else self._plain(input)
        )  # which says what is wrong

    def _plain(self, input: torch.Tensor) -> Any:
        return type(self._module).forward(self._module, input)  # of the class that it has by now

    def _is_as_before(self) -> bool:
        """Whether the module still has what it had when the step began."""
        module, weight, bias = self._module, self._weight, self._bias
        own = module._parameters
        return (
            type(module) is self._type  # which parametrizations change
            and own.get("weight") is weight
            and own.get("bias") is bias
            and _can_wait(weight)
            and (bias is None or (bias.requires_grad == self._trains_bias and _may_be_bias(bias)))
            and self._use.rule.settings(module) == self._use.settings
        )


def _is_in_a_mode() -> bool:
    """Whether functions of torch are others here, but for the device on which tensors are made."""
    depth = torch._C._len_torch_function_stack()
    return any(not isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in range(depth))


def _is_plain(module: torch.nn.Module, name: str) -> bool:
    """Whether the module's attribute is the parameter that it has of this name, or neither is there.

    It is not read: what computes it of others, as a parametrization, would run once more than in one process.
    """
    kind = type(module)
    if kind.__getattr__ is not torch.nn.Module.__getattr__ or kind.__getattribute__ is not object.__getattribute__:
        return False
    elsewhere = (vars(module), module._buffers, module._modules, *map(vars, kind.__mro__))
    return not any(name in each for each in elsewhere)


def _may_wait(module: torch.nn.Module) -> bool:
    """Whether the module has a weight, and no bias or one, that autograd would do no more for than add up gradients."""
    own = module._parameters
    plain = _is_plain(module, "weight") and _is_plain(module, "bias")
    return plain and _can_wait(own.get("weight")) and _may_be_bias(own.get("bias"))


def _may_be_bias(bias: Any) -> bool:
    """Whether a module with this bias can wait: without one, with one that is not trained, or with one that can."""
    return bias is None or (type(bias) is torch.nn.Parameter and not bias.requires_grad) or _can_wait(bias)


def _can_wait(parameter: Any) -> bool:
    """Whether autograd would do no more for this parameter than add up its gradients."""
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.requires_grad
        and not parameter.is_inference()  # torch says what is wrong with it
        and parameter.is_floating_point()
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )


def is_watched(parameter: torch.nn.Parameter) -> bool:
    """Whether somebody holds the node of autograd that accumulates its gradient, as who has hooks there does.

    It lives only as long as it is held: a mark on it is gone when it is made anew.
    """
    if not parameter.requires_grad:
        return False
    _marks_of(parameter)["pipedsl"] = True
    return "pipedsl" in _marks_of(parameter)


def _marks_of(parameter: torch.nn.Parameter) -> dict[str, Any]:
    marks: Any = get_gradient_edge(parameter).node.metadata  # a property, though torch's types call it a method
    found: dict[str, Any] = marks
    return found


def _run_by_python(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules of a tree that Python runs, without those inside what `torch.compile` or TorchScript has made."""
    seen: set[torch.nn.Module] = set()
    stack = [module]
    while stack:
        module = stack.pop()
        if module in seen or isinstance(module, torch.jit.ScriptModule):
            continue
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            continue
        seen.add(module)
        yield module
        stack.extend(module.children())


def _version(tensor: torch.Tensor) -> int:
    """How often it has been written to, as autograd counts it; of what was made in inference mode, none does."""
    return 0 if tensor.is_inference() else tensor._version


def _compare(use: _Use, what: str, tensor: torch.Tensor, version: int) -> None:
    """RuntimeError where what was put aside has been written to since, so that its product would be another."""
    if _version(tensor) != version:
        module, stage = use.module, use.deferral.stage
        name = next((repr(name) for name, each in stage.named_modules() if each is module and name), "the stage itself")
        raise RuntimeError(
            f"{what} of {name} ({type(module).__name__}), which its weight's gradient is still to be computed from in "
            f"W, has been modified by an inplace operation (it is at version {_version(tensor)}, expected "
            f"{version}); write to a clone of it, or give the module one"
        )


def multiply(products: list[Product]) -> None:
    """W: accumulate the gradients that I has put aside, each while it is in the cache; `products` is used up.

    RuntimeError where one is made of something that was written to in between.
    """
    products.reverse()
    with torch.no_grad():
        while products:
            use, g, x, g_version, x_version = products.pop()
            _compare(use, "the output's gradient", g, g_version)
            _compare(use, "the input", x, x_version)
            weight, bias = use.parameters
            if weight.requires_grad:  # else frozen since, and left alone by autograd, too
                _multiply(use, weight, g, x)
            if bias is not None and use.trains_bias and bias.requires_grad:
                _accumulate(use, bias, use.rule.of_bias(g))


def _multiply(use: _Use, weight: torch.nn.Parameter, g: torch.Tensor, x: torch.Tensor) -> None:
    """Add to a weight's gradient, where it lies if that can be."""
    rule, total = use.rule, weight.grad
    add = rule.add_of_weight if _is_quiet(use, weight) and g.dtype == x.dtype else None
    if add and total is not None and _is_sum(total, g.dtype):
        add(total, g, x)
    else:
        _accumulate(use, weight, rule.of_weight(use.settings, g, x, use.weight))


def _is_quiet(use: _Use, parameter: torch.nn.Parameter) -> bool:
    """Whether nobody has a hook on it by now."""
    return use.in_place and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks


def _is_sum(gradient: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a parameter's gradient is a plain tensor of this type, which another can be added to."""
    plain = type(gradient) is torch.Tensor and gradient.layout == torch.strided
    return plain and gradient.dtype == dtype and not gradient.requires_grad


def _accumulate(use: _Use, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Add to a parameter's gradient, by the engine where that may have more to do."""
    gradient, total = gradient.to(parameter.dtype), parameter.grad
    if _is_quiet(use, parameter) and total is not None and _is_sum(total, gradient.dtype):
        total.add_(gradient)
    else:
        run_backward((parameter,), (gradient,))
