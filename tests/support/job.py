"""What the worker scripts share that run many cases on the same ranks, each against one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.support.launch import launch, succeed
from tests.support.worker import PATIENCE, difference, gradients, load, start

BOTH = ("whole", "split")  # schedules with B, and with I and W
M = 4


@dataclass(frozen=True)
class Job:
    """One rank of a case. `group`: of its own, as a failed pipeline leaves one that cannot be used."""

    rank: int
    folder: Path
    group: dist.ProcessGroup

    def compiled(self, name: str) -> Any:
        return load(self.folder / f"{name}.py")

    def pipeline(
        self, name: str, stages: Sequence[nn.Module], loss_fn: Any = functional.cross_entropy, **more: Any
    ) -> Any:
        """A pipeline over this rank's part of `stages`."""
        compiled = self.compiled(name)
        mine = [stages[s] for s in compiled.stages_of(self.rank)]
        pipe = compiled.Pipeline(mine, loss_fn, timeout=PATIENCE, process_group=self.group, **more)
        pipe.mine = mine
        return pipe


Case = Callable[[Job], None]


def compare(pipe: Any, stages: Sequence[nn.Module], reference: Sequence[nn.Module], bound: float = 1e-5) -> None:
    """The gradients of this rank's stages against the reference's, also which there are."""
    for ours, theirs in zip(stages, reference, strict=True):
        if any(ours is each for each in pipe.mine):
            expected = gradients(theirs)
            for name, gradient in gradients(ours).items():
                assert (gradient is None) == (expected[name] is None), (name, gradient, expected[name])
                assert difference(gradient, expected[name]) <= bound, (name, gradient, expected[name])


def tokens(seed: int, rows: int = 2 * M) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch for `worker.mlp`, and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(11, (rows,), generator=generator), torch.randint(5, (rows,), generator=generator)


def work(cases: Mapping[str, Case]) -> None:
    """A rank's main program. Arguments: a folder of generated files, then the cases to run, in order."""
    rank = start()
    for name in sys.argv[2:]:
        cases[name](Job(rank, Path(sys.argv[1]), dist.new_group()))
        print(f"CASE {name}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_cases(worker: Path, ranks: int, folder: Path, names: Sequence[str]) -> None:
    """Run cases of a worker script on real processes; fails with the output of the first rank that did."""
    outcomes = launch(worker, ranks, [str(folder), *names], timeout=PATIENCE + 60)
    succeed(outcomes)
    for outcome in outcomes:
        assert [line.split()[1] for line in outcome.output.splitlines() if line.startswith("CASE ")] == list(names)
