"""Under torchrun, which ends the other ranks a tenth of a second after one has died, every one of them says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipedsl.post_mortem import read_states
from tests.support import compiled
from tests.support.launch import ROOT

pytestmark = pytest.mark.dist

WORKER = Path(__file__).parent / "workers" / "torchrun.py"
RANKS = 3


@pytest.mark.parametrize(("fault", "victim"), [("kill", 0), ("kill", 2), ("raise", 1)])
def test_every_surviving_rank_says_why(fault: str, victim: int, tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=RANKS, m=4)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PIPEDSL_POST_MORTEM"] = str(tmp_path / "post mortem")
    ended = subprocess.run(
        [*command, str(WORKER), str(path), fault, str(victim)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 1
    said = [line for line in ended.stderr.splitlines() if line.startswith("pipeline one_f_one_b(p=3, m=4): ")]
    if fault == "raise":
        why = f"rank {victim} failed at F of stage {victim}, microbatch 1 (test.sched:7): ValueError: a fault made on"
        assert len(said) >= RANKS
    else:
        why = f"lost its connection to rank {victim} at "
    for rank in range(RANKS):
        if rank != victim:
            own = [line for line in said if f"rank {rank} " in line and why in line and "(test.sched:" in line]
            assert own, (rank, ended.stderr)
    runs, problems = read_states(str(tmp_path / "post mortem"))
    (states,) = runs.values()
    assert problems == []
    assert {state.rank for state in states} == {rank for rank in range(RANKS) if (fault, rank) != ("kill", victim)}
    for state in states:
        assert state.error.startswith("pipeline one_f_one_b(p=3, m=4): ")
        assert "(test.sched:" in state.error
