"""Pieces of work in processes of their own. One that is killed takes none of the others with it.

`concurrent.futures` gives up all that its processes do where one of them dies, as the system kills what takes too much
memory. Here each piece has a process, a lost one is tried once more, and Ctrl-C in this process alone reaches all of
them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread, current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any, Generic, TypeVar

from pipedsl.interrupts import handle_with, is_fragile, press_again, raise_where_safe

GRACE = 30.0
"""Seconds that processes get to bring what they have after Ctrl-C; a second Ctrl-C ends the wait."""

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Ended(Generic[Value]):
    """What became of a piece of work: a value; or why it is `lost`; or neither, where Ctrl-C came before."""

    value: Value | None = None
    lost: str = ""


@dataclass(frozen=True)
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    started: float
    retried: bool


@dataclass
class _Interrupts:
    """How often Ctrl-C was pressed; `wake` can be read from that moment on."""

    wake: int
    pressed: int = field(default=0)


def in_processes(
    work: Callable[[Item], Value],
    items: Sequence[Item],
    most: int,
    again: Callable[[int, float, bool], Item | None],
    done: Callable[[int, Value], None],
) -> list[Ended[Value]]:
    """What became of each item, in their order; at most so many processes at once. `done` is told of each value.

    `again`: what to try in place of the item of this number, whose process was lost after so many seconds: asked then,
    for one that is tried at once, and where that is None once more when all others have ended, for one that is tried
    alone (`True`); None where it is not to be tried. After Ctrl-C what runs is interrupted and has `GRACE` to answer,
    and nothing more is begun. Raises what a piece of work raises, and ends the others.
    """
    found: dict[int, Ended[Value]] = {}
    waiting = list(enumerate(items))
    missing: list[tuple[int, float]] = []  # lost, and after how many seconds
    running: dict[Connection, _Worker] = {}
    limit: float | None = None
    with _counted_interrupts() as interrupts:
        try:
            while True:
                if interrupts.pressed and limit is None:
                    limit = monotonic() + GRACE
                    for worker in running.values():
                        _interrupt(worker)
                if limit is None:
                    while waiting and len(running) < most:
                        _start(running, work, *waiting.pop(0), retried=False)
                    while missing and not running:
                        number, after = missing.pop(0)
                        other = again(number, after, True)
                        if other is not None:
                            _start(running, work, number, other, retried=True)
                if not running or interrupts.pressed > 1 or (limit is not None and monotonic() >= limit):
                    break
                awaited: list[Connection | int] = [*running, *([interrupts.wake] if limit is None else [])]
                for ready in wait(awaited, 1.0 if limit is not None else None):
                    if not isinstance(ready, Connection):
                        continue
                    worker = running[ready]
                    found[worker.number] = ended = _answer(worker)
                    del running[ready]
                    if ended.value is not None:
                        try:
                            done(worker.number, ended.value)
                        except KeyboardInterrupt:
                            interrupts.pressed += 1
                    elif ended.lost and not worker.retried and limit is None:
                        after = monotonic() - worker.started
                        other = again(worker.number, after, False)
                        if other is None:
                            missing.append((worker.number, after))
                        else:
                            _start(running, work, worker.number, other, retried=True)
        finally:
            for worker in running.values():
                worker.process.kill()
                worker.process.join()
    return [found.get(number, Ended()) for number in range(len(items))]


@contextmanager
def _counted_interrupts() -> Iterator[_Interrupts]:
    """Ctrl-C is counted and wakes whoever waits, so that it can come at any moment and nothing is half done.

    Where it would not raise KeyboardInterrupt here (in another thread, or with a handler of the program's own) it does
    what it would do.
    """
    wake, waker = os.pipe()
    interrupts = _Interrupts(wake)

    def count(_signal: int, _frame: FrameType | None) -> None:
        interrupts.pressed += 1
        if interrupts.pressed == 1:
            os.write(waker, b"x")

    before = signal.getsignal(signal.SIGINT)
    raises = before in (signal.default_int_handler, raise_where_safe)
    ours = raises and current_thread() is main_thread()
    if ours:
        signal.signal(signal.SIGINT, count)
    try:
        yield interrupts
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
        os.close(wake)
        os.close(waker)


def _start(
    running: dict[Connection, _Worker], work: Callable[[Any], object], number: int, item: object, *, retried: bool
) -> None:
    # `spawn`: a search may have threads of z3 by now, which a fork would not survive.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, work, item), daemon=True)
    resource_tracker.ensure_running()  # whose own start would let the signal through below
    # The process begins with the signal held back, until it can deal with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    running[ours] = _Worker(number, process, ours, monotonic(), retried)


def _interrupt(worker: _Worker) -> None:
    # Not yet waited for, so its number is no other's; and where it has ended the signal goes nowhere.
    if worker.process.pid is not None and worker.process.exitcode is None:
        os.kill(worker.process.pid, signal.SIGINT)


def _answer(worker: _Worker) -> Ended[Any]:
    """What a process that has answered or died leaves. Raises what its work raised."""
    try:
        answer, error = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        return Ended(lost=_death(worker.process.exitcode or 0))
    finally:
        worker.connection.close()
    worker.process.join()
    if error is not None:
        raise error
    assert isinstance(answer, Ended)
    return answer


def _death(status: int) -> str:
    if status >= 0:
        return f"a process ended with status {status}"
    hint = ", as the system does where memory runs out" if -status == signal.SIGKILL else ""
    return f"a process was killed by signal {-status}{hint}"


# ------------------------------------------------------------- in the process


def _work(connection: Connection, work: Callable[[Any], object], item: object) -> None:
    """Send what the work gives. Ctrl-C ends the work once, and what is then sent is sent."""
    os.setpgrp()  # a terminal's Ctrl-C comes by the process that waits, so once
    Thread(target=_end_with_parent, daemon=True).start()
    handle_with(_once)
    answer: tuple[Ended[object], Exception | None]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        answer = Ended(work(item)), None
    except KeyboardInterrupt:
        answer = Ended(), None
    except MemoryError:
        answer = Ended(lost="a process ran out of memory"), None
    except Exception as error:
        answer = Ended(), error
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(answer)


def _once(_signal: int, frame: FrameType | None) -> None:
    if is_fragile(frame):
        press_again()
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """A process in a group of its own would search on where the one that waits was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
