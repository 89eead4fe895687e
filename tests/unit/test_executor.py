"""The executor on threads and a process group that behaves as NCCL does: what stages may be, against one process."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from closed import closed
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.nccl_like import EAGER, LAZY, Fabric, Rank, Released, run_ranks
from tests.support.worker import Last, Nested, alone, difference, gradients, load, mlp

SCHEDULES = {"whole": compiled.ONE_F_ONE_B, "split": compiled.SPLIT}
# Of gradients, relative to the largest entry: W adds a product where it computes it, and so rounds once less.
BOUNDS = {compiled.ONE_F_ONE_B: 0.0, compiled.SPLIT: 1e-5}


def train(
    schedule: str,
    stages: list[nn.Module],
    batch: Any,
    targets: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    folder: Path,
    *,
    p: int,
    m: int,
    mode: str = LAZY,
    steps: int = 1,
    body: Callable[[Any, int], Any] | None = None,
    **options: Any,
) -> list[Rank]:
    """Run steps of a pipeline on threads; `stages` hold the gradients afterwards."""
    path = compiled.compile_to(folder / "pipeline.py", schedule, p=p, m=m)
    module = load(path)

    def work(wire: Any) -> Any:
        mine = [stages[s] for s, owner in enumerate(module.PLACEMENT) if owner == wire.rank]
        pipe = module.Pipeline(mine, loss_fn, process_group=wire, timeout=20, **options)
        if body is not None:
            return body(pipe, wire.rank)
        return [pipe.step(batch, targets) for _ in range(steps)][-1]

    return run_ranks(Fabric(p, mode), work)


def results(ranks: list[Rank]) -> list[Any]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    assert not any(rank.hung for rank in ranks)
    return [rank.result for rank in ranks]


def check(stages: list[nn.Module], reference: list[nn.Module], bound: float = 0.0) -> None:
    for ours, theirs in zip(stages, reference, strict=True):
        expected = gradients(theirs)
        for name, gradient in gradients(ours).items():
            assert difference(gradient, expected[name]) <= bound, name


@pytest.mark.parametrize("mode", [LAZY, EAGER])
def test_every_schedule_runs_on_nccl_like_streams(mode: str, tmp_path: Path) -> None:
    own = [compiled.ONE_F_ONE_B, compiled.SPLIT, compiled.V_SHAPE, compiled.LAST_FIRST]
    for schedule in [*own, *closed()]:
        for p, m in ((2, 4), (4, 8)):
            torch.manual_seed(3)
            if not compiled.admitted(schedule, p=p, m=m):
                continue
            _, program, _ = compiled.build(schedule, p=p, m=m)
            stages = mlp(program.stages)
            reference = copy.deepcopy(stages)
            batch, targets = torch.randint(11, (2 * m,)), torch.randint(5, (2 * m,))
            losses = results(
                train(schedule, stages, batch, targets, functional.cross_entropy, tmp_path, p=p, m=m, mode=mode)
            )[program.placement[0, -1]]
            expected = alone(reference, functional.cross_entropy, batch.chunk(m), targets.chunk(m))
            torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0)
            check(stages, reference, 1e-5)


class Twice(nn.Module):
    """The same tensor in two places, and its input passed on as a view and as it is."""

    def forward(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return (x, x, x.view(x.shape))
        return sum(x)


class Tied(nn.Module):
    """A weight used twice, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.never = nn.Parameter(torch.randn(4))

    def forward(self, x: Any) -> Any:
        return functional.linear(functional.linear(x, self.weight).tanh(), self.weight)


