"""Sharded stages whose last microbatch has no gradient reduce late, and only where all replicas do."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from pipedsl.runtime.data_parallel import ShardedChunk
from pipedsl.runtime.plan import PipelineError, Plan
from pipedsl.runtime.reductions import Reductions

PATIENCE = 50.0  # seconds, where it is not time that runs out


class Late(ShardedChunk):
    def __init__(self, waits: bool) -> None:
        super().__init__(nn.Linear(2, 2), [], 2, False)
        self.replicas = [0, 1]
        self.waits = waits
        self.sums = 0

    def reduce(self) -> None:
        self.sums += 1


class Replica:
    """The one stage of a pipeline of its own."""

    def __init__(self, number: int, store: Any, *, waits: bool = True) -> None:
        self.noted: list[str] = []
        self.failed = False
        self.chunk = Late(waits)
        finish = SimpleNamespace(finish=lambda *_: None)
        watch: Any = SimpleNamespace(position=SimpleNamespace(note=self.noted.append), stop_if_failed=self.stop)
        wire: Any = SimpleNamespace(rank=0, ranks=[number], job_store=lambda: store)
        plan = Plan("x", "x.sched", {}, "", {}, 1, 1, 2, [0], ["F 0 0 1"])
        self.reductions = Reductions(plan, wire, {0: nn.Linear(2, 2)}, [], finish, finish, watch)  # type: ignore[arg-type]
        self.reductions.learn({0: self.chunk})
        self.error: BaseException | None = None

    def stop(self) -> None:
        if self.failed:
            raise PipelineError("another rank failed")

    def finish(self) -> threading.Thread:
        """The end of a step, in a thread."""

        def work() -> None:
            try:
                self.reductions.finish()
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=work)
        thread.start()
        return thread


@pytest.mark.parametrize("first", [0, 1])
def test_it_waits_for_the_other_replica_in_every_step(first: int) -> None:
    store = dist.HashStore()
    replicas = [Replica(number, store) for number in (0, 1)]
    for steps in (1, 2, 3):
        early = replicas[first].finish()
        early.join(0.1)
        assert (early.is_alive(), replicas[first].chunk.sums) == (True, steps - 1)
        late = replicas[1 - first].finish()
        for thread in (early, late):
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert [each.chunk.sums for each in replicas] == [steps, steps]
        assert [each.error for each in replicas] == [None, None]


def test_one_whose_replica_reduces_in_its_last_backward_sums_nothing_and_says_why() -> None:
    """It cannot know, so it waits until time is up."""
    store = dist.HashStore()
    one, other = Replica(0, store), Replica(1, store, waits=False)
    other.finish().join(PATIENCE)
    assert other.noted == []
    thread = one.finish()
    thread.join(0.1)
    assert thread.is_alive()
    one.failed = True
    thread.join(PATIENCE)
    assert isinstance(one.error, PipelineError)
    assert (one.chunk.sums, other.chunk.sums) == (0, 0)
    assert one.noted == ["waiting for all replicas of stage 0 to have no gradient for their last microbatch, either"]


def test_pipelines_made_later_do_not_meet_those_before() -> None:
    store = dist.HashStore()
    before = Replica(0, store).finish()
    again = [Replica(0, store), Replica(1, store), Replica(1, store)]
    met = [again[1].finish(), again[0].finish(), again[2].finish()]
    for thread in (before, *met):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [each.chunk.sums for each in again] == [1, 1, 1]
