"""How many bytes of tensors are alive, counted as torch makes and frees them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_claimed: weakref.WeakKeyDictionary[torch.UntypedStorage, None] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


class LiveBytes(TorchDispatchMode):
    """Counts the memory that its thread takes while inside, until it is freed: `now`, and the `largest` so far.

    What another thread has taken first is that one's. What was there before is nobody's, so parameters and gradients
    that are made beforehand do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {
            each.untyped_storage()._cdata
            for each in tree_leaves((args, dict(kwargs or {})))
            if isinstance(each, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata not in before:
                self._claim(each.untyped_storage())
        return result

    def _claim(self, storage: torch.UntypedStorage) -> None:
        with _lock:
            if storage in _claimed:
                return
            _claimed[storage] = None
            self.now += storage.nbytes()
            self.largest = max(self.largest, self.now)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        with _lock:
            self.now -= size
