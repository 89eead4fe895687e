"""What lies between stages, over gloo and through memory, each against one process."""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.gloo_threads import SECONDS, run_ranks
from tests.support.on_threads import check, cut, data, errors, reference_step, results
from tests.support.worker import alone, load, mlp

P, M = 3, 4
TEXTS = {"whole": compiled.ONE_F_ONE_B, "split": compiled.SPLIT, "v_shape": compiled.V_SHAPE}


def make(name: str, tmp_path: Path, p: int = P, m: int = M) -> Any:
    return load(compiled.compile_to(tmp_path / "x.py", TEXTS[name], p=p, m=m))


Wrap = Callable[[Any], None]


class Work:
    """One that is noted, and whether it has been waited for."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self.work, self.tensor, self.waited = work, tensor, False

    def wait(self) -> None:
        self.work.wait()
        self.waited = True


class Noted:
    """All messages of the ranks that go by the group."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def __call__(self, wire: Any) -> None:
        send, receive = wire.isend, wire.irecv
        wire.isend = lambda tensor, peer, tag: self.note(send(tensor, peer, tag), tensor)
        wire.irecv = lambda tensor, peer, tag: self.note(receive(tensor, peer, tag), tensor)

    def note(self, work: Any, tensor: torch.Tensor) -> Work:
        self.works.append(Work(work, tensor))
        return self.works[-1]


def as_it_is(wire: Any) -> None:
    pass


def train(
    module: Any,
    stages: Sequence[nn.Module],
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    shared: bool,
    loss_fn: Any = functional.cross_entropy,
    renew: bool = False,
    wrap: Wrap = as_it_is,
    made: Callable[[], None] = lambda: None,
) -> tuple[list[Any], dict[int, list[nn.Module]]]:
    """Train and evaluate on each batch: how ranks ended, their stages. `made`: called when one has its pipeline."""
    held = cut(module, stages)

    def body(wire: Any) -> Any:
        wrap(wire)
        more = {"process_group": wire, "timeout": 50, "shared_memory": shared}
        pipe = module.Pipeline(held[wire.rank], loss_fn, **more)
        made()
        for batch, targets in batches:
            if renew:
                pipe.renew_shapes()
            pipe.step(batch, targets)
            pipe.step(batch, targets, train=False)
        return pipe

    return run_ranks(module, body), held


WAYS = pytest.mark.parametrize("shared", [True, False], ids=["memory", "group"])


@WAYS
@pytest.mark.parametrize("name", TEXTS)
def test_training_is_that_of_one_process_and_every_message_is_waited_for(
    name: str, shared: bool, tmp_path: Path
) -> None:
    module, noted = make(name, tmp_path), Noted()
    stages, batches = mlp(module.STAGES), [data(module, step) for step in range(3)]
    ranks, held = train(module, stages, batches, shared=shared, wrap=noted)
    pipes = results(ranks)
    reference = copy.deepcopy(stages)
    for each in batches:
        reference_step(module, reference, *each)
    check(module, held, reference)
    assert all(work.waited for work in noted.works)
    assert bool(noted.works) == (not shared)
    assert [sorted(pipe._wire.links) for pipe in pipes] == ([[1], [0, 2], [1]] if shared else [[], [], []])


