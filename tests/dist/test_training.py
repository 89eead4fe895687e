"""What people do when they train with a pipeline, on real processes, against one process that does the same.

One set of processes runs all cases: most of the time goes into starting them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dist.cases import (
    alike,
    buffers,
    composing,
    copies,
    flowing,
    linked,
    losses,
    missing,
    random_numbers,
    saving,
    training,
)
from tests.support import compiled
from tests.support.job import M, run_cases

WORKER = Path(__file__).parent / "workers" / "cases.py"
RANKS = 4
FILES = {
    "whole": (compiled.ONE_F_ONE_B, RANKS, M),
    "whole_128": (compiled.ONE_F_ONE_B, RANKS, 128),
    "whole_2": (compiled.ONE_F_ONE_B, 2, M),
    "whole_1": (compiled.ONE_F_ONE_B, 1, M),
    "split": (compiled.SPLIT, RANKS, M),
    "split_2": (compiled.SPLIT, 2, M),
    "v_shape": (compiled.V_SHAPE, RANKS, M),
    "v_shape_2": (compiled.V_SHAPE, 2, M),
    "v_shape_1": (compiled.V_SHAPE, 1, M),
    "last_first": (compiled.LAST_FIRST, RANKS, M),
    "two_ways": (compiled.TWO_WAYS, RANKS, M),
    "two_ways_2": (compiled.TWO_WAYS, 2, M),
    "two_ways_split": (compiled.TWO_WAYS_SPLIT, RANKS, M),
    "two_ways_split_2": (compiled.TWO_WAYS_SPLIT, 2, M),
    "split_reduce_2": (compiled.SPLIT_REDUCE, 2, M),
    "reduce_first_2": (compiled.REDUCE_FIRST, 2, M),
    "v_shape_reduce_2": (compiled.V_SHAPE_REDUCE, 2, M),
    "v_shape_reduce_late_2": (compiled.V_SHAPE_REDUCE_LATE, 2, M),
    "two_ways_reduce_2": (compiled.TWO_WAYS_REDUCE, 2, M),
}


@pytest.mark.dist
@pytest.mark.timeout(3000)  # nothing for so long a list; ranks that stand still are killed long before
def test_training_as_people_do_it(tmp_path: Path) -> None:
    for file, (schedule, p, m) in FILES.items():
        compiled.compile_to(tmp_path / f"{file}.py", schedule, p=p, m=m)
    cases = (training, flowing, linked, random_numbers, composing, buffers, missing, losses, copies, alike, saving)
    run_cases(WORKER, RANKS, tmp_path, [name for each in cases for name in each.CASES])
