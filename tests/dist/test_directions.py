"""A process group for each direction: nothing that one group carries safely hangs on two, and gradients stay right."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_calls import has_batches, random_calls, random_reductions

from pipedsl.calls_json import read_calls
from tests.support import compiled
from tests.support.launch import launch, succeed
from verify import check_calls

WORKER = Path(__file__).parent / "workers" / "directions.py"


def test_two_groups_wait_for_no_more_than_one() -> None:
    names = ["nccl-lazy-warm", "group-per-direction-warm"]
    found = set()
    for seed in range(300):
        document = (random_reductions if seed % 2 else random_calls)(seed)
        if seed % 2 and has_batches(document):  # no batch is compiled; sums stand on no stream of theirs
            continue
        one, two = check_calls(read_calls(document), names, remedies=0).transports.values()
        assert (one, two) == ("safe", "safe") or one != "safe"
        found.add((one == "safe", two == "safe"))
    assert found == {(True, True), (False, True), (False, False)}


@pytest.mark.dist
def test_training_with_a_group_for_each_direction(tmp_path: Path) -> None:
    files = [
        compiled.compile_to(tmp_path / f"{name}.py", name, p=3, m=6) for name in ("1f1b", "zb_h1", "interleaved_1f1b")
    ]
    for name, text in (("split", compiled.TWO_WAYS_SPLIT), ("reduce", compiled.TWO_WAYS_REDUCE)):
        files.append(compiled.compile_to(tmp_path / f"two_ways_{name}.py", text, p=3, m=4))
    succeed(launch(WORKER, 3, [str(file) for file in files], timeout=200))
