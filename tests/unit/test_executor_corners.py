"""The executor and modules that do what few do; and what it refuses to run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from pipedsl.runtime import wire as wire_module
from tests.support import compiled
from tests.support.nccl_like import EAGER, LAZY, Fabric, run_ranks
from tests.support.worker import alone, load, mlp
from tests.unit.test_executor import BOUNDS, SCHEDULES, check, mean_square, results, train

BOTH = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


class Hidden(nn.Module):
    """Uses a tensor that it has not registered, and for odd microbatches another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.hidden = [torch.full((4,), 2.0, requires_grad=True), torch.full((4,), 3.0, requires_grad=True)]
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * self.hidden[self.calls % 2]


class Bare(nn.Module):
    """Has no registered parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [torch.randn(4, 4, requires_grad=True)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.hidden[0]).tanh()


@BOTH
@pytest.mark.parametrize("kind", [Hidden, Bare])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_gradients_reach_tensors_that_are_not_registered(
    kind: type[nn.Module], place: int, schedule: str, tmp_path: Path
) -> None:
    stages: list[Any] = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]
    stages[place] = kind()
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)
    results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=3, m=4))
    alone(reference, mean_square, batch.chunk(4), targets.chunk(4))
    check(stages, reference, 1e-6)
    for ours, theirs in zip(stages[place].hidden, reference[place].hidden, strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad)


@BOTH
def test_gradients_reach_the_batch_and_a_loss_that_is_a_closure(schedule: str, tmp_path: Path) -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    stages: list[nn.Module] = [nn.Linear(4, 4), nn.Linear(4, 4)]
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4, requires_grad=True), torch.randn(8)
    results(train(schedule, stages, batch, targets, lambda y, t: mean_square(y * scale, t), tmp_path, p=2, m=4))
    theirs, their_scale = batch.detach().clone().requires_grad_(), torch.tensor(2.0, requires_grad=True)
    alone(reference, lambda y, t: mean_square(y * their_scale, t), list(theirs.chunk(4)), list(targets.chunk(4)))
    check(stages, reference, BOUNDS[schedule])
    torch.testing.assert_close(batch.grad, theirs.grad)
    torch.testing.assert_close(scale.grad, their_scale.grad)


class WritesLater(nn.Module):
    """Writes to its input, but not for the first microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x.mul_(2) if self.calls > 2 else x * 2)


@BOTH
def test_a_stage_may_write_to_some_of_its_inputs(schedule: str, tmp_path: Path) -> None:
    stages: list[nn.Module] = [nn.Linear(4, 4), WritesLater()]
    reference: list[nn.Module] = [copy.deepcopy(stages[0]), copy.deepcopy(stages[1])]
    batch, targets = torch.randn(8, 4), torch.randn(8)
    results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=2, m=4))
    alone(reference, mean_square, batch.chunk(4), targets.chunk(4))
    check(stages, reference, BOUNDS[schedule])


class Doubles(nn.Module):
    """Writes to its input before it multiplies it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x.mul_(2))
        return y


@BOTH
def test_the_first_stage_may_write_to_its_part_of_the_batch(schedule: str, tmp_path: Path) -> None:
    stages: list[nn.Module] = [Doubles(), nn.Linear(4, 4)]
    reference: list[nn.Module] = [copy.deepcopy(stage) for stage in stages]
    batch, targets = torch.randn(8, 4), torch.randn(8)
    parts = batch.clone().chunk(4)
    results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=2, m=4))
    alone(reference, mean_square, parts, targets.chunk(4))
    check(stages, reference, BOUNDS[schedule])


class Complex(nn.Module):
    """A conjugate, which torch keeps as a flag, and an imaginary part of it, which it keeps negated."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.complex(self.inner(x), x).conj()
        assert y.is_conj()
        assert y.imag.is_neg()
        negated = torch._neg_view(x)  # in one piece, as the imaginary part is not
        assert negated.is_neg()
        assert negated.is_contiguous()
        return {"y": y, "imaginary": y.imag, "negated": negated}


