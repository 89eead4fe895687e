"""Ranks that share memory and ranks that do not, on four ranks of one host, each against one process."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import re
import resource
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

from pipedsl.runtime import deferred
from tests.support import compiled as schedules
from tests.support.job import BOTH, Case, Job, M, compare, tokens
from tests.support.worker import PATIENCE, alone, mlp
from tests.support.wrapped import Wrapped
from tests.unit.test_executor_memory import ROWS, WIDTH, Block, measure, peak_of, predicted, with_gradients

P = 4
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def neighbours(rank: int) -> set[int]:
    return {rank - 1, rank + 1} & set(range(P))


def model() -> list[nn.Module]:
    """The same on every rank."""
    torch.manual_seed(0)
    return mlp(P)


def train(job: Job, pipe: Any, stages: list[nn.Module]) -> None:
    reference = copy.deepcopy(stages)
    for step in range(2):
        batch, targets = tokens(step)
        pipe.step(batch, targets)
        alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
    compare(pipe, stages, reference)


@case
def ranks_of_one_host_share_memory(job: Job) -> None:
    for name in BOTH:
        stages = model()
        pipe = job.pipeline(name, stages)
        train(job, pipe, stages)
        assert pipe._wire.links.keys() == neighbours(job.rank)


@case
def without_shared_memory(job: Job) -> None:
    for name in BOTH:
        stages = model()
        pipe = job.pipeline(name, stages, shared_memory=False)
        train(job, pipe, stages)
        assert pipe._wire.links == {}


@case
def memory_that_one_rank_wants_and_another_does_not(job: Job) -> None:
    with pytest.raises(Exception, match=r"rank 2 has shared_memory=False, rank [013] shared_memory=True|rank 0 has sh"):
        job.pipeline("whole", model(), shared_memory=job.rank != 2)


@case
def a_rank_that_no_other_trusts(job: Job) -> None:
    """Messages to and from it go by the process group, the others' do not."""
    compiled = job.compiled("whole")
    if job.rank == 1:
        compiled.is_own = lambda connection: False
    stages = model()
    pipe = compiled.Pipeline(stages[job.rank], functional.cross_entropy, timeout=PATIENCE, process_group=job.group)
    pipe.mine = [stages[job.rank]]
    train(job, pipe, stages)
    assert pipe._wire.links.keys() == (neighbours(job.rank) - {1} if job.rank != 1 else set())


@contextlib.contextmanager
def no_more_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in opened:
            os.close(descriptor)


@case
def a_rank_that_has_too_many_files_open_at_the_start(job: Job) -> None:
    """It does without what needs more: its messages go by the process group."""
    stages = model()
    compiled = job.compiled("whole")
    with no_more_open_files() if job.rank == 2 else contextlib.nullcontext():
        pipe = compiled.Pipeline(stages[job.rank], functional.cross_entropy, timeout=PATIENCE, process_group=job.group)
    pipe.mine = [stages[job.rank]]
    train(job, pipe, stages)
    assert pipe._wire.links.keys() == (neighbours(job.rank) - {2} if job.rank != 2 else set())


@contextlib.contextmanager
def no_memory_at_times() -> Iterator[None]:
    """Every other time it is asked for."""
    make, asked = os.memfd_create, itertools.count()

    def refuse(name: str) -> int:
        if next(asked) % 2:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return make(name)

    os.memfd_create = refuse
    try:
        yield
    finally:
        os.memfd_create = make


@contextlib.contextmanager
def no_large_files() -> Iterator[None]:
    """Shared memory is one for the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (63, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@case
def shared_memory_that_runs_out_in_a_step(job: Job) -> None:
    """What there is none for goes by the group, in order with what else is sent, and soon nothing is kept of it."""
    short = {1: no_large_files, 2: no_memory_at_times}.get(job.rank, contextlib.nullcontext)
    for name in BOTH:
        stages = model()
        reference = copy.deepcopy(stages)
        pipe = job.pipeline(name, stages)
        exchange = pipe._exchange
        exchange._send_another_way = counted = Mock(wraps=exchange._send_another_way)
        for step in range(5):
            with (
                short() if step in (1, 2) else contextlib.nullcontext(),
                warnings.catch_warnings(record=True) as caught,
            ):
                warnings.simplefilter("always")
                pipe.renew_shapes()  # so that memory is made anew
                pipe.step(*tokens(step))
            texts = [str(each.message) for each in caught]
            if step == 1 and job.rank == 1:
                assert len(texts) == 1
                limit = r"File too large \(`ulimit -f`\)"
                assert re.match(
                    rf"no \d+ bytes of shared memory could be made: {limit}; .* by the process group", texts[0]
                )
            elif job.rank != 2:
                assert texts == []
            alone(reference, functional.cross_entropy, *(each.chunk(M) for each in tokens(step)))
        compare(pipe, stages, reference)
        assert exchange._other_ways == []
        if job.rank in (0, 3):
            counted.assert_not_called()
        elif job.rank == 1:
            assert counted.call_count == 2 * 2 * M  # all that it has sent in two steps
        else:
            assert 0 < counted.call_count < 2 * 2 * M


class Returning(nn.Module):
    """Returns what `make` makes of its output."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.inner(x))


