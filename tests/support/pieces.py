"""Pieces of work for processes of their own; a piece is named by a file that tells how often it was begun."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FOREVER = 600.0


class Pressed:
    """Ctrl-C comes where what it raises is lost."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def begun(path: Path) -> int:
    """How often, this time included."""
    with path.open("a") as stream:
        stream.write("x")
    return path.stat().st_size


def piece(item: tuple[str, Path]) -> str:
    """What the first word says, and as an answer the number of the try."""
    what, path = item
    times = begun(path)
    if what == "killed" or (what == "killed once" and times == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leaves":
        os._exit(3)
    if what == "too large" and times == 1:
        raise MemoryError
    if what == "fails":
        raise ValueError("no such piece")
    if what in ("until stopped", "until stopped, once lost"):
        try:
            if what != "until stopped":
                Pressed()
            path.with_suffix(".waits").touch()
            time.sleep(FOREVER)
        except KeyboardInterrupt:
            return "stopped"
    if what == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        path.with_suffix(".deaf").touch()
        time.sleep(FOREVER)
    if what == "after the other":
        await_file(path.with_name("other"))
    if what == "after another try":
        await_file(path.with_name("other"), times=2)
    return f"{what}, {times}"


def await_file(path: Path, times: int = 0) -> None:
    """Until the file is there, for a piece that has begun so many times."""

    def there() -> bool:
        return path.exists() and path.stat().st_size >= times

    end = time.monotonic() + FOREVER / 10
    while not there() and time.monotonic() < end:
        time.sleep(0.01)
    assert there()