@pytest.mark.parametrize("name", ["whole", "split"])
def test_what_there_is_no_memory_for_is_copied_and_waited_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the stage may write to it as soon as its send has ended."""
    make_file, asked, outputs = os.memfd_create, itertools.count(), list[torch.Tensor]()

    def refuse(name: str) -> int:
        if next(asked) % 2:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return make_file(name)

    class Keeps(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x)
            outputs.append(y)
            return y

    module, noted = make(name, tmp_path), Noted()
    stages = [Keeps(each) for each in mlp(P)]
    batches = [data(module, step) for step in range(4)]
    all_made = threading.Barrier(P)

    def made() -> None:
        if all_made.wait() == 0:
            monkeypatch.setattr(os, "memfd_create", refuse)
        all_made.wait()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks, held = train(module, stages, batches, shared=True, renew=True, wrap=noted, made=made)
    pipes = results(ranks)
    reference = copy.deepcopy(stages)
    for each in batches:
        reference_step(module, reference, *each)
    check(module, held, reference)
    assert noted.works
    addresses = {y.data_ptr() for y in outputs}
    assert not any(work.tensor.data_ptr() in addresses for work in noted.works)
    kept = {id(work) for pipe in pipes for way in pipe._exchange._other_ways for work in way.works}
    assert all(work.waited or id(work) in kept for work in noted.works)
    assert len(kept) < len(noted.works) / 2


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return torch.complex(y, y.sin())


class Real(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x.real + 2 * x.imag)
        return y


@WAYS
def test_complex_numbers(shared: bool, tmp_path: Path) -> None:
    module = make("whole", tmp_path)
    stages = [mlp(P)[0], Complex(), Real()]
    ranks, held = train(module, stages, [data(module)], shared=shared)
    results(ranks)
    reference = copy.deepcopy(stages)
    reference_step(module, reference, *data(module))
    check(module, held, reference)


class Slow(nn.Module):
    """Lets the others be ahead of it in its first forwards."""

    def __init__(self, inner: nn.Module, calls: int) -> None:
        super().__init__()
        self.inner, self.left = inner, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left >= 0:
            time.sleep(0.02)
        y: torch.Tensor = self.inner(x)
        return y


@WAYS
@pytest.mark.parametrize("slow", range(P))
def test_a_first_step_with_a_slow_stage(slow: int, shared: bool, tmp_path: Path) -> None:
    """The others come to receive what they do not know the layout of yet, more than one message at a time."""
    module = make("split", tmp_path)
    stages = mlp(P)
    stages[slow] = Slow(stages[slow], 4)
    ranks, held = train(module, stages, [data(module)], shared=shared)
    results(ranks)
    reference = copy.deepcopy(stages)
    reference_step(module, reference, *data(module))
    check(module, held, reference)


class Many(nn.Module):
    """Returns so many tensors."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.inner, self.count = nn.Linear(6, 6), count

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.inner(x)
        return [y * (k + 1) for k in range(self.count)]


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = self.inner(torch.stack(tensors).mean(0))
        return y


@WAYS
@pytest.mark.parametrize("count", [256, 257])
def test_a_message_has_its_room_for_tensors(count: int, shared: bool, tmp_path: Path) -> None:
    """As many as there are tags for."""
    module = make("whole", tmp_path)
    stages = [mlp(P)[0], Many(count), Sum()]
    ranks, held = train(module, stages, [data(module)], shared=shared)
    if count > 256:
        assert all("stage 1 returned 257 tensors; at most 256 can go" in each for each in errors(ranks))
        return
    results(ranks)
    reference = copy.deepcopy(stages)
    reference_step(module, reference, *data(module))
    check(module, held, reference, 1e-4)


def test_a_rank_s_own_stages_hand_on_as_many_tensors_as_they_like(tmp_path: Path) -> None:
    module = make("v_shape", tmp_path, p=1)
    stages = [nn.Sequential(mlp(2)[0], Many(257)), Sum()]
    ranks, held = train(module, stages, [data(module)], shared=True)
    results(ranks)
    reference = copy.deepcopy(stages)
    reference_step(module, reference, *data(module))
    check(module, held, reference, 1e-4)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


@WAYS
def test_sequences_of_other_lengths(shared: bool, tmp_path: Path) -> None:
    module = make("split", tmp_path)
    stages = [Sequences() for _ in range(P)]
    batches = [(torch.randn(2 * M, n, 4), torch.randn(2 * M, n, 4)) for n in (5, 7, 3)]
    ranks, held = train(module, stages, batches, shared=shared, renew=True, loss_fn=functional.mse_loss)
    for pipe in results(ranks):
        layouts = pipe._wire.store(pipe._name).check([f"layout/{k}/train/{s}" for k in range(4) for s in range(P)])
        assert not layouts
    reference = copy.deepcopy(stages)
    for batch, targets in batches:
        alone(reference, functional.mse_loss, list(batch.chunk(M)), list(targets.chunk(M)))
    check(module, held, reference)
    ranks, _ = train(module, stages, batches, shared=shared, loss_fn=functional.mse_loss)
    said = "stage 0 returned (float32 [2, 7, 4] with gradient) for microbatch 0, but the ranks agreed on"
    assert all(said in each for each in errors(ranks))


