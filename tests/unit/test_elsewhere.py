"""What other pipelines of a job are told of one that has failed: two pipelines of two ranks, on threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from pipedsl.runtime.elsewhere import Elsewhere
from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, Rank, Released, Wire, run_ranks
from tests.support.worker import load

PATIENCE = 50.0  # seconds, where it is not time that runs out


class Part(Wire):
    """A rank of one pipeline of a job of two. Its numbers in the job begin with `first`."""

    strangers = 2

    def __init__(self, fabric: Fabric, rank: int, first: int, job: Any) -> None:
        super().__init__(fabric, rank)
        self.ranks = range(first, first + 2)
        self.hosts_store = first + rank == 0
        self.job = job

    def job_store(self, *, for_thread: bool = False) -> Any:
        return self.job


class Parts(Fabric):
    def __init__(self, first: int, job: Any) -> None:
        super().__init__(2, LAZY)
        self.first, self.job = first, job

    def wire(self, rank: int) -> Part:
        return Part(self, rank, self.first, self.job)


def two_pipelines(body: Callable[[Part], Any]) -> list[Rank]:
    """Run `body` as each of the four ranks of a job."""
    job = dist.HashStore()
    found: dict[int, list[Rank]] = {}

    def run(first: int) -> None:
        found[first] = run_ranks(Parts(first, job), body)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*found[0], *found[2]]


class Stage(nn.Module):
    """Runs something before its second forward."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.before = before
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        if self.calls == 2:
            self.before()
        return self.inner(x)


def test_who_stands_still_knows_why_before_its_connection_is_lost(tmp_path: Path) -> None:
    """As where its replica's process ends, and with it perhaps the store."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    pipes: dict[int, Any] = {}

    def before(wire: Part) -> None:
        if wire.ranks[wire.rank] == 1:
            raise ValueError("a fault made on purpose")
        if wire.ranks[wire.rank] == 3:  # as in a sum over replicas
            deadline = time.monotonic() + PATIENCE
            while not pipes[3]._watch._elsewhere.text and time.monotonic() < deadline:
                time.sleep(0.01)
            raise dist.DistNetworkError("Connection closed by peer")

    def body(wire: Part) -> None:
        pipe = module.Pipeline(
            Stage(lambda: before(wire)), functional.mse_loss, process_group=wire, timeout=4 * PATIENCE
        )
        pipes[wire.ranks[wire.rank]] = pipe
        pipe.step(torch.ones(4, 2), torch.ones(4, 2))

    said = [str(rank.error) for rank in two_pipelines(body)]
    cause = "rank 1 failed at F of stage 1, microbatch 1 (test.sched:"
    for text in said[:2]:
        assert cause in text
        assert "before that" not in text
    for text in said[2:]:
        assert "rank 1 (global rank 3) failed at F of stage 1" in text
        assert f"\n  before that the pipeline of global ranks 0, 1 failed: {cause}" in text
        assert "ValueError: a fault made on purpose" in text


def test_a_connection_that_is_lost_is_told_at_once(tmp_path: Path) -> None:
    """Whoever has closed it has its time to say why, and that is told then."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    module._GATHER = 4 * PATIENCE  # as long as nobody says why
    pipes: dict[int, Any] = {}
    made = threading.Barrier(4)  # what fails before a pipeline is made is no news to it
    heard: list[str] = []

    def before(wire: Part) -> None:
        here = wire.ranks[wire.rank]
        if here == 0:
            raise Released("the other end is gone")
        if here == 3:
            deadline = time.monotonic() + PATIENCE
            while not pipes[3]._watch._elsewhere.text and time.monotonic() < deadline:
                time.sleep(0.01)
            heard.append(pipes[3]._watch._elsewhere.text)
            pipes[1]._watch._declare(pipes[1]._watch._own_store, "raised", "ValueError: a fault made on purpose")
            while "on purpose" not in pipes[3]._watch._elsewhere.text and time.monotonic() < deadline:
                time.sleep(0.01)
            raise dist.DistNetworkError("Connection closed by peer")

    def body(wire: Part) -> None:
        pipe = module.Pipeline(
            Stage(lambda: before(wire)), functional.mse_loss, process_group=wire, timeout=4 * PATIENCE
        )
        pipes[wire.ranks[wire.rank]] = pipe
        made.wait(PATIENCE)
        pipe.step(torch.ones(4, 2), torch.ones(4, 2))

    said = [str(rank.error) for rank in two_pipelines(body)]
    lost = "rank 0 lost its connection to another rank at F of stage 0, microbatch 1 (test.sched:"
    assert [text.split(lost)[0] for text in heard] == ["before that the pipeline of global ranks 0, 1 failed: "]
    for text in said[:2]:
        assert "ValueError: a fault made on purpose" in text.splitlines()[0]
    for text in said[2:]:
        assert "\n  before that the pipeline of global ranks 0, 1 failed: rank 1 failed at " in text
        assert lost not in text


