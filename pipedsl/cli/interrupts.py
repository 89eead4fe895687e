"""What Ctrl-C does before, during and after a command. Imports next to nothing, so that it can come first."""

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
        from pipedsl.interrupts import handle_with, raise_where_safe

        handle_with(raise_where_safe)


def ignore_from_now_on() -> None:
    """The command has said what it had to say."""
    from pipedsl.interrupts import ignore, raise_where_safe

    if signal.getsignal(signal.SIGINT) in (_end, raise_where_safe):
        ignore()


def _end(_signal: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