def test_memory_is_as_small_as_what_is_sent_now(tmp_path: Path) -> None:
    module = make("whole", tmp_path)
    batches = [(torch.randn(2 * M, n, 4), torch.randn(2 * M, n, 4)) for n in (100, 3)]
    stages = [Sequences() for _ in range(P)]
    ranks, _ = train(module, stages, batches, shared=True, renew=True, loss_fn=functional.mse_loss)
    for pipe in results(ranks):
        assert all(0 < link.memory < 2 * 100 * 4 * 4 for link in pipe._wire.links.values())


def test_to_say_twice_that_shapes_are_others_is_to_say_it(tmp_path: Path) -> None:
    module = make("whole", tmp_path)
    held = cut(module, mlp(P))

    def body(wire: Any) -> None:
        pipe = module.Pipeline(held[wire.rank], functional.cross_entropy, process_group=wire, timeout=50)
        pipe.step(*data(module))
        for _ in range(1 + wire.rank):
            pipe.renew_shapes()
        pipe.step(*data(module))

    results(run_ranks(module, body))


def test_messages_of_steps_that_differ_do_not_meet(tmp_path: Path) -> None:
    """Of ranks one of which trains, has another seed, has forgotten what was agreed on, or is ahead."""
    module = make("whole", tmp_path, p=1)
    (pipe,) = results(train(module, [nn.Sequential(*mlp(1))], [], shared=False)[0])
    exchange = pipe._exchange
    kinds = list(itertools.product((False, True), (False, True), (None, 0, 1, 5)))
    tags = []
    for steps in range(3):
        for renewed, training, seed in kinds:
            exchange.renewed, exchange._steps = renewed, steps
            exchange.begin([], training, seed)
            tags.append(exchange._tags)
    each_step = [tags[k : k + len(kinds)] for k in range(0, len(tags), len(kinds))]
    assert all(len(set(step)) == len(kinds) for step in each_step)
    assert all(len(set(kind)) == 3 for kind in zip(*each_step, strict=True))


class Reused(nn.Module):
    """Writes to what it has returned before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.last: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last:
            self.last.pop().detach().zero_()
        self.last.append(self.inner(x))
        return self.last[0]


@WAYS
def test_what_a_stage_writes_to_later_is_noticed(shared: bool, tmp_path: Path) -> None:
    module = make("whole", tmp_path)
    ranks, _ = train(module, [mlp(P)[0], Reused(), mlp(P)[2]], [data(module)], shared=shared)
    for each in errors(ranks):
        assert "rank 1 failed at " in each
        assert "the output of stage 1 for microbatch 0 was written to before the stage that needs it had it" in each


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


@WAYS
@pytest.mark.parametrize("place", range(P))
def test_a_stage_that_fails_before_layouts_are_known(place: int, shared: bool, tmp_path: Path) -> None:
    module = make("split", tmp_path)
    stages = mlp(P)
    stages[place] = Raises()
    ranks, _ = train(module, stages, [data(module)], shared=shared)
    for each in errors(ranks):
        assert f"rank {place} failed at F of stage {place}, microbatch 0 (test.sched:" in each
        assert ": ValueError: on purpose" in each
    until = time.monotonic() + SECONDS
    while any(thread.name == "pipedsl-late" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_store_that_fails_before_layouts_are_known(tmp_path: Path) -> None:
    """It is asked for them by another thread, after once by the rank's own, which is the one to say so: where it looks
    for the next one's, or where it waits."""
    module = make("split", tmp_path)
    held = cut(module, mlp(P))

    def body(wire: Any) -> None:
        pipe = module.Pipeline(
            held[wire.rank], functional.cross_entropy, process_group=wire, timeout=50, shared_memory=False
        )
        if wire.rank == P - 1:
            gone = itertools.repeat(ZeroDivisionError("no such store"))
            pipe._exchange._store = Mock(check=Mock(side_effect=itertools.chain([False], gone)))
        pipe.step(*data(module))

    for each in errors(run_ranks(module, body)):
        stood = r"rank 2 failed at (wait for F0@2 to arrive|irecv F1@2) from rank 1 \(test\.sched:4\): "
        assert re.search(stood + "ZeroDivisionError: no such store", each)


