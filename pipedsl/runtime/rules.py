"""The products behind the weights of Linear, convolution and Embedding modules, and how each is taken apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

# People put others in the place of torch's functions, whose backwards are not known.
_TORCH_S_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_TORCH_S_EMBEDDING = functional.embedding
_PER_ENTRY = 32  # multiplications that take as long as to write and add one entry of a gradient


class Rule(NamedTuple):
    """How a kind of module is taken apart. `x`: its input; `g`: its output's gradient.

    `worth`: (module, x, weight) to the multiplications behind its weight's gradient, 0 where the rest does not apply.
    `settings`: of the module, what the others need to know besides tensors.
    `run`: (module, x, weight, bias) to the output. `of_input`: (settings, g, x, weight) to the input's gradient.
    `of_weight`: the same to the weight's. `of_bias`: (g) to the bias's. `add_of_weight`: (gradient, g, x), adds the
    weight's where it is, if that can be done without having it on its own first. `keep`: (weight) to what torch keeps
    of it for the input's gradient: where `weight.data` is exchanged, what was used, or the weight as it is then.
    """

    worth: Callable[[Any, torch.Tensor, torch.Tensor], int]
    settings: Callable[[Any], tuple[Any, ...]]
    run: Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    of_input: Callable[[tuple[Any, ...], torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    of_weight: Callable[[tuple[Any, ...], torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    of_bias: Callable[[torch.Tensor], torch.Tensor]
    add_of_weight: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any] | None = None
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda weight: weight


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _linear(module: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = functional.linear(_rows(x), weight, bias)
    if x.dim() != 2:  # a view, which `linear` would make, could not be written to in place behind a Function
        shape = (*x.shape[:-1], y.shape[-1])
        y = y.view(shape) if _is_cached() else y.resize_(shape)
    return y


def _is_cached() -> bool:
    """Whether selective checkpointing keeps what is computed here: then nobody may write to it."""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    return any(type(mode).__module__ == "torch.utils.checkpoint" for mode in modes)


def _linear_worth(module: Any, x: torch.Tensor, weight: torch.Tensor) -> int:
    plain = functional.linear is torch._C._nn.linear and x.is_floating_point()
    return x.numel() * int(module.out_features) if plain else 0


_LINEAR = Rule(
    worth=_linear_worth,
    settings=lambda module: (),
    run=_linear,
    of_input=lambda _, g, x, weight: g.mm(weight) if g.dim() == 2 else _rows(g).mm(weight).view(x.shape),
    of_weight=lambda _, g, x, weight: _rows(g).t().mm(_rows(x)),
    of_bias=lambda g: _rows(g).sum(0),
    add_of_weight=lambda gradient, g, x: gradient.addmm_(_rows(g).t(), _rows(x)),
    keep=torch.Tensor.detach,
)


def _convolution_worth(module: Any, x: torch.Tensor, weight: torch.Tensor) -> int:
    kept = type(module)._conv_forward in _CONVOLVE and "_conv_forward" not in vars(module)
    kept = kept and (functional.conv1d, functional.conv2d, functional.conv3d) == _TORCH_S_CONVOLUTIONS
    plain = kept and module.padding_mode == "zeros" and not isinstance(module.padding, str) and x.is_floating_point()
    if not plain or x.dim() != weight.dim():  # else without a batch
        return 0
    places = x.numel() // x.shape[1]
    for stride in module.stride:
        places //= stride
    return places * weight.numel()


def _convolution(module: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y: torch.Tensor = module._conv_forward(x, weight, bias)
    return y


def _convolution_settings(module: Any) -> tuple[Any, ...]:
    stride = tuple(module.stride)
    return stride, module.padding, tuple(module.dilation), False, (0,) * len(stride), module.groups


def _convolution_backward(
    settings: tuple[Any, ...], g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *, of: int
) -> torch.Tensor:
    """aten's backward of a convolution: the gradient of the input (`of` = 0) or the weight (1)."""
    mask = [of == 0, of == 1, False]
    found: torch.Tensor = torch.ops.aten.convolution_backward(g, x, weight, None, *settings, mask)[of]
    return found


# The classes' own: a subclass may make other weights of `weight` there.
_CONVOLVE = (torch.nn.Conv1d._conv_forward, torch.nn.Conv2d._conv_forward, torch.nn.Conv3d._conv_forward)
_CONVOLUTION = Rule(
    worth=_convolution_worth,
    settings=_convolution_settings,
    run=_convolution,
    of_input=partial(_convolution_backward, of=0),
    of_weight=partial(_convolution_backward, of=1),
    of_bias=lambda g: g.sum([0, *range(2, g.dim())]),
)


def _embedding_worth(module: Any, x: torch.Tensor, weight: torch.Tensor) -> int:
    own = functional.embedding is _TORCH_S_EMBEDDING
    plain = own and module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return _PER_ENTRY * weight.numel() if plain else 0  # the gradient has a row for every word


def _embedding(module: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = functional.embedding(x, weight, module.padding_idx)
    own: torch.Tensor = torch.ops.aten._unsafe_view.default(y, y.shape)  # it is a view, too
    return own


def _embedding_of_weight(
    settings: tuple[Any, ...], g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    (padding,) = settings
    found: torch.Tensor = torch.ops.aten.embedding_dense_backward(g, x, len(weight), padding, False)
    return found


def _nothing(*_: Any) -> torch.Tensor:
    raise AssertionError("words have no gradient, and an embedding no bias")


_EMBEDDING = Rule(
    worth=_embedding_worth,
    settings=lambda module: (-1 if module.padding_idx is None else module.padding_idx,),
    run=_embedding,
    of_input=_nothing,
    of_weight=_embedding_of_weight,
    of_bias=_nothing,
)

# By the `forward` that a module runs, which subclasses may have kept.
RULES: dict[Any, Rule] = {
    torch.nn.Linear.forward: _LINEAR,
    torch.nn.Conv1d.forward: _CONVOLUTION,
    torch.nn.Conv2d.forward: _CONVOLUTION,
    torch.nn.Conv3d.forward: _CONVOLUTION,
    torch.nn.Embedding.forward: _EMBEDDING,
}
