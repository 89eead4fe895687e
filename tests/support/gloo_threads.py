"""The executor's own wire over gloo, with ranks that are threads of one process: no processes, and no default group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from tests.support.nccl_like import Rank

SECONDS = 60.0  # that a rank may take; it needs a moment, but the machine may be busy


def wire_of(module: Any, rank: int, size: int, shared: Any) -> Any:
    """A wire of a generated file's own class. `shared`: the ranks' store."""

    class Wire(module.TorchWire):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            store = PrefixStore("gloo", shared)
            self._group = ProcessGroupGloo(store, rank, size, timedelta(seconds=SECONDS))
            self.rank, self.size, self.ranks, self.strangers = rank, size, range(size), 0
            self.transport = "gloo"
            self.in_order, self.linkable, self._by_direction = False, True, False
            self.links = {}
            self.hosts_store, self.store_host = False, "the test"

        def store(self, name: str, *, for_thread: bool = False) -> Any:
            return PrefixStore(name, shared)

        def job_store(self, *, for_thread: bool = False) -> Any:
            return PrefixStore("job", shared)

        def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> None:
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            self._group.allreduce([tensor], options).wait()

    return Wire()


def run_ranks(module: Any, body: Callable[[Any], Any]) -> list[Rank]:
    """Run `body` as every rank of a generated file, with its wire."""
    size, shared = module.PLAN.ranks, dist.HashStore()
    ranks = [Rank() for _ in range(size)]

    def work(rank: int) -> None:
        try:
            ranks[rank].result = body(wire_of(module, rank, size, shared))
        except BaseException as error:  # handed to the test
            ranks[rank].error = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for rank, thread in zip(ranks, threads, strict=True):
        thread.join(2 * SECONDS)
        rank.hung = thread.is_alive()
    return ranks
