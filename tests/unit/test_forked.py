"""What belongs to the process that made it, and not to its children."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

pytest.importorskip("torch")

SCRIPT = """
    import os, sys
    from pipedsl.runtime.watch import close_with

    class Owner: ...

    class Watch:
        def close(self):
            print("closed by", "its own" if os.getpid() == own else "a child", flush=True)

    own, owner = os.getpid(), Owner()
    close_with(owner, Watch())
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
"""


def test_a_child_that_ends_leaves_its_parents_watch_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", dedent(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "closed by its own\n", ended.stderr
