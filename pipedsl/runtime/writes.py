"""Stages that write to an input which shared memory with another one where the stage before returned them.

Which do is agreed on with the first microbatch. A later one may have others, as a module that leaves out layers at
random returns one tensor twice for some: its rank says so by the store, once, before the message. The other one asks
when it has run its last microbatch of a step, and before it gives a gradient for it, where it has written to anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import torch

from pipedsl.runtime.chunk import Arrived
from pipedsl.runtime.overlaps import versions
from pipedsl.runtime.wire import Store


class Writes:
    """What this rank knows of them. `names`: of the stages; `microbatches`: that each of them runs in a step."""

    def __init__(self, store: Store, names: Sequence[str], microbatches: int, device: torch.device) -> None:
        self._store = store
        self._names = names
        self._microbatches = microbatches
        self._device = device
        self._told: dict[tuple[bool, int], set[int]] = {}
        self._runs: dict[int, int] = {}  # in this step, by stage
        self._written: dict[int, set[int]] = {}
        self._agreement = 0

    def begin(self, agreement: int) -> None:
        """A step begins. `agreement`: what was told under another number is forgotten."""
        if agreement != self._agreement:
            self._told.clear()
            self._agreement = agreement

    def tell(self, train: bool, stage: int, agreed: Collection[int], shared: Collection[int]) -> None:
        """These inputs of a stage on another rank share memory, by number; those `agreed` on it knows."""
        told = self._told.setdefault((train, stage), set())
        if not told.union(agreed).issuperset(shared):
            told.update(shared)
            self._store.set(self._told_under(train, stage), json.dumps(sorted(told)))

    def look(self, train: bool, stage: int, arrived: Arrived, before: Sequence[int], *, here: bool) -> None:
        """A stage has run on several inputs. `before`: how often they had been written to; `here`: made on this rank.

        ValueError where it wrote to one that shares memory.
        """
        after = versions(arrived.leaves)
        if after != before:
            written = {i for i, (then, now) in enumerate(zip(before, after, strict=True)) if then != now}
            self._refuse(stage, written.intersection(arrived.shared))
            if not here:
                self._written.setdefault(stage, set()).update(written)
        runs = self._runs[stage] = self._runs.get(stage, 0) + 1
        if runs == self._microbatches:
            self._runs[stage] = 0
            if stage in self._written:
                self._ask(train, stage, self._written.pop(stage))

    def _ask(self, train: bool, stage: int, written: Collection[int]) -> None:
        """ValueError where one of these inputs has ever shared memory."""
        if self._device.type == "cuda":  # this rank's Python may be ahead of the last message
            torch.cuda.current_stream(self._device).synchronize()
        key = self._told_under(train, stage)
        if self._store.check([key]):
            shared = set(json.loads(self._store.get(key)))  # in any microbatch, as few do at all
            self._refuse(stage, shared.intersection(written), ", in this microbatch or another,")

    def _told_under(self, train: bool, stage: int) -> str:
        return f"shared/{self._agreement}/{'train' if train else 'eval'}/{stage}"

    def _refuse(self, stage: int, inputs: Collection[int], when: str = "") -> None:
        if inputs:
            raise ValueError(
                f"stage {self._names[stage]} writes to an input that shares memory with another one{when or ','} as "
                f"stage {self._names[stage - 1]} returned a tensor twice, or a view of it, too; "
                "write to a copy, or return one (`.clone()`)"
            )
