"""What Ctrl-C does while the program is still loading. Imports next to nothing, so that it can come first."""

import os
import signal

from pipedsl.cli.status import INTERRUPTED


def end_at_once() -> None:
    """Until `raise_again`, Ctrl-C ends the process, where by default it would raise in the midst of some import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From here on the command says what Ctrl-C ended."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