class Waits(nn.Module):
    """Notes, in its first forward, how far another stage gets meanwhile."""

    def __init__(self, inner: nn.Module, other: list[int]) -> None:
        super().__init__()
        self.inner, self.other = inner, other
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.seen:
            time.sleep(0.3)  # it gets no further than it can, so this cannot be too short
            self.seen.append(len(self.other))
        y: torch.Tensor = self.inner(x)
        return y


class Counts(nn.Module):
    def __init__(self, inner: nn.Module, calls: list[int]) -> None:
        super().__init__()
        self.inner, self.calls = inner, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(0)
        y: torch.Tensor = self.inner(x)
        return y


@WAYS
def test_a_rank_is_not_far_ahead_of_the_one_that_it_sends_to(shared: bool, tmp_path: Path) -> None:
    """Else what waits to be received would take memory that grows with the microbatches."""
    module = make("whole", tmp_path, p=2, m=32)
    calls: list[int] = []
    first, last = mlp(2)
    held: dict[int, list[nn.Module]] = {0: [Counts(first, calls)], 1: [Waits(last, calls)]}

    def body(wire: Any) -> None:
        pipe = module.Pipeline(
            held[wire.rank], functional.cross_entropy, process_group=wire, timeout=50, shared_memory=shared
        )
        pipe.step(*data(module), train=False)

    results(run_ranks(module, body))
    assert len(calls) == 32
    (seen,) = held[1][0].seen  # type: ignore[misc, union-attr]
    assert 1 <= seen <= 8


class Told:
    """A store that lets one wait until so many things have been said in it."""

    def __init__(self, store: Any, count: int, then: threading.Event) -> None:
        self.store, self.left, self.then = store, count, then

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)
        self.left -= 1
        if not self.left:
            self.then.set()


def test_one_that_trains_may_be_ahead_of_one_that_still_evaluates(tmp_path: Path) -> None:
    """It says anew what it sends, before the other one has read what was sent first."""
    module = make("whole", tmp_path, p=2, m=1)
    stages, ahead = mlp(2), threading.Event()
    held = cut(module, stages)

    def body(wire: Any) -> Any:
        pipe = module.Pipeline(held[wire.rank], functional.cross_entropy, process_group=wire, timeout=20)
        if wire.rank == 0:
            pipe._exchange._store = Told(pipe._exchange._store, 2, ahead)
        else:
            assert ahead.wait(SECONDS)
        return [pipe.step(*data(module), train=train) for train in (False, True)]

    _, losses = results(run_ranks(module, body))
    expected = reference_step(module, stages, *data(module))
    for each in losses:
        torch.testing.assert_close(each, expected)
    check(module, held, stages)


def test_what_is_left_of_a_failed_pipeline_does_not_say_that_its_process_has_ended(tmp_path: Path) -> None:
    """Those that have failed with it would name another cause than the one that there is."""
    module = make("whole", tmp_path, p=2)
    first, second = results(train(module, mlp(2), [], shared=True)[0])
    link = first._wire.links[1]
    descriptor = second._wire.links[0]._connection.fileno()
    second._exchange.stop()
    del second
    gc.collect()
    assert not link._read(wait=False)
    os.close(descriptor)
