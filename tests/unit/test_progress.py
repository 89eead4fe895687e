"""The line on a terminal that says how a search stands."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from io import StringIO
from itertools import count
from pathlib import Path

from pipedsl.cli.progress import Progress
from pipedsl.search_runs import News

LONG = 60.0  # seconds for what takes next to none

NEWS = News("moves", Fraction(27), Fraction(26), 0.0, "")


class Terminal(StringIO):
    """Says when something was written, and notes from which thread and with which signals held back."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.awaited, self.seen = awaited, threading.Event()
        self.threads: set[threading.Thread] = set()
        self.blocked: list[bool] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.threads.add(threading.current_thread())
        self.blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        written = super().write(text)
        if self.awaited in self.getvalue():
            self.seen.set()
        return written


def test_time_goes_on_between_news() -> None:
    """Of one piece of news: a clock that goes on by a second whenever it is asked, and a short period."""
    terminal, seconds = Terminal("27, bound 26, gap 3.85 %, 5 s"), count()
    progress = Progress(terminal, lambda: float(next(seconds)), 0.001)
    tell = progress.listener()
    assert tell is not None
    tell(NEWS)
    assert terminal.seen.wait(LONG)
    progress.clear()
    assert terminal.getvalue().startswith("\r27, bound 26, gap 3.85 %, 1 s\r27, bound 26, gap 3.85 %, 2 s")


def test_nothing_is_left_when_it_is_cleared() -> None:
    """Neither the line nor the thread, and what is told later is not shown. The thread took no Ctrl-C."""
    terminal = Terminal("bound 26")
    progress = Progress(terminal, lambda: 0.0)
    tell = progress.listener()
    assert tell is not None
    tell(NEWS)
    assert terminal.seen.wait(LONG)
    [writer] = terminal.threads
    assert all(terminal.blocked)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    progress.clear()
    assert not writer.is_alive()
    line = len("27, bound 26, gap 3.85 %, 0 s")
    assert terminal.getvalue().endswith("\r" + " " * line + "\r")
    before = terminal.getvalue()
    tell(NEWS)
    progress.clear()
    assert terminal.getvalue() == before
    assert threading.current_thread() in terminal.threads, "who clears the line is who asked for it"


def test_what_is_no_terminal_is_told_nothing() -> None:
    assert Progress(StringIO()).listener() is None


def test_a_terminal_that_has_gone_ends_nothing() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            super().write(text)
            raise OSError(5, "Input/output error")

    terminal = Gone("bound 26")
    progress = Progress(terminal)
    tell = progress.listener()
    assert tell is not None
    tell(NEWS)
    assert terminal.seen.wait(LONG)
    progress.clear()


def test_an_interrupt_on_a_terminal_keeps_the_best(tmp_path: Path) -> None:
    asked = ["search", "zero_bubble", "-D", "p=8", "-D", "m=32", "-D", "cap=5", "--budget", "5000", "--no-cache"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pipedsl", *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=tmp_path) as process:
        os.close(theirs)
        shown = b""
        while b"gap" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # nobody has the other end any more
                break
            shown += more
        assert process.stdout is not None
        output = process.stdout.read()
        assert process.wait(LONG) == 0
    os.close(ours)
    assert ", interrupted" in output
    assert shown.endswith(b" \r"), "the line is cleared"
