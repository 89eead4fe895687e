"""What a rank says when it is told to end: torchrun sends SIGTERM to all ranks a tenth of a second after one has died.

Python runs signal handlers when the main thread comes back to it, which a blocked wait does not. But the number of the
signal is written to a socket at once, and a thread that reads there says the words and ends the process; the handler
itself has nothing to do but to be there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pipedsl.runtime.wire import say

_PATIENCE = 1.0  # seconds that finding the words may take


class LastWords:
    """SIGTERM's handler while a step runs, if nobody else has one: says what `compose` gives, ends as without it.

    `leave` is called once that is said; it must not take long. Where no file can be opened there are no words.
    """

    def __init__(self, compose: Callable[[], str], leave: Callable[[], None]) -> None:
        self._compose = compose
        self._leave = leave
        self._installed = False
        self._thread: threading.Thread | None = None
        try:
            self._inbox, self._outbox = socket.socketpair()
        except OSError:  # too many files open: do without
            return
        self._outbox.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="pipedsl-last-words", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        if self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._outbox.send(b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._inbox.close()
            self._outbox.close()

    def install(self) -> None:
        """Listen from here on, where that is possible: in the main thread, with nobody else listening."""
        if self._thread is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        other = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        if other != -1:  # as an event loop's
            signal.set_wakeup_fd(other)
            return
        signal.signal(signal.SIGTERM, self)
        self._installed = True

    def remove(self) -> None:
        """Leave SIGTERM as it was. One that came before still counts."""
        if not self._installed:
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) is self:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        other = signal.set_wakeup_fd(-1)
        if other not in (-1, self._outbox.fileno()):
            signal.set_wakeup_fd(other)

    def __call__(self, number: int, frame: Any) -> None:
        pass

    def _listen(self) -> None:
        while number := self._inbox.recv(1)[0]:
            if number == signal.SIGTERM:
                self._end()

    def _end(self) -> None:
        """Say the words, if they are found in time, and end the process."""
        found: list[str] = []
        finder = threading.Thread(target=lambda: found.append(self._compose()), daemon=True)
        finder.start()
        finder.join(_PATIENCE)
        if found and found[0]:
            say(found[0])
        with contextlib.suppress(Exception):
            self._leave()
        _end_by(signal.SIGTERM)


def _end_by(number: int) -> None:
    """What the signal does where it has no handler. `signal.signal` is for the main thread alone."""
    with contextlib.suppress(AttributeError):
        reset = ctypes.pythonapi.PyOS_setsig
        reset.argtypes, reset.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        reset(number, None)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(128 + number)


def _forget_in_child() -> None:
    """A process forked in a step is no rank: let SIGTERM end it, and it alone."""
    if isinstance(signal.getsignal(signal.SIGTERM), LastWords):
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
