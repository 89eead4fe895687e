"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DESCRIPTORS = "/dev/fd"
"""The folder whose names are numbers of open files: where `/dev/stdout` leads, and what a shell gives for `>(...)`."""

MOST_LINKS = 40


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace what `path` names by `content`, in one step: a reader sees the old file or the new one.

    Text is written as UTF-8 with `\\n` line ends. A symbolic link keeps pointing where it does and its target is
    replaced; an existing file keeps its permissions. What is not a regular file (`/dev/null`, a pipe) is written
    to as it is, and so is an open file (`/dev/stdout`, `/dev/fd/N`), after what is there. Raises OSError, which names
    `path`.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    descriptor = _descriptor(path)
    if descriptor is not None:
        _write_to(descriptor, data, path)
        return
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        with _naming(path), open(path, "wb") as stream:  # raises for a directory
            stream.write(data)
        return
    target = Path(os.path.realpath(path))
    if mode is not None and not os.access(target, os.W_OK):
        raise _error(errno.EACCES, path)
    with _naming(path):  # and not the temporary file, or none
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an OSError name `path`."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError of `write_atomically`, as far as it is known before there is anything to write."""
    if _descriptor(path) is not None:
        return
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise _error(errno.EISDIR, path)
    if mode is not None and not os.access(path, os.W_OK):
        raise _error(errno.EACCES, path)
    folder = os.path.dirname(os.path.realpath(path))
    if mode is None and not os.path.isdir(folder):
        raise _error(errno.ENOENT, path)
    if (mode is None or stat.S_ISREG(mode)) and not os.access(folder, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, path)


def _descriptor(path: str | os.PathLike[str]) -> int | None:
    """The number of the open file that `path` names, also through links. Raises OSError where that is not open.

    By its name a socket cannot be opened, and a file would be written over from its beginning.
    """
    opened = os.path.realpath(DESCRIPTORS)
    name = os.fspath(path)
    for _ in range(MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(name) or ".")
        name = os.path.join(folder, os.path.basename(name))
        if folder == opened:
            number = os.path.basename(name)
            if not (number.isascii() and number.isdigit() and os.path.exists(name)):
                raise _error(errno.ENOENT, path)
            return int(number)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None


def _write_to(descriptor: int, data: bytes, path: str | os.PathLike[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # what was printed before comes before
            stream.flush()
    with _naming(path), os.fdopen(os.dup(descriptor), "wb") as copy:
        copy.write(data)


def _mode(path: str | os.PathLike[str]) -> int | None:
    if not os.fspath(path):
        raise _error(errno.ENOENT, path)
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _error(number: int, path: str | os.PathLike[str]) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def _umask() -> int:
    """The process's mask of permissions; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
