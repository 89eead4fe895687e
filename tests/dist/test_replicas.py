"""A rank of one pipeline fails: the ranks of its replica, which it leaves waiting in a sum, know why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.launch import Outcome, launch

WORKER = Path(__file__).parent / "workers" / "replicas.py"


def run(tmp_path: Path, fault: str, victim: int) -> Sequence[Outcome]:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=4)
    return launch(WORKER, 4, [str(path), fault, str(victim)], timeout=200)


@pytest.mark.dist
def test_the_other_pipeline_says_why_it_ends(tmp_path: Path) -> None:
    """Though the store is held by a rank of the pipeline that has failed."""
    outcomes = run(tmp_path, "raise", 1)
    cause = "rank 1 failed at F of stage 1, microbatch 0 (test.sched:"
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode is not None, outcome.output
        before = "" if rank < 2 else "before that the pipeline of global ranks 0, 1 failed: "
        assert before + cause in outcome.output, outcome.output
        assert "ValueError: a fault made on purpose" in outcome.output


@pytest.mark.dist
@pytest.mark.parametrize(("fault", "victim"), [("kill", 1), ("kill in the sum", 2)])
def test_all_survivors_name_the_rank_that_died(fault: str, victim: int, tmp_path: Path) -> None:
    """The other pipeline loses a connection, too, of which it does not know to whom; perhaps first."""
    outcomes = run(tmp_path, fault, victim)
    assert outcomes[victim].returncode == -9
    name = {1: "rank 1", 2: "rank 0 (global rank 2)"}[victim]
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.returncode is not None, outcome.output
            assert f" lost its connection to {name} at wait for " in outcome.output, outcome.output
