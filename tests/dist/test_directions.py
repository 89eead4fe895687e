"""A process group for each direction: nothing that one group carries safely hangs on two, and gradients stay right."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_calls import random_calls

from pipedsl.calls_json import read_calls
from tests.support import compiled
from tests.support.launch import launch, succeed
from verify import check_calls

WORKER = Path(__file__).parent / "workers" / "directions.py"


def test_two_groups_wait_for_no_more_than_one() -> None:
    names = ["nccl-lazy-warm", "group-per-direction-warm"]
    found = set()
    for seed in range(300):
        one, two = check_calls(read_calls(random_calls(seed)), names, remedies=0).transports.values()
        assert (one, two) == ("safe", "safe") or one != "safe"
        found.add((one == "safe", two == "safe"))
    assert found == {(True, True), (False, True), (False, False)}


@pytest.mark.dist
def test_training_with_a_group_for_each_direction(tmp_path: Path) -> None:
    files = [
        compiled.compile_to(tmp_path / f"{name}.py", name, p=3, m=6) for name in ("1f1b", "zb_h1", "interleaved_1f1b")
    ]
    files.append(compiled.compile_to(tmp_path / "two_ways.py", compiled.TWO_WAYS_SPLIT, p=3, m=4))
    succeed(launch(WORKER, 3, [str(file) for file in files], timeout=200))
