"""On GPUs: the same gradients, and no step that waits for one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.launch import launch, succeed
from tests.support.worker import alone, difference, gradients, load, mlp

WORKER = Path(__file__).resolve().parents[1] / "dist" / "workers" / "directions.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.fixture
def one_rank() -> Iterator[torch.device]:
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield device
    torch.cuda.set_sync_debug_mode("default")
    dist.destroy_process_group()


def test_a_step_does_not_wait_for_the_gpu(one_rank: torch.device, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.V_SHAPE, p=1, m=4))
    stages = [stage.to(one_rank) for stage in mlp(2)]
    reference = copy.deepcopy(stages)
    pipe = module.Pipeline(stages, functional.cross_entropy, timeout=60)
    batch, targets = torch.randint(11, (8,)).to(one_rank), torch.randint(5, (8,)).to(one_rank)
    pipe.step(batch, targets)
    torch.cuda.set_sync_debug_mode("error")
    pipe.step(batch, targets)
    torch.cuda.set_sync_debug_mode("default")
    for _ in range(2):
        alone(reference, functional.cross_entropy, batch.chunk(4), targets.chunk(4))
    for ours, theirs in zip(stages, reference, strict=True):
        expected = gradients(theirs)
        for name, gradient in gradients(ours).items():
            assert difference(gradient, expected[name]) <= 1e-5, name


@pytest.mark.parametrize("text", [compiled.TWO_WAYS, compiled.TWO_WAYS_REDUCE])
def test_nor_where_gradients_of_copies_are_summed(one_rank: torch.device, text: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=1, m=2))
    (reference,) = mlp(1)
    reference.to(one_rank)
    stages = [copy.deepcopy(reference) for _ in range(2)]
    pipe = module.Pipeline(stages, functional.cross_entropy, timeout=60)
    batch, targets = torch.randint(11, (8,)).to(one_rank), torch.randint(5, (8,)).to(one_rank)
    pipe.step(batch, targets)
    torch.cuda.set_sync_debug_mode("error")
    pipe.step(batch, targets)
    torch.cuda.set_sync_debug_mode("default")
    for _ in range(2):
        alone([reference], functional.cross_entropy, batch.chunk(4), targets.chunk(4))
    expected = gradients(reference)
    for stage in stages:
        for name, gradient in gradients(stage).items():
            assert difference(gradient, expected[name]) <= 1e-5, name


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices here")
def test_training_over_nccl(tmp_path: Path) -> None:
    files = [
        compiled.compile_to(tmp_path / f"{name}.py", name, p=2, m=8) for name in ("1f1b", "zb_h1", "interleaved_1f1b")
    ]
    for name, text in (("split", compiled.TWO_WAYS_SPLIT), ("reduce", compiled.TWO_WAYS_REDUCE)):
        files.append(compiled.compile_to(tmp_path / f"two_ways_{name}.py", text, p=2, m=4))
    succeed(launch(WORKER, 2, ["nccl", *map(str, files)], timeout=300))


def test_what_is_drawn_on_a_gpu_is_what_one_process_draws(one_rank: torch.device, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.V_SHAPE, p=1, m=4))
    stages = [nn.Sequential(stage, nn.Dropout(0.4)).to(one_rank) for stage in mlp(2)]
    pipe = module.Pipeline(stages, functional.cross_entropy, timeout=60)
    batch, targets = torch.randint(11, (8,)).to(one_rank), torch.randint(5, (8,)).to(one_rank)
    pipe.step(batch, targets, seed=0)
    before = torch.cuda.get_rng_state()
    torch.cuda.set_sync_debug_mode("error")
    losses = pipe.step(batch, targets, seed=1)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(before, torch.cuda.get_rng_state())
    for i, (x, y) in enumerate(zip(batch.chunk(4), targets.chunk(4), strict=True)):
        for s, stage in enumerate(stages):
            with module.seeded(1, s, i):
                x = stage(x)
        assert torch.equal(functional.cross_entropy(x, y), losses[i])
