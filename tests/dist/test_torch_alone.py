"""A compiled file in an environment that has torch, what torch needs, and nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import compiled

RANKS = 2
TRAIN = """
import importlib.util, sys
import torch, torch.distributed as dist
from torch import nn
import x_pipeline, x_two_ways

for absent in ("pipedsl", "verify", "lark", "click", "pytest", "z3", "hypothesis"):
    assert importlib.util.find_spec(absent) is None, absent
dist.init_process_group("gloo")
rank = dist.get_rank()
for compiled in (x_pipeline, x_two_ways):
    torch.manual_seed(0)
    stages = [nn.Linear(4, 4), nn.Linear(4, 3)]
    mine = [stages[s] for s in compiled.stages_of(rank)]
    pipe = compiled.Pipeline(mine, nn.functional.cross_entropy, timeout=90, trace=True)
    optimizer = torch.optim.AdamW(nn.ModuleList(mine).parameters(), lr=0.1)
    batch, targets = torch.randn(8, 4), torch.randint(3, (8,))
    seen = []
    for _ in range(20):
        losses = pipe.step(batch, targets)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(losses)
    assert len(pipe.timeline().ranks) == 2
    assert len(pipe.state_dict(nn.Sequential(*stages), optimizer)["model"]) == 2 * len(mine)
    if rank == 1 or len(mine) == 2:
        assert seen[-1].mean() < seen[0].mean() / 2, seen
dist.barrier()
dist.destroy_process_group()
print("TRAINED")
"""


def needs(name: str, found: set[str]) -> set[str]:
    """A distribution's name with those of all that it needs here."""
    if name not in found:
        found.add(name)
        for requirement in importlib.metadata.requires(name) or []:
            spec, _, marker = requirement.partition(";")
            named = re.match(r"[\w.-]+", spec.strip())
            assert named is not None
            other = named[0]
            if "extra" not in marker:
                try:
                    importlib.metadata.distribution(other)
                except importlib.metadata.PackageNotFoundError:
                    continue  # for other platforms
                needs(other, found)
    return found


def bare_environment(folder: Path) -> None:
    """A folder with the modules of torch and of what it needs, for a Python that looks nowhere else."""
    for name in needs("torch", set()):
        files = importlib.metadata.distribution(name).files or []
        for top in {Path(file).parts[0] for file in files} - {"..", "__pycache__"}:
            target = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if target.exists() and not (folder / top).exists():
                (folder / top).symlink_to(target)


@pytest.mark.dist
def test_it_trains_where_torch_is_all_there_is(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    bare_environment(environment)
    compiled.compile_to(tmp_path / "x_pipeline.py", compiled.SPLIT, p=RANKS, m=4)
    compiled.compile_to(tmp_path / "x_two_ways.py", compiled.TWO_WAYS_SPLIT, p=RANKS, m=2)
    (tmp_path / "train.py").write_text(TRAIN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rendezvous = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common = {**os.environ, **rendezvous, "PYTHONPATH": str(environment), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-S", "train.py"],
            cwd=tmp_path,
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for rank in ranks:
            said, _ = rank.communicate(timeout=600)
            assert rank.returncode == 0, said
            assert "TRAINED" in said
    finally:
        for rank in ranks:
            rank.kill()
