"""Where a step's gradients are summed: each stage's at its REDUCE, if the schedule has one, all others at the end.

A parameter that several stages share is complete only with the last of them, so it waits for the end, as do those that
are tied across ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.copies import Copies
from pipedsl.runtime.data_parallel import ShardedChunk, reduce_gradients, replicated_parts
from pipedsl.runtime.plan import Plan, PlannedCall
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.watch import Watch


def reduced_stages(calls: Sequence[PlannedCall]) -> dict[int, PlannedCall]:
    """The REDUCE of each stage of a rank that has one."""
    return {call.stage: call for call in calls if call.kind == "REDUCE"}


class Reductions:
    """The sums of a rank's gradients over copies of its stages, over data parallelism and over ties.

    Where a rank holds several copies of a stage, the last of their REDUCEs sums for all.
    """

    def __init__(
        self,
        plan: Plan,
        modules: Mapping[int, torch.nn.Module],
        calls: Sequence[PlannedCall],
        copies: Copies,
        tied: Tied,
        watch: Watch,
    ) -> None:
        self._plan = plan
        self._copies = copies
        self._tied = tied
        self._watch = watch
        self._last = {stage % plan.stages: call for stage, call in reduced_stages(calls).items()}
        of_part: dict[int, set[int]] = {}
        for stage, module in modules.items():
            for part in replicated_parts([module]):
                of_part.setdefault(id(part), set()).add(stage % plan.stages)
        self.parts = replicated_parts(list(modules.values()))
        self._stages = {part: next(iter(of)) for part in self.parts if len(of := of_part[id(part)]) == 1}
        self._sharded: dict[int, list[ShardedChunk]] = {}

    def learn(self, chunks: Mapping[int, Chunk]) -> None:
        """What runs the stages."""
        for stage, chunk in chunks.items():
            if isinstance(chunk, ShardedChunk):
                self._sharded.setdefault(stage % self._plan.stages, []).append(chunk)

    def reduce(self, call: PlannedCall) -> None:
        """A REDUCE: the gradients of its stage are complete here."""
        stage = call.stage % self._plan.stages
        if self._last[stage] is not call:
            return
        watch, where = self._watch, call.describe(self._plan.source)
        for chunk in self._sharded.get(stage, ()):
            chunk.reduce()
        self._copies.reduce(stage, watch, where)
        self._average([part for part in self.parts if self._stages.get(part) == stage], f"{where}: ")

    def finish(self) -> None:
        """After the last call of a step: all that no REDUCE has summed."""
        self._copies.finish(self._watch, self._last)
        self._tied.finish(self._watch)
        self._average([part for part in self.parts if self._stages.get(part) not in self._last], "")

    def _average(self, parts: Sequence[torch.nn.parallel.DistributedDataParallel], where: str) -> None:
        for part in parts:
            self._watch.stop_if_failed()
            self._watch.position.note(f"{where}reducing gradients over replicas")
            reduce_gradients(part)
