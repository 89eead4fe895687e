"""A rank of one pipeline fails: the ranks of its replica, which it leaves waiting in a sum, know why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.launch import launch

WORKER = Path(__file__).parent / "workers" / "replicas.py"


@pytest.mark.dist
def test_the_other_pipeline_says_why_it_ends(tmp_path: Path) -> None:
    """Though the store is held by a rank of the pipeline that has failed."""
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=4)
    outcomes = launch(WORKER, 4, [str(path)], timeout=200)
    cause = "rank 1 failed at F of stage 1, microbatch 0 (test.sched:"
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode is not None, outcome.output
        before = "" if rank < 2 else "before that the pipeline of global ranks 0, 1 failed: "
        assert before + cause in outcome.output, outcome.output
        assert "ValueError: a fault made on purpose" in outcome.output
