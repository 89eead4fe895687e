"""Kept answers that are not what they should be: the search just runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipedsl import search_cache, search_runs
from pipedsl.api import load
from pipedsl.search_cache import _digest
from pipedsl.search_problem import tasks
from pipedsl.search_runs import Job, Outcome
from pipedsl.searching import SearchResult, search
from verify.search import Budget, solve
from verify.search.solve import Proof

pytest.importorskip("z3")


def searched(folder: Path) -> SearchResult:
    return search(load("zero_bubble"), {"p": 2, "m": 4, "cap": 2}, budget=1.0, cache=folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bound", "1/0"),
        ("bound", "100000"),
        ("bound", 1.5),
        ("bound", "1e999999999"),
        ("bound", "-1e999999999"),
        ("bound", "1e-999999999"),
        ("bound", "1" * 5000),
        ("bound", " 1"),
        ("bound", "1_0"),
        ("value", "1e999999999"),
        ("value", "1/0"),
        ("value", [1]),
        ("proof", "none"),
        ("argument", None),
        ("argument", "\x1b[2J"),
        ("argument", "lower bound\nexpect makespan == 1"),
        ("argument", "lower bound\u2028"),
        ("argument", "\ud800"),
        ("argument", "long " * 10000),
        ("work", "abc"),
        ("work", float("nan")),
        ("work", True),
        ("elapsed", 10**400),
        ("elapsed", float("nan")),
        ("elapsed", float("inf")),
        ("elapsed", -1),
        ("orders", [[0]]),
        ("orders", {"0": 1}),
        ("orders", [[10**30] * 12] * 2),
    ],
)
def test_an_entry_of_wrong_content_with_a_right_digest_is_passed_over(name: str, value: Any, tmp_path: Path) -> None:
    first = searched(tmp_path)
    (path,) = tmp_path.iterdir()
    body = json.loads(path.read_text())["body"] | {name: value}
    path.write_text(json.dumps({"body": body, "sha256": _digest(body)}))
    again = searched(tmp_path)
    assert not again.cached
    assert (again.value, again.bound, again.argument) == (first.value, first.bound, first.argument)
    assert searched(tmp_path).cached, "the entry was not replaced by a right one"


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "large", "no text"])
def test_what_is_no_file_of_an_entry_is_not_read(kind: str, tmp_path: Path) -> None:
    """In a process of its own, as it must neither wait for ever nor take all memory."""
    first = searched(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as stream:
            stream.truncate(1 << 40)  # holes: it takes no room on the disk
    else:
        path.write_bytes(b"\xff\xfe{}")
    code = """
import resource, sys
from pathlib import Path
from pipedsl.api import load
from pipedsl.searching import search
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
found = search(load("zero_bubble"), {"p": 2, "m": 4, "cap": 2}, budget=1.0, cache=Path(sys.argv[1]))
print(found.value, found.cached)
"""
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{first.value} False\n"


def test_an_answer_of_another_solver_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been wrong, which is why there is another one now."""
    searched(tmp_path)
    assert searched(tmp_path).cached
    search_cache._engine.cache_clear()
    monkeypatch.setattr(search_cache, "version", lambda name: "another")
    assert not searched(tmp_path).cached
    search_cache._engine.cache_clear()


@pytest.mark.parametrize(
    ("elapsed", "until", "proof", "cut"),
    [(5.0, -1.0, None, True), (9.5, -1.0, None, False), (5.0, 100.0, None, False), (5.0, -1.0, Proof.BOUND, False)],
)
def test_what_had_less_time_than_it_was_to_have_is_not_kept(
    elapsed: float, until: float, proof: Proof | None, cut: bool
) -> None:
    problem = tasks(load("zero_bubble"), {"p": 2, "m": 4, "cap": 2})[0].problem
    job = Job(problem, Budget(60, 10.0), 0, (), until=time.monotonic() + until)
    solution = replace(solve(problem, budget=Budget(0.1)), proof=proof)
    assert search_runs._is_cut_short(job, Outcome(0, solution, elapsed=elapsed)) is cut
