"""A tensor that holds another one, and no memory of its own, as libraries of quantization or sharding make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map


class Wrapped(torch.Tensor):
    """Computes as the one inside, and wraps what comes of it."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined]
        made.inner = inner
        found: Wrapped = made
        return found

    @classmethod
    def __torch_dispatch__(
        cls, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        more: Mapping[str, Any] = kwargs or {}
        result = function(*tree_map(_inside, args), **tree_map(_inside, more))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, result)


def _inside(x: Any) -> Any:
    return x.inner if isinstance(x, Wrapped) else x
