"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from pipedsl.files import check_writable, write_atomically


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, "one\n")
    write_atomically(path, "zwei ü\n")
    assert path.read_bytes() == "zwei ü\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual, ours = tmp_path / "usual", tmp_path / "ours"
    usual.touch()
    write_atomically(ours, b"")
    assert ours.stat().st_mode == usual.stat().st_mode


def test_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o640)
    write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_follows_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("target")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_leaves_nothing_behind_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("where", ["fsync", "chmod", "replace"])
def test_a_full_disk_is_said_of_the_file_that_was_asked_for(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, where, full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_atomically(tmp_path / "x", "new")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_devices_are_written_to() -> None:
    write_atomically(os.devnull, "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_atomically(tmp_path, "x")
    with pytest.raises(OSError):
        write_atomically(tmp_path / "none" / "x", "x")


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "x.py"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(path, "")
    assert caught.value.filename == str(path)


# A shell's `>(...)` is a name /dev/fd/N; in a process of its own, as its outputs are what is written to.
SAY_AND_WRITE = """
import sys
from pipedsl.files import check_writable, write_atomically
print("before")
for path in sys.argv[1:]:
    check_writable(path)
    write_atomically(path, f"{path}\\n")
print("after")
"""


def say_and_write(*paths: str, stdout: int, keep: tuple[int, ...] = ()) -> bytes:
    command = [sys.executable, "-c", SAY_AND_WRITE, *paths]
    return subprocess.run(command, check=True, stdout=stdout, pass_fds=keep, timeout=120).stdout


def test_outputs_that_are_pipes_are_written_to(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/stdout")
    ours, theirs = os.pipe()
    named = f"/dev/fd/{theirs}"
    printed = say_and_write("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", str(link), named,
                            stdout=subprocess.PIPE, keep=(theirs,))  # fmt: skip
    os.close(theirs)
    with open(ours, "rb") as stream:
        assert stream.read() == f"{named}\n".encode()
    assert printed == f"before\n/dev/stdout\n/dev/fd/1\n/proc/self/fd/1\n{link}\nafter\n".encode()


def test_an_output_that_is_an_open_file_keeps_what_is_written_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open(path, "wb") as stream:
        say_and_write("/dev/stdout", stdout=stream.fileno())
    assert path.read_text() == "before\n/dev/stdout\nafter\n"


def test_a_named_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    check_writable(path)
    write_atomically(path, "x")
    reader.join(120)
    assert read == [b"x"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("dangling", errno.ENOENT),
        ("loop", errno.ELOOP),
        ("", errno.ENOENT),
        ("file/x", errno.ENOTDIR),
        ("folder", errno.EISDIR),
        ("/dev/fd/1.bound.json", errno.ENOENT),
        ("/dev/fd/987654", errno.ENOENT),
    ],
)
def test_what_cannot_be_written_is_named_and_told_why(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dangling").symlink_to("none/x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for attempt in (check_writable, lambda path: write_atomically(path, "x")):
        with pytest.raises(OSError) as caught:
            attempt(name)
        assert (caught.value.errno, caught.value.filename) == (number, name)


def test_a_link_to_what_is_not_there_yet_makes_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    check_writable(tmp_path / "link")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_text() == "x"
