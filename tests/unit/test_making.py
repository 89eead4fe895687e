"""What goes wrong while a pipeline is made, on threads: every rank is told, and at once."""

from __future__ import annotations

import math
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support import compiled
from tests.support.nccl_like import LAZY, Fabric, Wire, run_ranks
from tests.support.worker import load

LONG = 3600.0  # seconds: longer than the test may take


@pytest.fixture
def module(tmp_path: Path) -> Any:
    return load(compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=2))


@pytest.mark.parametrize("timeout", [math.inf, -math.inf, math.nan, 0, -1.0, 1e300, 10**400, None, "5", timedelta(5)])
def test_a_timeout_that_cannot_be_is_refused_on_every_rank(timeout: Any, module: Any) -> None:
    def make(wire: Any) -> None:
        module.Pipeline(nn.Identity(), process_group=wire, timeout=timeout if wire.rank else LONG)

    for rank in run_ranks(Fabric(2, LAZY), make):
        assert isinstance(rank.error, module.PipelineError), rank
        assert "rank 1: timeout must be a number of seconds, more than 0 and at most " in str(rank.error)
        assert f", not {timeout!r:.40}" in str(rank.error)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("place", ["Tied.publish", "Neighbourhood.connect", "Copies.learn", "Executor._prepare"])
def test_an_error_of_one_rank_is_told_to_the_others(
    place: str, victim: int, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the ranks have met, while they connect, and when others may be in their first step."""
    owner, name = place.split(".")
    real = getattr(getattr(module, owner), name)
    threads: dict[int, int] = {}  # to their ranks
    told = threading.Event()

    def broken(*given: Any) -> Any:
        if threads[threading.get_ident()] == victim:
            raise OSError("a fault made on purpose")
        return real(*given)

    monkeypatch.setattr(getattr(module, owner), name, broken)

    def work(wire: Any) -> None:
        threads[threading.get_ident()] = wire.rank
        try:
            pipe = module.Pipeline(nn.Linear(2, 2), nn.functional.mse_loss, process_group=wire, timeout=LONG)
            pipe.step(torch.ones(4, 2), torch.ones(4, 2))
        finally:
            if wire.rank == victim:  # whose process lives on
                told.wait(40)
            else:
                told.set()

    ranks = run_ranks(Fabric(2, LAZY), work)
    assert not any(rank.hung for rank in ranks)
    assert isinstance(ranks[victim].error, OSError)
    other = ranks[1 - victim].error
    assert isinstance(other, module.PipelineError)
    assert f"rank {victim} failed at making the pipeline: OSError: a fault made on purpose" in str(other)


def test_a_rank_that_comes_when_the_store_is_gone_is_told_so(module: Any) -> None:
    """As the others have waited for it, and ended."""

    class Late(Wire):
        def store(self, name: str, *, for_thread: bool = False) -> Any:
            raise dist.DistNetworkError("failed to connect")

    with pytest.raises(module.PipelineError, match="the test, which holds the ranks' store, does not answer: failed"):
        module.Pipeline(nn.Identity(), process_group=Late(Fabric(2, LAZY), 0))
