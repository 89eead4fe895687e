"""What the executor writes, to what is no regular file, or is open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from pipedsl.runtime.files import write_whole

CODE = """
import sys
from pipedsl.runtime.files import write_whole
print("before")
write_whole(sys.argv[1], "written ü\\n")
print("after")
"""


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "link"])
@pytest.mark.parametrize("to", ["pipe", "file"])
def test_open_files_are_written_to_after_what_is_there(path: str, to: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    command, output = [sys.executable, "-c", CODE, path], tmp_path / "output"
    with output.open("wb") as stream:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE if to == "pipe" else stream, stderr=subprocess.PIPE,
            timeout=60, check=False,
        )  # fmt: skip
    assert done.stderr == b""
    assert (done.stdout or output.read_bytes()) == "before\nwritten ü\nafter\n".encode()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "output"]


def test_a_named_pipe_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = Thread(target=write_whole, args=(path, "text"), daemon=True)
    writer.start()
    assert path.read_text() == "text"
    writer.join(60)
    assert path.is_fifo()


@pytest.mark.parametrize("path", ["/dev/full", "/dev/fd/987", "/dev/fd/x"])
def test_what_cannot_be_written_to_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError) as caught:
        write_whole(path, "text")
    assert caught.value.filename == path
    assert list(tmp_path.iterdir()) == []
