"""What the ranks of a failed step leave, and that no folder and no disk keeps them from failing as they should."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipedsl.cli.main import cli
from tests.support import compiled
from tests.support.launch import Outcome, launch

pytestmark = pytest.mark.dist

WORKERS = Path(__file__).parent / "workers"
RANKS = 3
LIMIT = 400.0  # seconds; nothing here takes more than a few, but the machine may be busy


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.compile_to(tmp_path_factory.mktemp("faults") / "x.py", compiled.ONE_F_ONE_B, p=RANKS, m=4)


def run(pipeline: Path, folder: Path, fault: str, victim: int, worker: str = "faults.py") -> list[Outcome]:
    def wait_for_survivors(processes: list, output_of: Callable[[int], str]) -> None:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and any(
            process.poll() is None for rank, process in enumerate(processes) if rank != victim
        ):
            time.sleep(0.05)
        processes[victim].kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEDSL_POST_MORTEM", str(folder))
        return launch(
            WORKERS / worker,
            RANKS,
            [str(pipeline), f"{fault}:{victim}"],
            timeout=LIMIT + 10,
            meddle=wait_for_survivors if fault == "stop" else None,
        )


def left_in(folder: Path) -> dict[int, Any]:
    """The files by rank; nothing else may lie there, and all are of one run."""
    documents = [json.loads(path.read_bytes()) for path in folder.iterdir()]
    assert len({document["run"] for document in documents}) <= 1
    assert {path.name for path in folder.iterdir()} == {f"{each['run']}.rank{each['rank']}.json" for each in documents}
    return {document["rank"]: document for document in documents}


def told(folder: Path) -> str:
    result = CliRunner().invoke(cli, ["post-mortem", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_stopped_rank(pipeline: Path, tmp_path: Path) -> None:
    began = time.time()
    outcomes = run(pipeline, tmp_path / "made" / "for it", "stop", 1)
    left = left_in(tmp_path / "made" / "for it")
    assert left.keys() == {0, 2}
    for rank, state in left.items():
        assert state["at"]["waits_for"] == 1
        assert state["at"]["call"].startswith("wait for ")
        assert state["at"]["call"].endswith("(test.sched:7)")
        assert state["at"]["line"] == 7
        assert state["step"] == 2
        assert state["params"] == {"p": RANKS, "m": 4}
        assert state["error"] in outcomes[rank].output
        assert state["failure"]["why"] == "waited"
        assert state["answers"].keys() <= {str(2 - rank)}, "the other that lives, if it was fast enough"
        times = [each["time"] for each in state["calls"]]
        assert began < times[0] <= times[-1] == state["at"]["since"] < state["time"] - 1
        assert times == sorted(times)
        assert times[0] <= state["heard"]["1"]["time"] <= times[-1]
    assert left[0]["fingerprint"] == left[2]["fingerprint"]
    assert left[0]["pid"] != left[2]["pid"]
    text = told(tmp_path / "made" / "for it")
    assert "rank 1: left no file" in text
    assert "the waiting leads to rank 1, which left no file" in text


def test_a_rank_that_raises(pipeline: Path, tmp_path: Path) -> None:
    run(pipeline, tmp_path, "raise", 1)
    left = left_in(tmp_path)
    assert left.keys() == {0, 1, 2}
    for state in left.values():
        assert (state["failure"]["rank"], state["failure"]["why"]) == (1, "raised")
        assert "ValueError: a fault made on purpose" in state["error"]
    assert left[1]["at"]["call"] == "F of stage 1, microbatch 1 (test.sched:7)"
    assert left[1]["at"]["waits_for"] is None
    assert "rank 1 said:\n  pipeline one_f_one_b(p=3, m=4): rank 1 failed at F of stage 1" in told(tmp_path)


def test_a_full_disk_hides_nothing_and_leaves_no_halves(pipeline: Path, tmp_path: Path) -> None:
    for rank, outcome in enumerate(run(pipeline, tmp_path, "raise", 1, worker="full_disk.py")):
        assert outcome.returncode == 0, outcome.output
        assert "rank 1 failed at F of stage 1, microbatch 1 (test.sched:7): ValueError: a fault" in outcome.output
        complaints = [line for line in outcome.output.splitlines() if "could not leave its state" in line]
        assert len(complaints) == 1
        assert complaints[0].startswith(f"pipeline one_f_one_b(p=3, m=4): rank {rank} could not leave its state for a ")
        assert os.strerror(27) in complaints[0]  # File too large
    assert list(tmp_path.iterdir()) == []
