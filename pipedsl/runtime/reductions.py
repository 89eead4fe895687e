"""Where a step's gradients are summed: each stage's at its REDUCE, if the schedule has one, all others at the end.

A parameter, or a replicated module, that several stages share is complete only with the last of them, so it waits for
the end, as do those that are tied across ranks, and a replicated module that has one: what it is summed with is no mean
yet. To a sharded one each of these stages adds what is there by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.copies import Copies
from pipedsl.runtime.data_parallel import ShardedChunk, reduce_gradients, replicated_parts
from pipedsl.runtime.plan import Plan, PlannedCall
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.watch import Watch


class Reductions:
    """The sums of a rank's gradients over copies of its stages, over data parallelism and over ties.

    Where a rank holds several copies of a stage, the last of their REDUCEs sums for all. `losses`: loss functions that
    are modules, where the last stage is here.
    """

    def __init__(
        self,
        plan: Plan,
        modules: Mapping[int, torch.nn.Module],
        losses: Sequence[torch.nn.Module],
        calls: Sequence[PlannedCall],
        copies: Copies,
        tied: Tied,
        watch: Watch,
    ) -> None:
        self._plan = plan
        self._copies = copies
        self._tied = tied
        self._watch = watch
        self._last = {call.stage % plan.stages: call for call in calls if call.kind == "REDUCE"}
        self._replicas: dict[int, set[int]] = {}
        watch.position.replicas = self._replicas
        stages_of: dict[torch.nn.Module, set[int]] = {}
        for stage, module in modules.items():
            for part in replicated_parts([module]):
                stages_of.setdefault(part, set()).add(stage % plan.stages)
                self._replicas.setdefault(stage, set()).update(dist.get_process_group_ranks(part.process_group))
        self._alone = {
            part: next(iter(stages))
            for part, stages in stages_of.items()
            if len(stages) == 1 and not tied.has_one_of(part)
        }
        self.parts = replicated_parts([*modules.values(), *losses])
        self._sharded: list[ShardedChunk] = []
        self._reduced: dict[int, list[ShardedChunk]] = {}  # those that have a REDUCE

    def has(self, stage: int) -> bool:
        """Whether a stage's gradients wait for a REDUCE."""
        return stage % self._plan.stages in self._last

    def learn(self, chunks: Mapping[int, Chunk]) -> None:
        """What runs the stages."""
        for stage, chunk in chunks.items():
            if isinstance(chunk, ShardedChunk):
                self._sharded.append(chunk)
                self._replicas.setdefault(stage, set()).update(chunk.replicas)
                if chunk.reduced:
                    self._reduced.setdefault(stage % self._plan.stages, []).append(chunk)

    def reduce(self, call: PlannedCall) -> None:
        """A REDUCE: the gradients of its stage are complete here."""
        stage = call.stage % self._plan.stages
        if self._last[stage] is not call:
            return
        watch, where = self._watch, call.describe(self._plan.source)
        for chunk in self._reduced.get(stage, ()):
            watch.stop_if_failed()
            watch.position.note(f"{where}: reducing gradients over replicas", among=chunk.replicas)
            chunk.reduce()
        self._copies.reduce(stage, watch, where)
        self._average([part for part in self.parts if self._alone.get(part) == stage], f"{where}: ")

    def finish(self) -> None:
        """After the last call of a step: all that no REDUCE has summed, nor a sharded stage's last backward."""
        for chunk in self._sharded:
            chunk.finish()
        self._copies.finish(self._watch, self._last)
        self._tied.finish(self._watch)
        self._average([part for part in self.parts if self._alone.get(part) not in self._last], "")

    def _average(self, parts: Sequence[torch.nn.parallel.DistributedDataParallel], where: str) -> None:
        for part in parts:
            self._watch.stop_if_failed()
            replicas = dist.get_process_group_ranks(part.process_group)
            self._watch.position.note(f"{where}reducing gradients over replicas", among=replicas)
            reduce_gradients(part)
