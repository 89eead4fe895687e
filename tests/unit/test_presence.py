"""Gradients that there are none of: how they are sent; and where a rank's Python may be ahead, as on NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipedsl.runtime.presence import Marked
from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, run_ranks
from tests.support.on_threads import cut
from tests.support.worker import load
from tests.unit.test_executor import mean_square, results, train

CPU = torch.device("cpu")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_stands_for_none_is_known_when_it_arrives(dtype: torch.dtype) -> None:
    presence = Marked()
    for shape in [(), (1,), (3,), (2, 5), (64, 33)]:
        sent = presence.absent(shape, dtype, CPU)
        assert (sent.shape, sent.dtype) == (shape, dtype)
        zeros = torch.zeros(shape, dtype=dtype)
        assert [x is zeros for x in presence.choose(0, [zeros, sent.clone()])] == [True, False]
        assert presence.choose(0, [sent]) == [None]
    assert presence.tell(0, [zeros, zeros])
    assert not presence.tell(0, [zeros, None])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_that_is_computed_stands_for_none(dtype: torch.dtype) -> None:
    zero = torch.zeros(8, dtype=dtype)
    mark = Marked().absent((8,), dtype, CPU)
    assert mark.isnan().all()
    others = [torch.full((mark.nbytes,), 255, dtype=torch.uint8).view(dtype)]
    for place in (0, 7, 8, mark.nbytes - 1):  # all but one byte of it
        others.append(mark.clone())
        others[-1].view(torch.uint8)[place] ^= 1
    others += [zero / zero, -(zero / zero), (zero + 1) / zero, -(zero + 1), zero + float("nan"), (zero - 1).sqrt()]
    for x in [*others, *[each[:1].clone() for each in others[5:]]]:
        assert Marked().choose(0, [x])[0] is x, x


class Detached(nn.Module):
    """Uses its input without its gradient, in its first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.left = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        y: torch.Tensor = self.inner(x.detach() if self.left >= 0 else x)
        return y


def test_zeros_stand_for_none_in_the_first_step_only(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> list[list[torch.Tensor | None]]:
        found = []
        for step in range(4):
            if step == 2:
                pipe.renew_shapes()
            pipe._modules[0].zero_grad()
            pipe.step(torch.randn(8, 4), torch.randn(8))
            found.append([q.grad for q in pipe._modules[0].parameters()])
        return found

    stages = [nn.Linear(4, 4), Detached(100)]
    first, second = results(train(compiled.SPLIT, stages, None, None, mean_square, tmp_path, p=2, m=4, body=body))
    for step in (0, 2):
        assert all(gradient is not None and not gradient.any() for gradient in first[step])
    for step in (1, 3):
        assert first[step] == [None, None]
    assert all(gradient is not None for each in second for gradient in each)


def test_one_that_appears_later_is_refused(tmp_path: Path) -> None:
    stages = [nn.Linear(4, 4), Detached(2)]
    for rank in train(compiled.SPLIT, stages, torch.randn(8, 4), torch.randn(8), mean_square, tmp_path, p=2, m=4):
        assert (
            "a gradient goes back to the stage before for this microbatch where the first microbatch had none"
            in str(rank.error)
        )
        assert "call renew_shapes() on every rank" in str(rank.error)


@pytest.mark.parametrize("text", [compiled.SPLIT, compiled.TWO_WAYS])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("frozen", [False, True])
def test_what_was_agreed_on_does_not_pile_up_in_the_store(text: str, steps: int, frozen: bool, tmp_path: Path) -> None:
    """`steps`: between two agreements. With one nobody asks what is said of gradients, nor where none are wanted."""
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=2, m=2))
    held = cut(module, [nn.Linear(4, 4).requires_grad_(not frozen), nn.Linear(4, 4)])

    def keys(agreements: int) -> int:
        fabric = Fabric(2, LAZY)

        def work(wire: Any) -> None:
            pipe = module.Pipeline(held[wire.rank], functional.mse_loss, process_group=wire, timeout=20)
            for _ in range(agreements):
                pipe.renew_shapes()
                for _ in range(steps):
                    for training in (True, False):
                        pipe.step(torch.ones(8, 4), torch.ones(8, 4), train=training)

        results(run_ranks(fabric, work))
        return int(fabric.shared_store.num_keys())

    assert keys(20) - keys(2) < 10  # such as what a rank that stands still for long says once, or has yet to delete
