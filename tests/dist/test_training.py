"""What people do when they train with a pipeline, on real processes, against one process that does the same.

One set of processes runs all cases: most of the time goes into starting them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dist.cases import flowing, training
from tests.support import compiled
from tests.support.job import M, run_cases

pytestmark = pytest.mark.dist

WORKER = Path(__file__).parent / "workers" / "cases.py"
RANKS = 4
FILES = {
    "whole": (compiled.ONE_F_ONE_B, M),
    "whole_128": (compiled.ONE_F_ONE_B, 128),
    "split": (compiled.SPLIT, M),
    "v_shape": (compiled.V_SHAPE, M),
    "last_first": (compiled.LAST_FIRST, M),
}


def test_training_as_people_do_it(tmp_path: Path) -> None:
    for file, (schedule, m) in FILES.items():
        compiled.compile_to(tmp_path / f"{file}.py", schedule, p=RANKS, m=m)
    run_cases(WORKER, RANKS, tmp_path, [*training.CASES, *flowing.CASES])
