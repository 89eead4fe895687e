"""Which of the gradients that cross a stage boundary there are.

A stage that detaches its input, or does not use all of it, has none to send back, and the stage before must not run
its backward with zeros in their place: one process leaves `.grad` None there. But which there are is known only after a
backward has run, and what a message is made of must be known before. So a message holds something in the place of
every gradient that is none.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import Store

_POLL = 0.001  # seconds between two looks for what the other rank says
# What a gradient that is none is full of, in bytes: in every type a NaN, and one that no computation makes. (A NaN of
# all ones is one that torch makes.)
_MARK = (0xF5, 0x7F)
_MARKS = int.from_bytes(bytes(_MARK) * 4, sys.byteorder)


class Presence(Protocol):
    """What two ranks know of the gradients of outputs, by the stage that made these."""

    def begin(self, agreement: int) -> None:
        """A training step begins. `agreement`: what was agreed on under another number is forgotten."""

    def tell(self, stage: int, gradients: Sequence[torch.Tensor | None]) -> bool:
        """These are about to be sent to `stage`; whether there are all of them.

        ValueError where there is one that could not be received as one.
        """

    def absent(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """What is sent in the place of a gradient that is none."""

    def choose(self, stage: int, received: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """What was received for the outputs of `stage`, with None for what is no gradient."""


class Marked:
    """Of tensors in main memory: those that are none say so themselves."""

    def begin(self, agreement: int) -> None:
        pass

    def tell(self, stage: int, gradients: Sequence[torch.Tensor | None]) -> bool:
        return all(gradient is not None for gradient in gradients)

    def absent(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        x = torch.empty(shape, dtype=dtype, device=device)
        for part, value in zip(_halves(x), _MARK, strict=True):
            part.fill_(value)
        return x

    def choose(self, stage: int, received: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        return [None if _is_marked(x) else x for x in received]


def _is_marked(x: torch.Tensor) -> bool:
    """Whether a contiguous tensor in main memory stands for none. Most are told by their first bytes."""
    if x.nbytes >= 8 and ctypes.c_int64.from_address(x.data_ptr()).value != _MARKS:
        return False
    return all(bool((part == value).all()) for part, value in zip(_halves(x), _MARK, strict=True))


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of a contiguous tensor: every other one, and those between."""
    data = x.view(-1).view(torch.uint8)
    return data[::2], data[1::2]


class Announced:
    """Where this rank's Python may be ahead of what has arrived, as on a GPU, and so cannot look at it.

    Zeros stand for none. The rank that sends the first message says beside it, by the store, which they are. In the
    first training step nobody asks, as the other rank may not be able to answer yet; and nothing may appear later.
    """

    def __init__(self, store: Store, watch: Watch) -> None:
        self._store = store
        self._watch = watch
        self._agreed: dict[int, list[bool]] = {}
        self._whole: set[int] = set()  # the stages all of whose gradients arrive
        self._unasked: set[int] = set()
        self._unread: set[str] = set()  # what nobody will ask for any more, though it may not have been said yet
        self._key = ""

    def begin(self, agreement: int) -> None:
        key = f"gradients/{agreement}"
        if key != self._key:
            self._unread.update(f"{self._key}/{stage}" for stage in self._unasked)
            self._unread = {each for each in self._unread if not self._store.delete_key(each)}
            self._key = key
            for each in (self._agreed, self._whole, self._unasked):
                each.clear()
        while self._unasked:
            self._ask(self._unasked.pop())

    def tell(self, stage: int, gradients: Sequence[torch.Tensor | None]) -> bool:
        whole = all(gradient is not None for gradient in gradients)
        if whole and stage in self._whole:
            return True
        present = [gradient is not None for gradient in gradients]
        agreed = self._agreed.get(stage)
        if agreed is None:
            self._agreed[stage] = present
            if whole:
                self._whole.add(stage)
            if present:  # else nobody asks
                self._store.set(f"{self._key}/{stage}", json.dumps(present))
        elif any(is_now and not was for is_now, was in zip(present, agreed, strict=True)):
            raise ValueError(
                "a gradient goes back to the stage before for this microbatch where the first microbatch had none; "
                "call renew_shapes() on every rank before the first step of which this is so"
            )
        return whole

    def absent(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def choose(self, stage: int, received: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        if stage in self._whole or not received:
            return received
        if stage not in self._agreed:
            self._unasked.add(stage)
            return received
        return [x if there else None for x, there in zip(received, self._agreed[stage], strict=True)]

    def _ask(self, stage: int) -> None:
        """Read, and delete, what was said to this rank alone."""
        key = f"{self._key}/{stage}"
        while not self._store.check([key]):
            self._watch.stop_if_failed()
            time.sleep(_POLL)
        self._agreed[stage] = json.loads(self._store.get(key))
        self._store.delete_key(key)
        if all(self._agreed[stage]):
            self._whole.add(stage)
