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
    """One stage of a pipeline of its own, on one rank."""

    def __init__(self, number: int, store: Any, *, waits: bool = True, stage: int = 0) -> None:
        self.noted: list[str] = []
        self.failed = False
        self.chunk = Late(waits)
        finish = SimpleNamespace(finish=lambda *_: None)
        watch: Any = SimpleNamespace(position=SimpleNamespace(note=self.noted.append), stop_if_failed=self.stop)
        wire: Any = SimpleNamespace(rank=0, ranks=[number], job_store=lambda: store)
        plan = Plan("x", "x.sched", {}, "", {}, 1, 2, 2, [0, 0], ["F 0 0 1"])
        self.reductions = Reductions(plan, wire, {0: nn.Linear(2, 2)}, [], finish, finish, watch)  # type: ignore[arg-type]
        self.reductions.learn({stage: self.chunk})
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

        thread = threading.Thread(target=work, daemon=True)
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


def all_meet(*replicas: Replica) -> None:
    before = [each.chunk.sums for each in replicas]
    threads = [each.finish() for each in replicas]
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [each.error for each in replicas] == [None] * len(replicas)
    assert [each.chunk.sums - earlier for each, earlier in zip(replicas, before, strict=True)] == [1] * len(replicas)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("made_before", [(), (0,), (1,), (0, 1, 1)])
def test_replicas_meet_whichever_made_more_pipelines_before(made_before: tuple[int, ...], first: int) -> None:
    """One whose other ranks failed to make theirs has none, or made one more when all tried again."""
    store = dist.HashStore()
    for number in made_before:
        Replica(number, store)
    replicas = [Replica(number, store) for number in (first, 1 - first)]
    for _ in range(3):
        all_meet(*replicas)


@pytest.mark.parametrize("quitter", [0, 1])
def test_one_that_gave_up_waiting_is_not_met_later(quitter: int) -> None:
    store = dist.HashStore()
    all_meet(Replica(0, store), Replica(1, store))
    alone = Replica(quitter, store)
    alone.failed = True
    alone.finish().join(PATIENCE)
    assert isinstance(alone.error, PipelineError)

    late, other = Replica(quitter, store), Replica(1 - quitter, store)
    early = other.finish()
    early.join(0.1)
    assert (early.is_alive(), other.chunk.sums) == (True, 0)
    thread = late.finish()
    for each in (early, thread):
        each.join(PATIENCE)
        assert not each.is_alive()
    assert [late.chunk.sums, other.chunk.sums] == [1, 1]
    all_meet(late, other)


def test_stages_of_the_same_replicas_are_told_apart() -> None:
    """One rank's late for one stage, the other's for another one: their sums would mix."""
    store = dist.HashStore()
    one, other = Replica(0, store), Replica(1, store, stage=1)
    threads = [one.finish(), other.finish()]
    threads[0].join(0.1)
    assert [thread.is_alive() for thread in threads] == [True, True]
    one.failed = other.failed = True
    for thread in threads:
        thread.join(PATIENCE)
    assert [one.chunk.sums, other.chunk.sums] == [0, 0]


def test_where_the_store_is_lost_the_first_that_says_so_is_told() -> None:
    class Lost:
        sets = 0

        def add(self, *_: Any) -> int:
            return 1

        def set(self, *_: Any) -> None:
            self.sets += 1
            raise dist.DistNetworkError(f"lost, {self.sets}")

    one = Replica(0, Lost())
    one.finish().join(PATIENCE)
    assert str(one.error) == "lost, 1"
