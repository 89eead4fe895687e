"""Ctrl-C as KeyboardInterrupt, but not in the midst of what cannot bear it. Imports next to nothing.

Python prints an exception that is raised in a `__del__` and goes on, and the Ctrl-C is lost. z3's own Python is full of
them, and leaves objects half made where it is interrupted, whose `__del__` then fails; and so do imports. There the
signal comes again a moment later.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SOON = 0.01
"""Seconds after which the signal comes again."""

IMPORTS = "<frozen importlib._bootstrap>"
"""The file that Python has the code of `import` from."""

Handler = Callable[[int, FrameType | None], None]


def raise_where_safe(_signal: int, frame: FrameType | None) -> None:
    """The handler: KeyboardInterrupt now, or soon."""
    if is_fragile(frame):
        press_again()
    else:
        raise KeyboardInterrupt


def is_fragile(frame: FrameType | None) -> bool:
    """Whether an exception would be lost here, or leave others half done."""
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__") or ""
        if code.co_name == "__del__" or code.co_filename == IMPORTS or f"{module}.".startswith("z3."):
            return True
        frame = frame.f_back
    return False


def press_again() -> None:
    """Let the signal come once more, soon."""
    with suppress(RuntimeError):  # no thread can be had any more where the program is about to end
        start_new_thread(_press, (os.getpid(),))


def _press(process: int) -> None:
    time.sleep(SOON)
    os.kill(process, signal.SIGINT)


def handle_with(handler: Handler) -> None:
    """Have Ctrl-C handled so from now on; what it raises where that is printed and forgotten comes again."""

    def lost(unraisable: UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.signal(signal.SIGINT, handler)
            press_again()
        else:
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = lost
    signal.signal(signal.SIGINT, handler)


def ignore() -> None:
    """Nothing is left that Ctrl-C could end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.unraisablehook = _quiet


def _quiet(unraisable: UnraisableHookArgs) -> None:
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
