"""Copies of the stages that train together, on threads and a process group that behaves as NCCL does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipedsl.runtime.checkpoint import stage_state
from pipedsl.runtime.copies import _parameter_digest
from tests.support import compiled
from tests.support.compiled import (
    BY_HAND,
    BY_HAND_REDUCE,
    CHIMERA,
    CHIMERA_REDUCE,
    TWO_WAYS,
    TWO_WAYS_REDUCE,
    TWO_WAYS_SPLIT,
)
from tests.support.nccl_like import EAGER, LAZY
from tests.support.on_threads import check, cut, data, errors, pipelines, reference_step, refused, results
from tests.support.worker import difference, gradients, load, mlp

HALF_SPLIT = TWO_WAYS.replace("B@down * m B@up * m", "I@down * m B@up * m W@down * m")
CHUNKS = """schedule x(p, m)
stages 2 * p
replica one { place s -> s // 2 }
replica two { place s -> p - 1 - s // 2 }
rank r { F@0 * m F@1 * m F@2 * m F@3 * m B@1 * m B@0 * m B@3 * m B@2 * m }
"""
THREE = """schedule x(p, m)
stages p
replica a { place s -> s }
replica b { place s -> (s + 1) % p }
replica c { place s -> (s + 2) % p }
rank r { for k in 0 .. 3 { F@k * m } for k in 0 .. 3 { B@k * m } }
"""
SPLIT_REDUCE = TWO_WAYS_REDUCE.replace("B@down * m", "I@down * m W@down * m").replace("B@up * m", "I@up * m W@up * m")
SOME_REDUCE = TWO_WAYS_REDUCE.replace("REDUCE@up B@down * m REDUCE@down", "if r > 0 { REDUCE@up } B@down * m").replace(
    "REDUCE@down B@up * m REDUCE@up", "if r < p - 1 { REDUCE@down } B@up * m"
)
THREE_REDUCE = THREE.replace(
    "for k in 0 .. 3 { B@k * m }", "for k in 0 .. 3 { B@k * m } for s in 0 .. p { REDUCE@((r - s) % p) }"
)
CASES = {
    "chimera of 2": (CHIMERA, 2, 1),
    "chimera of 4": (CHIMERA, 4, 2),
    "chimera of 6": (CHIMERA, 6, 2),
    "a stage twice on a rank": (TWO_WAYS, 3, 2),
    "all on one rank": (TWO_WAYS, 1, 3),
    "split": (TWO_WAYS_SPLIT, 4, 3),
    "one copy split": (HALF_SPLIT, 3, 2),
    "several chunks": (CHUNKS, 2, 2),
    "communication placed by hand": (BY_HAND, 2, 2),
    "three copies": (THREE, 3, 2),
    "three copies on two ranks": (THREE.replace("(s + 2) % p", "s"), 2, 2),
    "chimera of 4 with its sums placed": (CHIMERA_REDUCE, 4, 2),
    "sums placed and a stage twice on a rank": (TWO_WAYS_REDUCE, 3, 2),
    "sums placed and all on one rank": (TWO_WAYS_REDUCE, 1, 2),
    "split with its sums placed": (SPLIT_REDUCE, 4, 3),
    "sums of some stages placed": (SOME_REDUCE, 4, 2),
    "sums placed among communication by hand": (BY_HAND_REDUCE, 2, 2),
    "three copies with their sums placed": (THREE_REDUCE, 3, 2),
}


@pytest.mark.parametrize("mode", [LAZY, EAGER])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_one_process(name: str, mode: str, tmp_path: Path) -> None:
    text, p, m = CASES[name]
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=p, m=m))
    copies = len(module.PLACEMENT)
    torch.manual_seed(1)
    reference = mlp(module.STAGES)
    held = cut(module, reference)
    batches = [data(module, seed) for seed in range(2)]
    losses = results(pipelines(module, held, lambda pipe, rank: [pipe.step(*each) for each in batches], mode=mode))
    for step, (batch, targets) in enumerate(batches):
        expected = reference_step(module, reference, batch, targets).reshape(copies, m)
        for rank in range(p):
            here = [k for k in range(copies) if module.PLACEMENT[k][-1] == rank]
            if here:
                torch.testing.assert_close(losses[rank][step], expected[here].reshape(-1), rtol=1e-5, atol=0)
            else:
                assert losses[rank][step] is None
    check(module, held, reference)


@pytest.mark.parametrize("text", [TWO_WAYS, TWO_WAYS_SPLIT, TWO_WAYS_REDUCE])
def test_a_stage_that_is_there_twice_may_be_one_module(text: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=3, m=2))
    torch.manual_seed(2)
    reference = mlp(3)
    held = cut(module, reference)
    held[1][1] = held[1][0]
    batch, targets = data(module)
    norms = results(
        pipelines(module, held, lambda pipe, rank: (pipe.step(batch, targets), pipe.clip_grad_norm_(9.0))[1])
    )
    reference_step(module, reference, batch, targets)
    check(module, held, reference)
    expected = nn.utils.get_total_norm([q.grad for stage in reference for q in stage.parameters()])
    for norm in norms:
        torch.testing.assert_close(norm, expected)


@pytest.mark.parametrize("name", ["chimera of 4", "a stage twice on a rank", "three copies"])
def test_the_norm_counts_every_parameter_once_and_training_is_that_of_one_process(name: str, tmp_path: Path) -> None:
    """Two steps before each of the optimizer."""
    text, p, m = CASES[name]
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=p, m=m))
    torch.manual_seed(3)
    reference = mlp(module.STAGES)
    held = cut(module, reference)
    batches = [data(module, seed) for seed in range(6)]

    def body(pipe: Any, rank: int) -> list[float]:
        optimizer = torch.optim.AdamW([q for each in held[rank] for q in each.parameters()], lr=0.01)
        norms = []
        for step, each in enumerate(batches):
            pipe.step(*each)
            if step % 2:
                norms.append(float(pipe.clip_grad_norm_(0.5)))
                optimizer.step()
                optimizer.zero_grad()
        return norms

    found = results(pipelines(module, held, body))
    optimizer = torch.optim.AdamW([q for stage in reference for q in stage.parameters()], lr=0.01)
    norms = []
    for step, each in enumerate(batches):
        reference_step(module, reference, *each)
        if step % 2:
            parameters = [q for stage in reference for q in stage.parameters()]
            norms.append(float(nn.utils.clip_grad_norm_(parameters, 0.5)))
            optimizer.step()
            optimizer.zero_grad()
    for theirs in found:
        assert theirs == pytest.approx(norms, rel=1e-4)
    for rank, mine in held.items():
        for stage, ours in zip(module.stages_of(rank), mine, strict=True):
            same = next(m for r in held for s, m in zip(module.stages_of(r), held[r], strict=True) if s == stage)
            for own, other, theirs in zip(
                ours.parameters(), same.parameters(), reference[stage].parameters(), strict=True
            ):
                assert torch.equal(own, other)
                assert difference(own.detach(), theirs.detach()) <= 1e-4


def test_it_does_not_matter_how_much_is_sent_at_once(tmp_path: Path) -> None:
    """Down to a number at a time, and where gradients do not lie in memory as they are numbered."""
    module = load(compiled.compile_to(tmp_path / "x.py", CHIMERA, p=2, m=1))
    torch.manual_seed(4)

    def stages() -> list[nn.Module]:
        first = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh()).to(memory_format=torch.channels_last)
        return [first, nn.Sequential(nn.Flatten(), nn.Linear(12, 5))]

    reference = stages()
    batch, targets = torch.randn(4, 2, 4, 4).to(memory_format=torch.channels_last), torch.randint(5, (4,))
    found = []
    for size in (1 << 24, 100, 4):
        module._BUCKET = size
        held = cut(module, reference)
        results(pipelines(module, held, lambda pipe, rank: pipe.step(batch, targets)))
        found.append(held)
    reference_step(module, reference, batch, targets)
    for held in found:
        check(module, held, reference)
        assert [x.stride() for x in gradients(held[0][0]).values() if x is not None] == [
            x.stride() for x in gradients(held[1][1]).values() if x is not None
        ]


class Sometimes(nn.Module):
    """Has a part that nothing uses, and one that only small numbers use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.small = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) * self.frozen
        return y + self.small(y) if float(x.abs().max()) < 1e-3 else y


def test_a_stage_that_is_there_twice_is_saved_if_it_is_one_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert set(stage_state([model[0], model[0]], [], model, None)["model"]) == {"0.weight", "0.bias"}
    with pytest.raises(ValueError, match="tensors that are none of the model's; cut the stages from its modules"):
        stage_state([model[0], copy.deepcopy(model[0])], [], model, None)


@pytest.mark.parametrize("text", [CHIMERA, CHIMERA_REDUCE])
def test_what_is_unused_keeps_no_gradient(text: str, tmp_path: Path) -> None:
    """Nowhere, that is: where one copy alone uses it, all get its gradient."""
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=2, m=1))
    torch.manual_seed(5)
    reference: list[nn.Module] = [Sometimes(), nn.Linear(4, 5)]
    held = cut(module, reference)
    batch = torch.cat([torch.randn(2, 4), torch.randn(2, 4) * 1e-4])
    targets = torch.randint(5, (4,))
    results(pipelines(module, held, lambda pipe, rank: pipe.step(batch, targets)))
    reference_step(module, reference, batch, targets)
    check(module, held, reference)
    for stage in (held[0][0], held[1][1]):
        assert stage.never.weight.grad is None
        assert stage.frozen.grad is None
        assert stage.small.weight.grad is not None


