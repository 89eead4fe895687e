"""Writing files whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pipedsl.files import write_atomically


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