class Real(nn.Module):
    """Its input's gradient is a lazy conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> torch.Tensor:
        return self.inner((x["y"].conj() * (1 + 2j)).real + x["imaginary"] + x["negated"] * 5)


@BOTH
def test_lazy_conjugates_and_negatives_are_sent_as_what_they_are(schedule: str, tmp_path: Path) -> None:
    stages: list[nn.Module] = [nn.Sequential(nn.Linear(4, 4), Complex()), Real()]
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)
    results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=2, m=4))
    alone(reference, mean_square, batch.chunk(4), targets.chunk(4))
    check(stages, reference, 1e-6)


class Reused(nn.Module):
    """Returns its result together with memory that every microbatch writes anew."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.kind = kind
        if kind == "buffer":
            self.register_buffer("store", torch.zeros(2, 4))
        else:
            self.store = torch.zeros(2, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inner(x)
        if self.kind == "attribute":
            return y, self.store.copy_(y.detach())
        return y, self.store.detach().copy_(y * 2)  # needs a gradient


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> torch.Tensor:
        return self.inner(x[0] + 3 * x[1])


PLACES = {"sent": (compiled.SPLIT, 2), "handed over on one rank": (compiled.V_SHAPE, 1)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_a_stage_may_return_what_it_writes_to_again(kind: str, place: str, tmp_path: Path) -> None:
    schedule, p = PLACES[place]
    stages: list[nn.Module] = [Reused(kind), Sum()]
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)
    losses = results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=p, m=4))[-1]
    expected = alone(reference, mean_square, batch.chunk(4), targets.chunk(4))
    torch.testing.assert_close(losses, expected)
    check(stages, reference, 1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_written_to_too_early_is_noticed(place: str, tmp_path: Path) -> None:
    """It needs a gradient and is no buffer, so it was not copied."""
    schedule, p = PLACES[place]
    ranks = train(
        schedule, [Reused("graph"), Sum()], torch.randn(8, 4), torch.randn(8), mean_square, tmp_path, p=p, m=4
    )
    for rank in ranks:
        assert "ValueError: the output of stage 0 for microbatch 0 was written to before" in str(rank.error)
        assert "return a copy" in str(rank.error)


class Prompt(nn.Module):
    """Returns its parameter, or a view of it, beside what it makes of its input; `copies`: a copy of that."""

    def __init__(self, way: Callable[[torch.Tensor], torch.Tensor], *, registered: bool, copies: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        tokens = torch.randn(2, 4)
        self.tokens = nn.Parameter(tokens) if registered else tokens.requires_grad_()
        self.way = way
        self.copies = copies

    def forward(self, x: torch.Tensor) -> Any:
        tokens = self.way(self.tokens)
        return self.inner(x), tokens.clone() if self.copies else tokens


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> torch.Tensor:
        return self.inner(x[0] * x[1].mul_(0.5))


SIDE_BY_SIDE = """schedule x(p, m)
stages 2 * p
place s -> s if s < p else 2 * p - 1 - s
rank r { (F@0 F@1 B@1 B@0) * m }
"""
ON_ONE_RANK = {"side by side": (SIDE_BY_SIDE, 1), "apart": (compiled.V_SHAPE, 1), "sent": (compiled.SPLIT, 2)}


@pytest.mark.parametrize("place", ON_ONE_RANK)
@pytest.mark.parametrize("registered", [True, False])
def test_no_stage_writes_to_parameters_of_another_one(registered: bool, place: str, tmp_path: Path) -> None:
    """One process refuses it; here the next stage has a copy, wherever it is."""
    schedule, p = ON_ONE_RANK[place]
    for way in (lambda x: x, lambda x: x[None].expand(1, 2, 4)[0]):
        torch.manual_seed(4)
        first = Prompt(way, registered=registered, copies=False)
        stages: list[nn.Module] = [first, Writes()]
        reference: list[nn.Module] = copy.deepcopy(stages)
        reference[0].copies = True  # type: ignore[assignment]
        batch, targets, before = torch.randn(8, 4), torch.randn(8), first.tokens.detach().clone()
        losses = results(train(schedule, stages, batch, targets, mean_square, tmp_path, p=p, m=4))[-1]
        assert torch.equal(first.tokens, before)
        torch.testing.assert_close(losses, alone(reference, mean_square, batch.chunk(4), targets.chunk(4)))
        check(stages, reference, 1e-6)
        expected = reference[0].tokens.grad
        torch.testing.assert_close(first.tokens.grad, expected)


def test_what_a_stage_passes_on_is_not_copied(tmp_path: Path) -> None:
    """Though it is a leaf of autograd's there, too."""
    seen: list[int] = []

    class Passes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.data_ptr())
            return x

    schedule = SIDE_BY_SIDE.replace("2 * p", "3 * p").replace("s if s < p else 3 * p - 1 - s", "0")
    schedule = schedule.replace("F@0 F@1 B@1 B@0", "F@0 F@1 F@2 B@2 B@1 B@0")
    stages = [nn.Linear(4, 4), Passes(), Passes()]
    results(train(schedule, stages, torch.randn(8, 4), torch.randn(8), mean_square, tmp_path, p=1, m=4))
    assert len(seen) == 8
    assert seen[::2] == seen[1::2]


def test_outputs_of_training_are_not_copied(tmp_path: Path) -> None:
    """Where autograd keeps track of them, a tensor that is sent is the one that the stage returned."""
    sent: list[int] = []
    returned: list[int] = []

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            returned.append(y.data_ptr())
            return y

    path = compiled.compile_to(tmp_path / "x.py", compiled.SPLIT, p=2, m=2)
    module = load(path)

    def body(wire: Any) -> None:
        post = wire.isend
        wire.isend = lambda tensor, peer, tag: (
            sent.append(tensor.data_ptr()) if tensor.dim() == 2 and not wire.rank else None,
            post(tensor, peer, tag),
        )[1]
        stage = Noting() if wire.rank == 0 else nn.Linear(4, 4)
        module.Pipeline(stage, mean_square, process_group=wire, timeout=20).step(torch.randn(4, 4), torch.randn(4))

    results(run_ranks(Fabric(2), body))
    assert sent == returned
    assert len(sent) == 2


def rows_of(batch: int, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(11, (batch,)), torch.randn(targets, 5)


@pytest.mark.parametrize(("schedule", "p", "stages"), [(compiled.ONE_F_ONE_B, 3, 3), (compiled.V_SHAPE, 2, 4)])
def test_targets_have_as_many_rows_as_the_batch(schedule: str, p: int, stages: int, tmp_path: Path) -> None:
    """The loss would broadcast one row of targets over two of the batch, and say nothing."""

    def loss_fn(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (y - target).square().mean()

    results(train(schedule, mlp(stages), *rows_of(8, 8), loss_fn, tmp_path, p=p, m=4))
    for rank in train(schedule, mlp(stages), *rows_of(8, 4), loss_fn, tmp_path, p=p, m=4):
        at = "beginning a step" if schedule == compiled.V_SHAPE else f"F of stage {stages - 1}, microbatch 0"
        assert f"failed at {at}" in str(rank.error)
        assert "ValueError: the batch has 8 rows, but targets has 4" in str(rank.error)


def test_batches_keep_their_size(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> None:
        pipe.step(*rows_of(8, 8))
        pipe.step(*rows_of(4, 4))

    ranks = train(compiled.ONE_F_ONE_B, mlp(2), None, None, functional.mse_loss, tmp_path, p=2, m=4, body=body)
    for rank in ranks:
        assert "the batch has 4 rows, but the ranks agreed on 8 at the first step" in str(rank.error)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("abc", "stage_modules must be a torch.nn.Module or a list of them, not a str"),
        (3, "stage_modules must be a torch.nn.Module or a list of them, not a int"),
        (["abc"], "stage_modules must be torch.nn.Modules, not a str"),
    ],
)
def test_what_is_no_module_is_refused_on_every_rank(given: Any, says: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))
    ranks = run_ranks(
        Fabric(2), lambda wire: module.Pipeline(given if wire.rank == 1 else nn.Identity(), process_group=wire)
    )
    for rank in ranks:
        assert isinstance(rank.error, module.PipelineError)
        assert f"rank 1: {says}" in str(rank.error)


def test_a_transport_that_was_not_found_safe_is_refused(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.SENDS_FIRST, p=2, m=2))
    make: Callable[[Any], Any] = lambda wire: module.Pipeline([nn.Identity()] * 2, process_group=wire)  # noqa: E731
    for mode in (LAZY, EAGER):
        for rank in run_ranks(Fabric(2, mode), make):
            assert isinstance(rank.error, module.PipelineError)
            assert f"rank 0: the process group's transport is nccl-{mode}-warm, where this schedule is not safe" in str(
                rank.error
            )
    module.TRANSPORTS.clear()
    for rank in run_ranks(Fabric(2), make):
        assert "nccl-lazy-warm, which this schedule was not verified for; it is safe on none" in str(rank.error)


