"""One line on a terminal that says how a search stands, and since when it runs, which goes on between news.

A thread writes it, as a search may reason for minutes in code that is not Python's. It begins with the first news,
leaves Ctrl-C to the search, which it reaches as ever, and has ended when the line is cleared.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import TextIO

from pipedsl.render.search import progress_text
from pipedsl.search_runs import News

PERIOD = 1.0
"""Seconds after which the line is written anew."""


class Progress:
    """Shown on `stream` (standard error); nothing where that is no terminal."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = monotonic, period: float = PERIOD
    ) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock, self._period = clock, period
        self._started = clock()
        self._news: News | None = None
        self._shown = 0
        self._ended, self._wake = Event(), Event()
        self._thread: Thread | None = None

    def listener(self) -> Callable[[News], None] | None:
        return self._tell if self._stream is not None and self._stream.isatty() else None

    def clear(self) -> None:
        """The line is gone, and so is the thread. What is told later is not shown."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _tell(self, news: News) -> None:
        self._news = news
        if self._thread is None and not self._ended.is_set():
            self._thread = Thread(target=self._run, daemon=True)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the thread inherits
            try:
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._wake.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            news = self._news
            if news is not None:
                text = progress_text(news, self._clock() - self._started)
                self._write("\r" + text.ljust(self._shown))
                self._shown = len(text)
            self._wake.wait(self._period)

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        with suppress(OSError, ValueError):  # a terminal that has gone, or a stream that is closed
            self._stream.write(text)
            self._stream.flush()
