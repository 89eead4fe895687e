"""A short run of `benchmarks/soak.py`: a killed rank, a resume, and the losses of one process to the bit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.launch import ROOT


@pytest.mark.dist
def test_a_job_goes_on_after_a_kill_as_if_nothing_had_happened() -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "soak.py"),
        "--steps",
        "60",
        "--kills",
        "1",
        "--save-every",
        "5",
    ]
    ended = subprocess.run([*command, "--seed", "4"], capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    resumed = re.search(r"kill 1: rank \d after (\d+) steps; on from (\d+)$", ended.stdout, re.MULTILINE)
    assert resumed is not None
    assert 0 < int(resumed[2]) <= int(resumed[1]) <= 60
    assert "60 steps, 1 kills: nothing wrong" in ended.stdout
