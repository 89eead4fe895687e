"""Where a step's gradients are summed: each stage's at its REDUCE, if the schedule has one, all others at the end.

A parameter, or a replicated module, that several stages share is complete only with the last of them, so it waits for
the end, as do those that are tied across ranks; a sharded one for the last backward of each of these stages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.copies import Copies
from pipedsl.runtime.data_parallel import ShardedChunk, reduce_gradients, replicated_parts, sharded_parts
from pipedsl.runtime.plan import Plan, PlannedCall
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import Wire

_REPLICAS_POLL = 0.001  # seconds between two looks whether all replicas have come


@dataclass
class _Meeting:
    """Where the replicas of a stage say that they reduce late, and how often they have."""

    stage: str
    key: str
    times: int = 0


class Reductions:
    """The sums of a rank's gradients over copies of its stages, over data parallelism and over ties.

    A sharded stage whose last microbatch has no gradient, and so no backward to reduce them in, does so when the step
    ends. Its replicas must do likewise, or their sums would not meet in one order: they say so before they begin.

    Where a rank holds several copies of a stage, the last of their REDUCEs sums for all.
    """

    def __init__(
        self,
        plan: Plan,
        wire: Wire,
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
        self._last = {call.stage % plan.stages: call for call in calls if call.kind == "REDUCE"}
        stages_of: dict[torch.nn.Module, set[int]] = {}
        for stage, module in modules.items():
            for part in (*replicated_parts([module]), *sharded_parts(module)):
                stages_of.setdefault(part, set()).add(stage % plan.stages)
        self._alone = {part: next(iter(stages)) for part, stages in stages_of.items() if len(stages) == 1}
        self.parts = replicated_parts(list(modules.values()))
        self._sharded: dict[int, list[ShardedChunk]] = {}  # those that have a REDUCE
        self._store, self._rank = wire.job_store(), wire.ranks[wire.rank]
        self._late: dict[ShardedChunk, _Meeting] = {}  # what the others have

    def has(self, stage: int, module: torch.nn.Module) -> bool:
        """Whether a stage's gradients wait for a REDUCE."""
        return stage % self._plan.stages in self._last and all(part in self._alone for part in sharded_parts(module))

    def learn(self, chunks: Mapping[int, Chunk]) -> None:
        """What runs the stages."""
        for stage, chunk in chunks.items():
            if isinstance(chunk, ShardedChunk) and chunk.reduced:
                self._sharded.setdefault(stage % self._plan.stages, []).append(chunk)
            elif isinstance(chunk, ShardedChunk):
                replicas = "-".join(map(str, chunk.replicas))
                number = self._store.add(f"sharded/{replicas}/of {self._rank}", 1)  # all make them in one order
                self._late[chunk] = _Meeting(self._plan.stage_name(stage), f"sharded/{replicas}/{number}")

    def reduce(self, call: PlannedCall) -> None:
        """A REDUCE: the gradients of its stage are complete here."""
        stage = call.stage % self._plan.stages
        if self._last[stage] is not call:
            return
        watch, where = self._watch, call.describe(self._plan.source)
        for chunk in self._sharded.get(stage, ()):
            watch.stop_if_failed()
            watch.position.note(f"{where}: reducing gradients over replicas")
            chunk.reduce()
        self._copies.reduce(stage, watch, where)
        self._average([part for part in self.parts if self._alone.get(part) == stage], f"{where}: ")

    def finish(self) -> None:
        """After the last call of a step: all that no REDUCE has summed, nor a sharded stage's last backward."""
        for chunk, meeting in self._late.items():
            if chunk.waits:
                self._meet(chunk, meeting)
                self._watch.position.note("reducing gradients over replicas")
                chunk.reduce()
        self._copies.finish(self._watch, self._last)
        self._tied.finish(self._watch)
        self._average([part for part in self.parts if self._alone.get(part) not in self._last], "")

    def _meet(self, chunk: ShardedChunk, meeting: _Meeting) -> None:
        """Wait until the last microbatch has turned out to have no gradient on all replicas."""
        self._watch.position.note(
            f"waiting for all replicas of stage {meeting.stage} to have no gradient for their last microbatch, either"
        )
        meeting.times += 1
        self._store.add(meeting.key, 1)
        while self._store.add(meeting.key, 0) < meeting.times * len(chunk.replicas):
            self._watch.stop_if_failed()
            time.sleep(_REPLICAS_POLL)

    def _average(self, parts: Sequence[torch.nn.parallel.DistributedDataParallel], where: str) -> None:
        for part in parts:
            self._watch.stop_if_failed()
            self._watch.position.note(f"{where}reducing gradients over replicas")
            reduce_gradients(part)
