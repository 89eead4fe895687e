"""Files written whole or not at all: a disk that is full leaves what was there before."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys

_MOST_LINKS = 40


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Replace what `path` names by `text`, in one step. OSError, which names `path`, where that cannot be done.

    What is no regular file, as `/dev/null` or a pipe, stays what it is and is written to, and so is an open file
    (`/dev/stdout`), after what is there.
    """
    temporary = None
    try:
        number = _number(path)
        if number is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # what was printed before comes before
                    stream.flush()
            with os.fdopen(os.dup(number), "w", encoding="utf-8") as stream:
                stream.write(text)
            return
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
            return
        target = os.path.realpath(path)
        temporary = os.path.join(os.path.dirname(target), f".pipedsl-{secrets.token_hex(8)}")
        with open(temporary, "x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):  # it names the temporary file, or none
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
        raise


def _number(path: str | os.PathLike[str]) -> int | None:
    """The number of the open file that a path like `/dev/stdout` leads to; None of other paths.

    By its name a pipe seems to be nowhere, and a file that something is printed to would be another one from then on.
    """
    opened, name = os.path.realpath("/dev/fd"), os.fspath(path)
    for _ in range(_MOST_LINKS):
        folder, last = os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name)
        if folder == opened:
            return int(last) if last.isdecimal() else None
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None