class Head(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


def tied_model(p: int) -> list[nn.Module]:
    embedding = nn.Embedding(11, 6)
    middle = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(p - 2)]
    return [embedding, *middle, Head(embedding.weight)]


@pytest.mark.parametrize("text", [CHIMERA, CHIMERA_REDUCE])
def test_one_parameter_in_two_stages_of_a_rank(text: str, tmp_path: Path) -> None:
    """The first rank has one copy's first stage and another's last, which share their weight; so has the last rank."""
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=4, m=2))
    torch.manual_seed(6)
    reference = tied_model(4)
    held = {}
    for rank in range(4):
        whole = copy.deepcopy(reference)
        held[rank] = [whole[s] for s in module.stages_of(rank)]
    batch, _ = data(module)
    norms = results(
        pipelines(module, held, lambda pipe, rank: [pipe.step(batch, batch.roll(1)), pipe.clip_grad_norm_(9.0)][1])
    )
    reference_step(module, reference, batch, batch.roll(1))
    check(module, held, reference)
    expected = nn.utils.get_total_norm(
        [reference[0].weight.grad, *(q.grad for q in nn.ModuleList(reference[1:3]).parameters())]
    )
    for norm in norms:
        torch.testing.assert_close(norm, expected)


TIED_APART = """schedule x(p, m)
stages 2
replica one { place s -> s }
replica two { place s -> 2 + s }
rank r { F * m B * m }
"""