def test_a_rank_that_another_pipeline_has_lost_is_named_though_nobody_says_so(tmp_path: Path) -> None:
    """The rest of its pipeline has not noticed yet. Who is in a step answers."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    over = threading.Event()
    both = threading.Barrier(2, over.set)

    def before(wire: Part) -> None:
        if wire.ranks[wire.rank] == 3:
            raise Released("the other end is gone")

    def body(wire: Part) -> None:
        pipe = module.Pipeline(
            Stage(lambda: before(wire)), functional.mse_loss, process_group=wire, timeout=4 * PATIENCE
        )
        try:
            if wire.ranks[wire.rank] == 1:
                over.wait(PATIENCE)
            else:
                pipe.step(torch.ones(4, 2), torch.ones(4, 2))
        finally:
            if wire.ranks[wire.rank] > 1:
                both.wait(PATIENCE)

    said = [str(rank.error) for rank in two_pipelines(body)]
    for text in said[2:]:
        assert "lost its connection to another rank at F of stage 1, microbatch 1" in text
        assert "Released: the other end is gone; global rank 1 does not answer\n" in text
    assert "the pipeline of global ranks 2, 3 failed: rank 1 (global rank 3) lost its connection to another" in said[0]
    assert "; global rank 1 does not answer" in said[0]


def test_what_fails_while_one_is_made_is_told_too(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    told = threading.Event()
    made = threading.Barrier(3)  # what fails before a pipeline is made is no news to it

    def before(here: int) -> None:
        if here == 3:
            assert told.wait(PATIENCE)
            raise ValueError("as its replica is gone")

    def body(wire: Part) -> None:
        here = wire.ranks[wire.rank]
        try:
            if here == 1:
                made.wait(PATIENCE)
            pipe = module.Pipeline(
                Stage(lambda: before(here)),
                functional.mse_loss,
                process_group=wire,
                device="nonsense" if here == 1 else "cpu",
                timeout=4 * PATIENCE,
            )
            if here > 1:
                made.wait(PATIENCE)
            pipe.step(torch.ones(4, 2), torch.ones(4, 2))
        finally:
            if here == 1:
                told.set()

    said = [str(rank.error) for rank in two_pipelines(body)]
    for text in said[:2]:
        assert "cannot start: rank 1 failed at making the pipeline: RuntimeError: " in text
    for text in said[2:]:
        assert "before that the pipeline of global ranks 0, 1 failed: rank 1 failed at making the pipeline: " in text


def part(rank: int, job: Any, name: str = "1") -> tuple[Elsewhere, Any]:
    return Elsewhere(Part(Fabric(2, LAZY), rank % 2, rank - rank % 2, job), name, 4 * PATIENCE, job), job


def test_who_has_lost_a_known_rank_explains_who_has_lost_another() -> None:
    job = dist.HashStore()
    first, second, third = (part(rank, job)[0] for rank in (0, 2, 4))
    first.tell(job, "lost another", sure=False)
    third.look(job)
    assert third.text == "before that the pipeline of global ranks 0, 1 failed: lost another"
    second.tell(job, "lost rank 1")
    first.tell(job, "lost another, 3 does not answer", sure=False)
    for each in (first, third):
        each.look(job)
        assert each.text == "before that the pipeline of global ranks 2, 3 failed: lost rank 1"
    assert second.text == "before that the pipeline of global ranks 0, 1 failed: lost another"


def test_the_first_that_has_lost_another_is_told_of_again_when_more_is_known() -> None:
    job = dist.HashStore()
    first, second, third = (part(rank, job)[0] for rank in (0, 2, 4))
    first.tell(job, "lost another", sure=False)
    second.tell(job, "lost another, too", sure=False)
    third.look(job)
    assert third.text.endswith(" 0, 1 failed: lost another")  # what may follow from it hides it from nobody
    first.tell(job, "lost another; 3 does not answer", sure=False)
    third.look(job)
    assert third.text.endswith(" 0, 1 failed: lost another; 3 does not answer")


def test_who_looks_answers() -> None:
    job = dist.HashStore()
    parts = [part(rank, job)[0] for rank in range(4)]
    parts[2].tell(job, "lost another", sure=False)
    parts[1].look(job)
    assert job.add("known", 0) == 0, "the host is to stay: more may be told"
    assert parts[2].silent(job, None) == parts[3].silent(job, (0, 1, 2, 3)) == [0]
    assert parts[2].silent(job, (1, 3)) == parts[2].silent(job, ()) == []
    parts[0].look(job)
    assert parts[2].silent(job, None) == []


def test_who_knows_why_asks_nobody() -> None:
    job = dist.HashStore()
    parts = [part(rank, job)[0] for rank in range(4)]
    parts[0].tell(job, "lost another", sure=False)
    assert parts[0].silent(job, (2,)) == [2]
    parts[3].tell(job, "why")
    assert parts[0].silent(job, (2,)) == []


def test_who_has_failed_at_the_same_time_answers_though_it_hides_the_question() -> None:
    """Two pipelines lose each a rank to nobody knows whom. The second has looked just before the first one told."""
    job = dist.HashStore()
    parts = [part(rank, job)[0] for rank in range(4)]
    late = parts[2]
    read, late._read = late._read, lambda store: ""  # type: ignore[method-assign]
    parts[0].tell(job, "lost another", sure=False)
    late.tell(job, "lost another, too", sure=False)
    late._read = read  # type: ignore[method-assign]
    assert parts[0].silent(job, None) == [3]
    assert parts[2].silent(job, None) == [1]
    parts[3].look(job)  # which reads of its own pipeline alone
    parts[1].look(job)
    assert parts[0].silent(job, None) == parts[2].silent(job, None) == []


def test_what_is_told_meanwhile_is_read_and_not_hidden() -> None:
    """A cause by its consequence, in the moment between the look of who tells it and what it says."""
    job = dist.HashStore()
    first, second, third = (part(rank, job)[0] for rank in (0, 2, 4))
    read = second._read

    def slow(store: Any) -> str:
        found = read(store)
        second._read = read  # type: ignore[method-assign]
        first.tell(job, "the cause")
        return found

    second._read = slow  # type: ignore[method-assign]
    second.tell(job, "a consequence")
    assert second.text == "before that the pipeline of global ranks 0, 1 failed: the cause"
    third.look(job)
    assert third.text == second.text


def test_an_answer_counts_that_was_given_since_the_pipeline_was_made() -> None:
    """Also of who knows why another one failed, as long ago, and is not concerned."""
    job = dist.HashStore()
    third = part(4, job)[0]
    part(2, job)[0].tell(job, "why")
    third.look(job)
    first = part(0, job)[0]
    first.tell(job, "another reason")
    asked = part(6, job)[0]
    assert first._has_answered(job, 0)
    assert not first._has_answered(job, 4)
    assert not asked._has_answered(job, 0)
    third.look(job)
    assert first._has_answered(job, 4)
    assert asked._has_answered(job, 4)
    assert third.text.endswith(" 2, 3 failed: why")


def test_an_answer_counts_to_what_was_about_to_be_told_when_the_pipeline_was_made() -> None:
    """It is news to that pipeline, and what it has failed of as well need not be told besides."""
    job = dist.HashStore()
    first, other = part(0, job)[0], part(4, job)[0]
    made: list[Elsewhere] = []
    read = first._read

    def slow(store: Any) -> str:
        made.extend([] if made else [part(2, job)[0]])
        return read(store)

    first._read = slow  # type: ignore[method-assign]
    first.tell(job, "lost another", sure=False)
    other.look(job)
    made[0].tell(job, "lost another, too", sure=False)
    assert made[0].text.endswith(" 0, 1 failed: lost another")
    assert made[0]._has_answered(job, 4)


@pytest.mark.parametrize("before", [0, 4])
def test_the_host_stays_until_all_ranks_know(before: int) -> None:
    """Those that knew of a failure `before` the pipelines were made do not count."""
    job = dist.HashStore()
    job.add("known", before)
    parts = [part(rank, job)[0] for rank in range(4)]
    parts[1].tell(job, "why")
    host = threading.Thread(target=parts[0].leave, args=(job,))
    parts[0]._stay = 4 * PATIENCE  # the test goes on long before that
    parts[1].leave(job)
    parts[2].look(job)
    assert job.add("known", 0) == before + 2
    parts[2].leave(job)
    host.start()
    host.join(0.2)
    assert host.is_alive()
    parts[3].leave(job)
    host.join(PATIENCE)
    assert not host.is_alive()
    assert job.add("known", 0) == before + 4, "each counts once"
    assert [each.text for each in parts] == ["", "", "before that the pipeline of global ranks 0, 1 failed: why", ""]


def test_the_host_does_not_wait_for_ever() -> None:
    job = dist.HashStore()
    wire = Part(Fabric(2, LAZY), 0, 0, job)
    began = time.monotonic()
    Elsewhere(wire, "1", 1.0, job).leave(job)
    assert time.monotonic() - began >= 0.25  # a quarter of the timeout, and then it goes
    stays = [Elsewhere(wire, "1", timeout, job)._stay for timeout in (1.0, 20.0, 300.0)]
    assert stays == [0.25, 5.0, 5.0]


def test_only_the_host_waits() -> None:
    other, job = part(1, dist.HashStore())
    other._stay = PATIENCE
    began = time.monotonic()
    other.leave(job)
    assert time.monotonic() - began < PATIENCE


def test_what_failed_before_a_pipeline_was_made_is_not_its_cause() -> None:
    job = dist.HashStore()
    first, _ = part(0, job)
    first.tell(job, "the first reason")
    later, _ = part(2, job)
    later.look(job)
    assert later.text == ""
    another, _ = part(0, job, "2")
    another.tell(job, "the second reason")
    later.look(job)
    assert later.text == "before that the pipeline of global ranks 0, 1 failed: the second reason"
    later.tell(job, "a consequence")  # which hides no cause
    last, _ = part(4, dist.HashStore())
    last.look(job)
    assert last.text.endswith("the second reason")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_ranks_of_a_pipeline_do_not_take_its_own_failure_for_another(rank: int) -> None:
    job = dist.HashStore()
    ranks = [part(each, job)[0] for each in (0, 1)]
    ranks[1 - rank].tell(job, "why")
    ranks[rank].look(job)
    assert ranks[rank].text == ""