class ParameterView(nn.Module):
    """Ignores its input and returns a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Any) -> Any:
        return self.weight[:2]


class Sum(nn.Module):
    def forward(self, x: Any) -> Any:
        return sum(leaf.sum() for leaf in x) if isinstance(x, tuple) else x


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


CASES: dict[str, Callable[[], list[nn.Module]]] = {
    "nested structures": lambda: [Nested(), Nested(), Last()],
    "views and aliases": lambda: [nn.Linear(4, 4), Twice(), nn.Sequential(Twice(), nn.Linear(4, 1))],
    "identity stage": lambda: [nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 1)],
    "tied and unused": lambda: [nn.Linear(4, 4), Tied(), nn.Sequential(Tied(), nn.Linear(4, 1))],
    "first in place": lambda: [nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), nn.ReLU(True)],
    "frozen first": lambda: [frozen(nn.Linear(4, 4)), nn.Linear(4, 4), nn.Linear(4, 1)],
    "frozen middle": lambda: [nn.Linear(4, 4), frozen(nn.Linear(4, 4)), nn.Linear(4, 1)],
    "frozen last": lambda: [nn.Linear(4, 4), nn.Linear(4, 4), frozen(nn.Linear(4, 1))],
    "all frozen": lambda: [frozen(nn.Linear(4, 4)), frozen(nn.Linear(4, 4)), frozen(nn.Linear(4, 1))],
    "no parameters": lambda: [nn.Tanh(), nn.Tanh(), nn.Linear(4, 1)],
    "input not used": lambda: [nn.Linear(4, 4), ParameterView(), nn.Linear(4, 1)],
    "transposed output": lambda: [nn.Linear(4, 4), Transposed(), nn.Linear(4, 1)],
    "scalar output": lambda: [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), Total()), nn.Linear(1, 1)],
}


class Transposed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[:, :2].t()[:, :1].expand(2, 4)


class Total(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sum().reshape(1)


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.float().mean() - target.mean()).square()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("case", CASES)
def test_what_a_stage_may_be(case: str, schedule: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    stages = CASES[case]()
    reference = copy.deepcopy(stages)
    batch, targets = torch.randn(8, 4), torch.randn(8)
    losses = results(train(schedule, stages, batch.clone(), targets, mean_square, tmp_path, p=3, m=4))[2]
    if case == "all frozen":
        assert all(q.grad is None for stage in stages for q in stage.parameters())
        return
    expected = alone(reference, mean_square, batch.chunk(4), targets.chunk(4))
    assert torch.equal(losses, expected)
    check(stages, reference, BOUNDS[schedule])


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_dropout_uses_the_same_mask_forward_and_backward(schedule: str, tmp_path: Path) -> None:
    """With weights of one and inputs of one, a stage's gradient shows the mask that its output had."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))
            self.kept = torch.zeros(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = functional.dropout(x * self.weight, 0.5)
            self.kept += y.detach().sum(0)
            return y

    stages: list[nn.Module] = [nn.Identity(), Dropping()]
    results(train(schedule, stages, torch.ones(4, 64), torch.ones(4), lambda y, _: y.sum(), tmp_path, p=2, m=4))
    last = stages[1]
    assert isinstance(last, Dropping)
    assert last.weight.grad is not None
    torch.testing.assert_close(last.weight.grad * 4, last.kept)
    assert 0 < int((last.kept == 0).sum()) < 64


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_gradients_add_up_over_steps(schedule: str, tmp_path: Path) -> None:
    stages = mlp(2)
    reference = copy.deepcopy(stages)
    batch, targets = torch.randint(11, (8,)), torch.randint(5, (8,))
    results(train(schedule, stages, batch, targets, functional.cross_entropy, tmp_path, p=2, m=4, steps=3))
    for _ in range(3):
        alone(reference, functional.cross_entropy, batch.chunk(4), targets.chunk(4))
    check(stages, reference, BOUNDS[schedule])


def test_a_loss_with_parameters(tmp_path: Path) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self.scale * (y - target).square().mean()

    for schedule in SCHEDULES.values():
        loss_fn = Loss()
        theirs = copy.deepcopy(loss_fn)
        stages: list[nn.Module] = [nn.Linear(2, 2), nn.Linear(2, 1)]
        reference = copy.deepcopy(stages)
        batch, targets = torch.randn(4, 2), torch.randn(4, 1)
        results(train(schedule, stages, batch, targets, loss_fn, tmp_path, p=2, m=2))
        alone(reference, theirs, batch.chunk(2), targets.chunk(2))
        check([*stages, loss_fn], [*reference, theirs], BOUNDS[schedule])


def test_evaluation_returns_outputs_and_changes_nothing(tmp_path: Path) -> None:
    stages = mlp(2)
    batch = torch.randint(11, (8,))

    def body(pipe: Any, rank: int) -> Any:
        outputs = pipe.step(batch, train=False)
        losses = pipe.step(batch, torch.zeros(8, dtype=torch.long), train=False)
        assert pipe.step(batch[:4], train=False) is None or rank == 1  # other sizes are agreed anew below
        return outputs, losses

    path_results = train(
        compiled.ONE_F_ONE_B, stages, None, None, functional.cross_entropy, tmp_path, p=2, m=4, body=body
    )
    assert all("agreed on" in str(rank.error) for rank in path_results)  # a clear refusal on every rank

    def short(pipe: Any, rank: int) -> Any:
        return pipe.step(batch, train=False), pipe.step(batch, torch.zeros(8, dtype=torch.long), train=False)

    (none, nothing), (outputs, losses) = results(
        train(compiled.ONE_F_ONE_B, stages, None, None, functional.cross_entropy, tmp_path, p=2, m=4, body=short)
    )
    assert none is None
    assert nothing is None
    expected = stages[1](stages[0](batch))
    torch.testing.assert_close(torch.cat(outputs), expected)
    assert not outputs[0].requires_grad
    assert losses.shape == (4,)
    assert all(q.grad is None for stage in stages for q in stage.parameters())
    assert stages[0].training


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("trained", [False, True])
def test_evaluation_in_inference_mode(trained: bool, schedule: str, tmp_path: Path) -> None:
    """Whether it comes first or later, training goes on as if nothing had happened."""
    stages = mlp(2)
    reference = copy.deepcopy(stages)
    batch, targets = torch.randint(11, (8,)), torch.randint(5, (8,))
    steps = 2 if trained else 1

    def body(pipe: Any, rank: int) -> Any:
        if trained:
            pipe.step(batch, targets)
        with torch.inference_mode():
            inside = pipe.step(batch, targets, train=False)
        with torch.no_grad():
            outside = pipe.step(batch, targets, train=False)
        return inside, outside, pipe.step(batch, targets)

    (_, (inside, outside, losses)) = results(
        train(schedule, stages, None, None, functional.cross_entropy, tmp_path, p=2, m=4, body=body)
    )
    for _ in range(steps):
        expected = alone(reference, functional.cross_entropy, batch.chunk(4), targets.chunk(4))
    for each in (inside, outside, losses):
        torch.testing.assert_close(each, expected)
    check(stages, reference, 1e-5)


def test_training_in_inference_mode_is_refused(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> None:
        with torch.inference_mode():
            pipe.step(torch.zeros(8).long(), torch.zeros(8).long())

    for rank in train(compiled.SPLIT, mlp(2), None, None, functional.cross_entropy, tmp_path, p=2, m=4, body=body):
        assert "inference_mode() leaves nothing to train with; call step outside of it" in str(rank.error)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("detached", [3, 4])
def test_losses_that_train_nothing_are_refused(frozen: tuple[int, ...], detached: int, tmp_path: Path) -> None:
    """As one process does in its backward; but a part of them may, and all may where nothing is to be trained."""
    calls = []

    def loss_fn(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(y)
        return functional.cross_entropy(y.detach() if len(calls) > 4 - detached else y, target)

    stages = mlp(2)
    for stage in frozen:
        stages[stage].requires_grad_(False)
    batch, targets = torch.zeros(8).long(), torch.zeros(8).long()
    ranks = train(compiled.SPLIT, stages, batch, targets, loss_fn, tmp_path, p=2, m=4)
    if detached == 4 and frozen != (0, 1):
        assert "no loss requires a gradient, though there is something to train" in str(ranks[1].error)
    else:
        results(ranks)


def test_a_store_that_is_silent_is_named_where_it_is_the_main_thread_that_asks(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> None:
        kind = pipe.step.__globals__["StoreSilent"]

        def silent(*_: Any) -> Any:
            raise kind("the ranks' store has not answered for 6 s")

        pipe._watch._own_store = Mock(check=silent, get=silent, compare_set=silent)
        pipe._loop.run = silent
        pipe.step(torch.zeros(8).long(), torch.zeros(8).long())

    (rank,) = train(compiled.SPLIT, mlp(1), None, None, functional.cross_entropy, tmp_path, p=1, m=4, body=body)
    assert ", which holds the ranks' store, does not answer; rank 0 stood at beginning a step" in str(rank.error)


def test_a_store_that_ends_with_a_connection_is_named_with_what_was_waited_for(tmp_path: Path) -> None:
    """As where global rank 0, which holds it, has died; and it is not asked again, as torch says so at length."""
    asked: list[Any] = []

    def ended(*arguments: Any) -> Any:
        asked.append(arguments)
        raise dist.DistNetworkError("failed to recv, got 0 bytes")

    def body(pipe: Any, rank: int) -> None:
        def lose(*_: Any) -> None:
            pipe._watch.position.note("the test", 0)
            raise pipe.step.__globals__["ConnectionLost"]("closed")

        pipe._watch._own_store = Mock(check=ended, get=ended, compare_set=ended, set=ended, add=ended)
        pipe._loop.run = lose
        pipe.step(torch.zeros(8).long(), torch.zeros(8).long())

    (rank,) = train(compiled.SPLIT, mlp(1), None, None, functional.cross_entropy, tmp_path, p=1, m=4, body=body)
    said = str(rank.error)
    assert "rank 0 lost its connection to rank 0 at the test: ConnectionLost: closed\n" in said
    assert "  the others could not be asked: the test, which holds their store, has ended (the connection to" in said
    assert len(asked) == 1


def test_what_a_module_has_lost_is_no_fault_of_its_rank(tmp_path: Path) -> None:
    """As where it, or its replicas, exchange something with ranks of their own."""

    class Reaches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Released("the other end is gone")

    (rank,) = train(compiled.SPLIT, [Reaches()], torch.zeros(8), torch.zeros(8), mean_square, tmp_path, p=1, m=4)
    said = "rank 0 lost its connection to another rank at F of stage 0, microbatch 0 (test.sched:4): Released: the "
    assert str(rank.error).splitlines()[0].endswith(f"{said}other end is gone")


def test_nested_batches_and_targets(tmp_path: Path) -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.inner(x["values"]) * x["mask"][0].unsqueeze(1)

    def loss_fn(y: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return ((y.sum(1) - target[0]) * target[1]).square().mean()

    stages: list[nn.Module] = [First(), nn.Linear(3, 3)]
    reference = copy.deepcopy(stages)
    values, mask, goal, weight = torch.randn(6, 3), torch.randn(6), torch.randn(6), torch.rand(6)
    batch, targets = {"values": values, "mask": [mask], "extra": None}, (goal, weight)
    results(train(compiled.SPLIT, stages, batch, targets, loss_fn, tmp_path, p=2, m=3))
    parts = [{"values": values[i : i + 2], "mask": [mask[i : i + 2]]} for i in (0, 2, 4)]
    alone(reference, loss_fn, parts, [(goal[i : i + 2], weight[i : i + 2]) for i in (0, 2, 4)])
    check(stages, reference, BOUNDS[compiled.SPLIT])


@pytest.mark.parametrize(
    ("batch", "targets", "says"),
    [
        (torch.zeros(7, dtype=torch.long), torch.zeros(8, dtype=torch.long), "the batch has 7 rows, which m = 4"),
        (torch.zeros(8, dtype=torch.long), torch.zeros(9, dtype=torch.long), "targets has 9 rows, which m = 4"),
        (torch.zeros(0, dtype=torch.long), torch.zeros(8, dtype=torch.long), "the batch has 0 rows"),
        (None, torch.zeros(8, dtype=torch.long), "the batch has no tensor"),
        (torch.zeros(8, dtype=torch.long), None, "training needs targets"),
        (torch.tensor(1), torch.zeros(8, dtype=torch.long), "the batch has tensors of shapes [[]]"),
        ((torch.zeros(8), torch.zeros(4)), torch.zeros(8), "the batch has tensors of shapes [[8], [4]]"),
        (object(), torch.zeros(8), "the batch has a object"),
    ],
)
def test_a_bad_batch_is_refused_on_every_rank(batch: Any, targets: Any, says: str, tmp_path: Path) -> None:
    ranks = train(compiled.ONE_F_ONE_B, mlp(2), batch, targets, functional.cross_entropy, tmp_path, p=2, m=4)
    for rank in ranks:
        assert says in str(rank.error), rank


def test_what_a_stage_returns_must_be_sendable(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"a set": {1, 2}}

    ranks = train(
        compiled.ONE_F_ONE_B, [Odd(), nn.Identity()], torch.zeros(4), torch.zeros(4), mean_square, tmp_path, p=2, m=2
    )
    for rank in ranks:
        assert "the output of stage 0 has a set" in str(rank.error)
        assert "F of stage 0, microbatch 0 (test.sched:6)" in str(rank.error)


def test_a_loss_must_be_one_number(tmp_path: Path) -> None:
    ranks = train(
        compiled.ONE_F_ONE_B, mlp(2), torch.zeros(4).long(), torch.zeros(4), lambda y, _: y, tmp_path, p=2, m=2
    )
    for rank in ranks:
        assert "loss_fn must return a tensor with one element, not [2, 5]" in str(rank.error)


def test_wrong_sizes_are_refused_before_anything_runs(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=3, m=4)
    module = load(path)
    two = run_ranks(Fabric(2), lambda wire: module.Pipeline(nn.Identity(), process_group=wire))
    assert all("compiled for p = 3 ranks, but the process group has 2" in str(rank.error) for rank in two)

    def body(wire: Any) -> None:
        module.Pipeline([nn.Identity()] * (2 if wire.rank == 1 else 1), process_group=wire)

    three = run_ranks(Fabric(3), body)
    assert all("rank 1: 2 stage modules given" in str(rank.error) for rank in three)


def test_activations_are_freed_by_the_backward(tmp_path: Path) -> None:
    """As many microbatches live at a time as the schedule says: min(p - r, m) for 1F1B."""
    alive = [0, 0]
    peak = [0, 0]

    class Track(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, rank: int) -> torch.Tensor:
            ctx.token = Token(rank)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradient, None

    class Token:
        def __init__(self, rank: int) -> None:
            self.rank = rank
            alive[rank] += 1
            peak[rank] = max(peak[rank], alive[rank])

        def __del__(self) -> None:
            alive[self.rank] -= 1

    class Stage(nn.Module):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Track.apply(self.inner(x), self.rank)

    stages: list[nn.Module] = [Stage(0), Stage(1)]
    gc.disable()
    try:
        results(
            train(compiled.ONE_F_ONE_B, stages, torch.randn(16, 4), torch.randn(16), mean_square, tmp_path, p=2, m=8)
        )
    finally:
        gc.enable()
    assert peak == [2, 1]
    assert alive == [0, 0]


def test_no_thread_is_left_running(tmp_path: Path) -> None:
    results(
        train(
            compiled.ONE_F_ONE_B,
            mlp(2),
            torch.zeros(4).long(),
            torch.zeros(4).long(),
            functional.cross_entropy,
            tmp_path,
            p=2,
            m=2,
        )
    )
    gc.collect()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("pipedsl")]
