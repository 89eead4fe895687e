"""Nothing is left of ranks that share memory when one is killed; the others notice though a child of it lives on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from pipedsl.runtime.shared_memory import can_share_memory
from tests.support import compiled
from tests.support.launch import launch

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not"),
]

WORKER = Path(__file__).parent / "workers" / "leaving.py"


def said(output: str, what: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [what]]
    return line.split()[1:]


def test_nothing_is_left_of_a_killed_rank(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=2, m=4)
    shared = Path("/dev/shm")
    before = {each.name for each in shared.iterdir()} if shared.is_dir() else set()
    first, second = launch(WORKER, 2, [str(path)], timeout=200)
    child = int(said(second.output, "CHILD")[0])
    try:
        assert Path(f"/proc/{child}").exists()
        assert (first.returncode, second.returncode) == (0, -signal.SIGKILL), first.output
        assert re.search("rank 0 lost its connection to rank 1 at (wait for|isend) ", first.output), first.output
        assert [said(each.output, "LINKED") for each in (first, second)] == [["1"], ["0"]]
        names = [name for each in (first, second) for name in said(each.output, "NAMES") if "pipedsl" in name]
        assert names
        sockets = Path("/proc/net/unix").read_text()
        assert not [name for name in names if name in sockets]
        after = {each.name for each in shared.iterdir()} if shared.is_dir() else set()
        assert not [name for name in after - before if "pipedsl" in name]
    finally:
        os.kill(child, signal.SIGKILL)
