"""Questions to solvers of compiled code, which Ctrl-C ends at any moment.

No handler of Python runs while such code does. Those that the solvers install instead are worse: they take a Ctrl-C for
an end of the one question, or miss it, and z3's waits forever where it comes as z3 installs it or takes it away. So the
solvers are told to leave the signal alone, and are asked in a thread, for whose end the main one waits.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import TypeVar

OFTEN = 0.05  # seconds between looks for Ctrl-C
SOON = 0.01  # seconds between stops of what may not have begun

Answer = TypeVar("Answer")


def ask(question: Callable[[], Answer], stop: Callable[[], None]) -> Answer:
    """What the question gives or raises. Ctrl-C stops it, and what the handler raises is raised when it has ended.

    `stop` need not do anything where it comes before the question has begun.
    """
    if not _interrupts_raise():
        return question()
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(question())
        except BaseException as error:
            errors.append(error)

    asking = Thread(target=answer, daemon=True)
    with _interrupts_held() as held:
        try:
            asking.start()
            while asking.is_alive() and not held:
                asking.join(OFTEN)
        finally:
            # Nobody may go on, let alone end the program, while the solver is at work.
            while asking.is_alive():
                stop()
                asking.join(SOON)
    if errors:
        raise errors.pop()  # kept nowhere, as it holds this frame
    return answers.pop()


def _interrupts_raise() -> bool:
    """Whether Ctrl-C may raise something here."""
    return callable(signal.getsignal(signal.SIGINT)) and current_thread() is main_thread()


@contextmanager
def _interrupts_held() -> Iterator[list[BaseException]]:
    """What the handler of Ctrl-C raises is kept in the list, and the first of it raised at the end.

    However often it is pressed: an exception could come in the midst of any `except` or `finally`.
    """
    held: list[BaseException] = []
    before = signal.getsignal(signal.SIGINT)
    assert callable(before)

    def hold(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except BaseException as error:
            held.append(error)

    signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # and not another, that the handler itself has put there
            signal.signal(signal.SIGINT, before)
    if held:
        raise held.pop(0)


__all__ = ["ask"]
