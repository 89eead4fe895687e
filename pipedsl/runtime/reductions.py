"""Where a step's gradients are summed: each stage's at its REDUCE, if the schedule has one, all others at the end.

A parameter, or a replicated module, that several stages share is complete only with the last of them, so it waits for
the end, as do those that are tied across ranks; a sharded one for the last backward of each of these stages.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence

import torch

from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.copies import Copies
from pipedsl.runtime.data_parallel import ShardedChunk, reduce_gradients, replicated_parts, sharded_parts
from pipedsl.runtime.plan import Plan, PlannedCall
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import Store, Wire

_REPLICAS_POLL = 0.001  # seconds between two looks whether all replicas have come


class _Meeting:
    """Where the replicas of a stage wait for each other when they reduce late, in as many steps as they do.

    A rank numbers its own comings, and the first one writes down which of each it has met. Numbers of two ranks are
    not compared: where some failed to make a Pipeline, or gave up waiting, they have come more or less often.
    """

    def __init__(self, stage: str, place: str, ranks: Sequence[int], rank: int, store: Store) -> None:
        self.stage = stage
        self._place = place
        self._ranks = ranks
        self._rank = rank
        self._store = store
        self._time = ""

    def come(self) -> None:
        self._time = str(self._store.add(f"{self._place}/times/{self._rank}", 1))
        self._store.set(f"{self._place}/here/{self._rank}", self._time)

    def is_complete(self) -> bool:
        """Whether all have come since they last met."""
        noted = self._read("met")
        met = json.loads(noted) if noted else [""] * len(self._ranks)
        own = self._ranks.index(self._rank)
        if own:
            return bool(met[own] == self._time)
        here = [self._read(f"here/{rank}") for rank in self._ranks]
        if any(time in ("", earlier) for time, earlier in zip(here, met, strict=True)):
            return False
        self._store.set(f"{self._place}/met", json.dumps(here))
        return True

    def leave(self) -> None:
        """This rank waits no longer."""
        with contextlib.suppress(Exception):  # a store that is gone: nobody comes any more
            self._store.set(f"{self._place}/here/{self._rank}", "")

    def _read(self, what: str) -> str:
        key = f"{self._place}/{what}"
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""


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
                ranks = sorted({*chunk.replicas, self._rank})
                place = f"late/{'-'.join(map(str, ranks))}/{stage}"
                self._late[chunk] = _Meeting(self._plan.stage_name(stage), place, ranks, self._rank, self._store)

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
                self._meet(meeting)
                self._watch.position.note("reducing gradients over replicas")
                chunk.reduce()
        self._copies.finish(self._watch, self._last)
        self._tied.finish(self._watch)
        self._average([part for part in self.parts if self._alone.get(part) not in self._last], "")

    def _meet(self, meeting: _Meeting) -> None:
        """Wait until the last microbatch has turned out to have no gradient on all replicas."""
        self._watch.position.note(
            f"waiting for all replicas of stage {meeting.stage} to have no gradient for their last microbatch, either"
        )
        try:
            meeting.come()
            while not meeting.is_complete():
                self._watch.stop_if_failed()
                time.sleep(_REPLICAS_POLL)
        except BaseException:
            meeting.leave()  # or a later one would count this rank in
            raise

    def _average(self, parts: Sequence[torch.nn.parallel.DistributedDataParallel], where: str) -> None:
        for part in parts:
            self._watch.stop_if_failed()
            self._watch.position.note(f"{where}reducing gradients over replicas")
            reduce_gradients(part)
