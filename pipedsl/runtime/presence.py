"""Which of the gradients that cross a stage boundary there are.

A stage that detaches its input, or does not use all of it, has none to send back, and the stage before must not run
its backward with zeros in their place: one process leaves `.grad` None there. But which there are is known only after a
backward has run, and what a message is made of must be known before. So messages carry zeros for the gradients that
are none, and the rank that sends the first one says beside it which are; afterwards only what differs from that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch

from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import Store

_POLL = 0.001  # seconds between two looks for what the other rank says


class Presence:
    """What is agreed on the gradients of outputs, by the stage that made these. For stages on two ranks.

    `ahead`: this rank's Python may be ahead of what has arrived. Then it does not ask in the first training step, where
    zeros stand for none, as the other rank may not be able to answer yet; and nothing may appear later.
    """

    def __init__(self, store: Store, watch: Watch, *, ahead: bool) -> None:
        self._store = store
        self._watch = watch
        self._ahead = ahead
        self._agreed: dict[int, list[bool]] = {}
        self._whole: set[int] = set()  # the stages all of whose gradients arrive
        self._unasked: set[int] = set()
        self._key = ""

    def begin(self, agreement: int, step: int) -> None:
        """A training step begins. `agreement`: what was agreed on under another number is forgotten."""
        key = f"gradients/{agreement}"
        if key != self._key:
            self._key = key
            for each in (self._agreed, self._whole, self._unasked):
                each.clear()
        self._step = step
        while self._unasked:
            self._ask(self._unasked.pop())

    def tell(self, stage: int, microbatch: int, gradients: Sequence[torch.Tensor | None]) -> bool:
        """These are about to be sent to `stage`; whether there are all of them.

        ValueError where there is one that could not be received as one.
        """
        whole = all(gradient is not None for gradient in gradients)
        if whole and stage in self._whole:
            return True
        present = [gradient is not None for gradient in gradients]
        agreed = self._agreed.get(stage)
        if agreed is None:
            self._agreed[stage] = present
            if whole:
                self._whole.add(stage)
            self._store.set(f"{self._key}/{stage}", json.dumps(present))
        elif present != agreed and not all(agreed):
            if not self._ahead:  # answered, so that it is there before the message is
                self._store.compare_set(self._exception(stage, microbatch), "", json.dumps(present))
            elif any(is_now and not was for is_now, was in zip(present, agreed, strict=True)):
                raise ValueError(
                    "a gradient goes back to the stage before for this microbatch where the first microbatch had none; "
                    "call renew_shapes() on every rank before the first step of which this is so"
                )
        return whole

    def choose(self, stage: int, microbatch: int, received: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """What was received for the outputs of `stage`, with None for what is no gradient."""
        if stage in self._whole or not received:
            return received
        if stage not in self._agreed:
            if self._ahead:
                self._unasked.add(stage)
                return received
            self._ask(stage)
            if stage in self._whole:
                return received
        present = self._agreed[stage]
        if not self._ahead and self._store.check([key := self._exception(stage, microbatch)]):
            present = json.loads(self._store.get(key))
            self._store.delete_key(key)
        return [x if there else None for x, there in zip(received, present, strict=True)]

    def _ask(self, stage: int) -> None:
        while not self._store.check([f"{self._key}/{stage}"]):
            self._watch.stop_if_failed()
            time.sleep(_POLL)
        self._agreed[stage] = json.loads(self._store.get(f"{self._key}/{stage}"))
        if all(self._agreed[stage]):
            self._whole.add(stage)

    def _exception(self, stage: int, microbatch: int) -> str:
        return f"{self._key}/{stage}/{self._step}/{microbatch}"