@pytest.mark.parametrize("text", [TIED_APART, TIED_APART.replace("B * m", "B * m REDUCE")])
def test_parameters_tied_across_ranks(text: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=4, m=2))
    torch.manual_seed(7)
    reference = tied_model(2)
    held = {rank: [copy.deepcopy(reference)[s] for s in module.stages_of(rank)] for rank in range(4)}
    batch, _ = data(module)

    def body(pipe: Any, rank: int) -> torch.Tensor:
        for _ in range(2):
            pipe.step(batch, batch.roll(1))
        return pipe.clip_grad_norm_(9.0)

    norms = results(pipelines(module, held, body, tied=lambda rank: {"embedding": held[rank][0].weight}))
    for _ in range(2):
        reference_step(module, reference, batch, batch.roll(1))
    check(module, held, reference)
    for norm in norms:
        torch.testing.assert_close(norm, reference[0].weight.grad.norm())


def test_batches_of_another_size_where_copies_have_one_stage(tmp_path: Path) -> None:
    """No message between stages would show it."""
    text = TIED_APART.replace("stages 2", "stages 1").replace("2 + s", "1")
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=2, m=1))
    held = cut(module, mlp(1))

    def body(pipe: Any, rank: int) -> None:
        for rows in (4, 4, 8 - 4 * rank):
            pipe.step(torch.zeros(rows).long(), torch.zeros(rows).long())

    assert all(
        "the batch has 8 rows, 4 in the steps before" in error for error in errors(pipelines(module, held, body))
    )