class Scaled(nn.Module):
    """Adds up what arrives; the factor is wrapped, and so are its output and the gradients that it makes."""

    def __init__(self, factor: torch.Tensor) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert all(type(x) is torch.Tensor for x in pair)
        return (pair[0] + pair[1]) * self.factor


def with_wrapped(wrap: Callable[[torch.Tensor], torch.Tensor], needed: bool) -> list[nn.Module]:
    """Stages that exchange tensors that `wrap` makes, of which one needs a gradient where it is to."""
    stages = model()
    torch.manual_seed(1)
    stages[1] = Returning(lambda x: (x, wrap(torch.ones_like(x)).requires_grad_(needed)))
    stages[2] = Scaled(wrap(torch.arange(6.0)))
    return stages


@case
def tensors_that_hold_another_one(job: Job) -> None:
    """They arrive as what they stand for, outputs and gradients, those that need no gradient, too."""
    for name, shared, needed in itertools.product(BOTH, (True, False), (True, False)):
        stages = with_wrapped(Wrapped, needed)
        reference = with_wrapped(torch.clone, needed)
        pipe = job.pipeline(name, stages, shared_memory=shared)
        for step in range(2):
            batch, targets = tokens(step)
            pipe.step(batch, targets)
            alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference)


class Magnitudes(nn.Module):
    """Takes complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x.real + 2 * x.imag)
        return y.tanh()


@case
def complex_numbers(job: Job) -> None:
    """Which backends know nothing of: outputs and gradients."""
    for shared in (True, False):
        torch.manual_seed(18)
        stages = mlp(P)
        stages[1], stages[2] = Returning(lambda x: torch.complex(x, x.sin())), Magnitudes()
        reference = copy.deepcopy(stages)
        pipe = job.pipeline("whole", stages, shared_memory=shared)
        batch, targets = tokens(0)
        pipe.step(batch, targets)
        alone(reference, functional.cross_entropy, batch.chunk(M), targets.chunk(M))
        compare(pipe, stages, reference)


def refused(job: Job, shared: bool) -> None:
    whole = init_device_mesh("cpu", (P,))
    stages = model()
    stages[1] = Returning(lambda x: DTensor.from_local(x, whole, run_check=False))
    pipe = job.pipeline("whole", stages, shared_memory=shared)
    with pytest.raises(Exception, match=r"rank 1 failed at .*: TypeError: the output of stage 1 has a DTensor; stages"):
        pipe.step(*tokens(0))


@case
def an_output_that_is_a_part_of_a_tensor(job: Job) -> None:
    refused(job, shared=True)


@case
def an_output_that_is_a_part_of_a_tensor_by_the_group(job: Job) -> None:
    refused(job, shared=False)


@case
def what_a_stage_writes_to_later(job: Job) -> None:
    """It is noticed as it is where the message would still be read."""

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.last is not None:
                self.last.detach().zero_()
            self.last = self.inner(x)
            return self.last

    stages = model()
    stages[1] = Reused()
    pipe = job.pipeline("whole", stages)
    with pytest.raises(Exception, match=r"rank 1 failed at .*the output of stage 1 for microbatch 0 was written to"):
        pipe.step(*tokens(0))


@case
def shared_memory_does_not_grow_with_m(job: Job) -> None:
    """Nor with the steps: who sends to a slow rank is held up. 1F1B has at most P sends that nobody waits for."""
    m = 128
    pipe = job.pipeline("whole_128", model())
    for step in range(3):
        pipe.step(*tokens(step, 2 * m))
        pipe.step(*tokens(step, 2 * m), train=False)
    message = 64  # bytes
    for link in pipe._wire.links.values():
        assert message <= link.memory <= 4 * P * message < m * message


@case
def shared_memory_counts_as_the_buffers_that_were_predicted(job: Job) -> None:
    """The most that a rank holds, with all memory that it sends messages by."""
    before = deferred.WORTH_DEFERRING
    deferred.WORTH_DEFERRING = 1
    for name, text in (("whole", schedules.ONE_F_ONE_B), ("split", schedules.SPLIT)):
        stages = [with_gradients(nn.Sequential(*(Block() for _ in range(6)))) for _ in range(P)]
        sizes = [measure(each, first=s == 0, last=s == P - 1) for s, each in enumerate(stages)]
        expected = float(predicted(text, sizes, p=P, m=M)[job.rank])
        pipe = job.pipeline(name, stages, functional.mse_loss)
        batch, targets = torch.randn(M * ROWS, WIDTH), torch.randn(M * ROWS, WIDTH)
        found = peak_of(pipe, partial(pipe.step, batch, targets), steps=2)
        assert abs(found - expected) <= 0.05 * expected, (name, found, expected)
    deferred.WORTH_DEFERRING = before
    dist.barrier(job.group)
