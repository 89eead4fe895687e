"""From what the user names to bytes."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from pipedsl.diagnostics import Limits
from pipedsl.library import UsageError, find, folder, shipped


def test_shipped_names_are_found() -> None:
    assert {"1f1b", "gpipe", "interleaved_1f1b", "naive", "zb_h1", "zb_h2"} <= set(shipped())
    for name in shipped():
        shown, data = find(name)
        assert shown == f"<shipped>/{name}.sched"
        assert data == (folder() / f"{name}.sched").read_bytes()


def test_a_file_wins_over_a_shipped_name_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpipe").mkdir()
    (tmp_path / "1f1b").write_bytes(b"mine")
    assert find("1f1b") == ("1f1b", b"mine")
    assert find("gpipe")[0] == "<shipped>/gpipe.sched"
    with pytest.raises(UsageError, match="directory"):
        find("./gpipe")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1f1bb", "did you mean the shipped schedule `1f1b`"),
        ("ZB_H1", "did you mean the shipped schedule `zb_h1`"),
        ("gpipe.sched", "did you mean the shipped schedule `gpipe`"),
        ("quite-different", "no such file: quite-different, and no shipped schedule"),
        ("no/such/1f1b", "no such file: no/such/1f1b$"),
        ("", "empty"),
        ("a\0b", "not a file name"),
        ("x" * 5000, "cannot open"),
        ("/", "directory"),
    ],
)
def test_what_cannot_be_found_is_said(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(name)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.sched"
    path.write_text("x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("runs as a user who may read everything")
    with pytest.raises(UsageError, match="Permission denied"):
        find(str(path))


def test_endless_devices_are_read_to_the_limit() -> None:
    assert len(find("/dev/zero", Limits(source_bytes=1000))[1]) == 1001


def test_pipes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="nothing came through"):
        find(str(pipe))
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write(b"x" * 200_000)  # more than a pipe holds

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        assert find(f"/dev/fd/{reader}")[1] == b"x" * 200_000
    finally:
        os.close(reader)
        thread.join()


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff" * 50)))
    assert find("-", Limits(source_bytes=10)) == ("<stdin>", b"\xff" * 11)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="closed"):
        find("-")