def test_an_error_made_here_is_not_taken_for_a_lost_connection(tmp_path: Path) -> None:
    """What a transport refuses to send at once is wrong on this side."""
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))

    def body(wire: Any) -> None:
        def refuse(tensor: torch.Tensor, peer: int, tag: int) -> Any:
            raise RuntimeError("tensors of this type cannot be sent")

        pipe = module.Pipeline(mlp(2)[wire.rank], functional.cross_entropy, process_group=wire, timeout=20)
        pipe.step(torch.zeros(4).long(), torch.zeros(4).long())
        if wire.rank == 0:
            wire.isend = refuse
        pipe.step(torch.zeros(4).long(), torch.zeros(4).long())

    for rank in run_ranks(Fabric(2), body):
        assert "rank 0 failed at isend F0@1 to rank 1 (test.sched:" in str(rank.error)
        assert "RuntimeError: tensors of this type cannot be sent" in str(rank.error)


def test_which_transport_a_process_group_is(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        cpu, world = torch.device("cpu"), dist.group.WORLD
        assert world is not None
        assert (wire_module.TorchWire(None, cpu, 10).transport, wire_module.TorchWire(None, cpu, 10).in_order) == (
            "gloo",
            False,
        )
        assert wire_module.backend_name(world, torch.device("mps")) == "none"
        for name, transport in (("nccl", "nccl-lazy-warm"), ("mpi", "mpi")):
            monkeypatch.setattr(wire_module, "backend_name", lambda *_, name=name: name)
            assert wire_module.TorchWire(None, cpu, 10).transport == transport
            assert wire_module.TorchWire(None, cpu, 10).in_order
        monkeypatch.setattr(wire_module, "backend_name", lambda *_: "nccl")
        world.bound_device_id = torch.device("cuda", 0)  # what init_process_group(device_id=...) sets
        assert wire_module.TorchWire(world, cpu, 10).transport == "nccl-eager-warm"
        world.bound_device_id = None
    finally:
        dist.destroy_process_group()
