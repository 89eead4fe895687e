"""Standard output and error that cannot be written to: nobody reads them, or the disk is full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO


def forget_output() -> None:
    """Let the flush at the end of the process go nowhere, silently."""
    _forget(sys.stdout)


def _forget(stream: TextIO) -> None:
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def say(message: Callable[[], None]) -> None:
    """Have `message` print to standard error. Where that cannot be, there is nowhere to say so: the status has to."""
    try:
        message()
    except OSError:
        _forget(sys.stderr)


def keep(say: Callable[[bool], None]) -> bool:
    """Have `say(False)` print to standard output or, where that cannot be, `say(True)` to standard error.

    Whether it was the former. What took an hour to find is not to be lost with a full disk; where the reader is gone,
    nobody wants it, and BrokenPipeError is raised.
    """
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed")
        say(False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_output()
        if sys.stderr is not None:
            sys.stderr.write(f"error: cannot write the output: {error.strerror or error}; it follows here\n")
        say(True)
        return False
    return True
