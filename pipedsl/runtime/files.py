"""Files written whole or not at all: a disk that is full leaves what was there before."""

from __future__ import annotations

import contextlib
import os
import secrets


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Replace what `path` names by `text`, in one step. OSError, which names `path`, where that cannot be done."""
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):  # as /dev/null, which must stay what it is
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return
    temporary = os.path.join(os.path.dirname(target), f".pipedsl-{secrets.token_hex(8)}")
    try:
        with open(temporary, "x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # it names the temporary file, or none
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
        raise
