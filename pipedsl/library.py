"""From what the user names to bytes: a path, `-`, or the name of a shipped schedule."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from pipedsl.diagnostics import Limits

SUFFIX = ".sched"
SHIPPED_PREFIX = "<shipped>/"


class UsageError(Exception):
    """Something outside the text is wrong (no such file, a bad option). Its string is for the user; exit status 2."""


def shipped() -> list[str]:
    """The names of the shipped schedules, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder().glob(f"*{SUFFIX}"))


def folder() -> Path:
    """Where the shipped schedules are: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "schedules"
    return inside if inside.is_dir() else package.parent / "schedules"


def find(file_or_name: str, limits: Limits | None = None) -> tuple[str, bytes]:
    """The name to show and the content of a file, of `-` (standard input) or of a shipped schedule.

    A file wins over a shipped schedule of the same name. At most one byte more than `limits.source_bytes` is read,
    so that who parses it can tell that it is too large. Raises UsageError.
    """
    size = (limits or Limits()).source_bytes + 1
    if file_or_name == "-":
        return "<stdin>", _standard_input(size)
    if not file_or_name:
        raise UsageError("the name of a schedule is empty")
    path = Path(file_or_name)
    if _is_name(file_or_name) and not _is_readable_kind(path):
        known = folder() / f"{file_or_name}{SUFFIX}"
        if os.path.isfile(known):
            return f"{SHIPPED_PREFIX}{known.name}", _read(known, size)
    return file_or_name, _read(path, size)


def find_text(file_or_name: str, limits: Limits | None = None) -> tuple[str, bytes]:
    """`find` for who wants the text of a schedule: UsageError for the other forms that `verify` reads."""
    name, data = find(file_or_name, limits)
    start = data[:100].strip()[:1] if file_or_name == "-" else b""  # no text starts with a digit or a brace
    for suffix, what, known in ((".json", "calls in JSON", start == b"{"), (".csv", "a CSV", start.isdigit())):
        if known or file_or_name.endswith(suffix):
            instead = f"; that is read from a file named *{suffix}" if known else ", where a schedule's text is wanted"
            raise UsageError(f"{name} holds {what}{instead}")
    return name, data


def _is_name(text: str) -> bool:
    return "\0" not in text and not any(separator in text for separator in (os.sep, os.altsep) if separator)


def _is_readable_kind(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isdir(path)  # false for names no file can have, too


def _read(path: Path, size: int) -> bytes:
    """The first `size` bytes. Never waits for a pipe that nobody writes to."""
    shown = str(path)
    try:
        # Without O_NONBLOCK, opening a pipe that has no writer would wait for one forever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise UsageError(f"no such file: {shown}{_suggestion(shown)}") from None
    except ValueError:
        raise UsageError(f"not a file name: {shown!r}") from None
    except OSError as error:
        raise UsageError(f"cannot open {shown}: {error.strerror}") from None
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            os.close(handle)
            raise UsageError(f"{shown} is a directory")
        with open(handle, "rb") as stream:
            if not stat.S_ISREG(mode):
                os.set_blocking(handle, True)
            data = stream.read(size)
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}") from None
    if not data and stat.S_ISFIFO(mode):
        raise UsageError(f"nothing came through the pipe {shown}")
    return data


def _standard_input(size: int) -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    try:
        return sys.stdin.buffer.read(size)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read standard input: {error}") from None


def _suggestion(name: str) -> str:
    from difflib import get_close_matches  # costs milliseconds, and only failures need it

    if not _is_name(name):
        return ""
    names = shipped()
    close = get_close_matches(name.removesuffix(SUFFIX).lower(), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean the shipped schedule `{close[0]}`?"
    return f", and no shipped schedule of that name (there are {', '.join(names)})" if names else ""