def test_a_copy_that_is_not_tied_where_another_is(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", TIED_APART, p=4, m=1))
    reference = tied_model(2)
    held = {rank: [copy.deepcopy(reference)[s] for s in module.stages_of(rank)] for rank in range(4)}
    ranks = pipelines(
        module,
        held,
        lambda pipe, rank: None,
        tied=lambda rank: {"e": held[rank][0].weight} if rank < 2 else None,
    )
    says = "`weight` of stage 0 is tied as 'e' on rank 0, but a copy of it on rank 2 is not"
    assert all(says in error for error in errors(ranks))


# ---------------------------------------------------------------------- what people see


def test_what_else_a_step_is_given_is_divided_over_the_copies(tmp_path: Path) -> None:
    """Unevenly many tokens that count, a mask for stages in the middle, evaluation, and the outputs."""
    module = load(compiled.compile_to(tmp_path / "x.py", TWO_WAYS, p=2, m=2))
    torch.manual_seed(9)

    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            assert mask is not None
            return super().forward(x) * mask

    reference: list[nn.Module] = [nn.Embedding(11, 6), Masked(6, 5)]
    held = cut(module, reference)
    batch, mask = torch.randint(11, (8,)), torch.rand(8, 5)
    targets = torch.tensor([1, -100, -100, -100, 2, 3, 4, -100])

    def summed(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, wanted, reduction="sum")

    def body(pipe: Any, rank: int) -> Any:
        losses = pipe.step(batch, targets, extras={"mask": mask})
        evaluated = pipe.step(batch, targets, extras={"mask": mask}, train=False)
        return losses, evaluated, pipe.step(batch, extras={"mask": mask}, train=False)

    found = results(pipelines(module, held, body, loss_fn=summed, count_fn=lambda targets: (targets != -100).sum()))
    output = reference[1](reference[0](batch), mask=mask)
    loss = functional.cross_entropy(output, targets)
    loss.backward()
    check(module, held, reference)
    for losses, evaluated, _ in found:
        assert torch.equal(losses, evaluated)
    torch.testing.assert_close(torch.stack([losses.mean() for losses, *_ in found]).mean(), loss.detach())
    torch.testing.assert_close(torch.cat([*found[1][2], *found[0][2]]), output.detach())


def test_messages_name_the_copy(tmp_path: Path) -> None:
    def spoil(held: dict[int, list[nn.Module]]) -> None:
        held[0][1].register_forward_pre_hook(lambda *_: 1 / 0)

    for error in refused(tmp_path, spoil):
        assert "rank 0 failed at F of stage 1/up, microbatch 0 (test.sched:" in error
    says = "rank 0: 1 stage modules given, but the schedule puts 2 here: stages 0/down, 1/up"
    assert all(says in error for error in refused(tmp_path, lambda held: held[0].pop()))


@pytest.mark.parametrize("text", [CHIMERA, CHIMERA_REDUCE])
def test_the_timeline_and_its_profile(text: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=4, m=2))
    held = cut(module, mlp(4))

    def body(pipe: Any, rank: int) -> Any:
        pipe.step(*data(module))
        return pipe.timeline()

    timeline = results(pipelines(module, held, body, trace=True))[0]
    labels = sorted(event.label for events in timeline.ranks for event in events)
    stages = [f"s{s}/{name}" for s in range(4) for name in ("down", "up")]
    sums = [f"REDUCE {stage}" for stage in stages] if text == CHIMERA_REDUCE else []
    assert labels == sorted([f"{kind} {stage} mb{i}" for kind in "FB" for i in range(2) for stage in stages] + sums)
    costs = json.loads(timeline.profile())["costs"]
    assert {kind: len(values) for kind, values in costs.items()} == {"F": 4, "B": 4, **({"REDUCE": 4} if sums else {})}
    shortest = {
        s: min(e.end - e.start for events in timeline.ranks for e in events if (e.kind, e.stage) == ("REDUCE", s))
        for s in range(4 if sums else 0)
    }
    assert costs.get("REDUCE", []) == [f"{1000 * shortest[s]:.4f}" for s in shortest]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool]
)
def test_a_digest_tells_tensors_apart(dtype: torch.dtype) -> None:
    torch.manual_seed(10)
    for shape in ((), (1,), (7,), (3, 5), (4, 2, 3)):
        x = (torch.randn(shape) * 40).to(dtype)
        seen = {int(_parameter_digest(x))}
        assert int(_parameter_digest(x.clone())) in seen
        for place in range(x.numel()):
            other = x.clone().reshape(-1)
            other[place] = ~other[place] if dtype == torch.bool else other[place] + 1
            seen.add(int(_parameter_digest(other.view(shape))))
        assert len(seen) == 1 + x.numel()
    order = torch.arange(1000.0)
    assert int(_parameter_digest(order)) != int(_parameter_digest(order.flip(0)))
    transposed = torch.arange(12.0).view(3, 4).t()
    assert int(_parameter_digest(transposed)) == int(_parameter_digest(transposed.contiguous()))
