"""Ctrl-C while a solver of compiled code is at work: it is never lost, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread, Timer, active_count, current_thread, main_thread
from typing import Any

import pytest

from verify.search.interruptible import ask
from verify.search.solver import check, new_solver, stop_after


class Pressed(Exception):
    """What the handler raises here: a KeyboardInterrupt that comes too late would end the tests."""


@contextmanager
def handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def raises() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Pressed

    with handled_by(handler):
        yield


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """All Ctrl-C so far, of which nothing else comes."""
    signals: list[int] = []
    with handled_by(lambda number, _: signals.append(number)):
        yield signals


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_main() -> None:
    ident = main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


# ---------------------------------------------------------------- any solver


class Solver:
    """Ctrl-C comes `presses` times just before it answers; or one more with each stop that it is asked for, and it
    answers after `stops` of them."""

    def __init__(self, presses: int, stops: int = 0) -> None:
        self.presses, self.stops, self.ended = presses, stops, Event()

    def solve(self) -> str:
        for _ in range(self.presses):
            press_main()
        if self.stops:
            self.ended.wait()
        return "answer"

    def stop(self) -> None:
        self.stops -= 1
        if self.stops <= 0:
            self.ended.set()
        signal.raise_signal(signal.SIGINT)


def test_interrupts_end_it_with_its_thread_however_many_they_are(raises: None) -> None:
    before, handler = active_count(), signal.getsignal(signal.SIGINT)
    solver = Solver(presses=1, stops=3)
    try:
        with pytest.raises(Pressed):
            ask(solver.solve, solver.stop)
        assert (solver.stops <= 0, active_count()) == (True, before)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        solver.ended.set()


class Answering(Solver):
    """Ctrl-C comes when its thread has done so many steps (calls and returns) after it answered."""

    def solve(self) -> str:
        steps = count()

        def step(*_: object) -> None:
            if next(steps) == self.presses:
                press_main()

        sys.setprofile(step)  # of this thread alone
        return "answer"


@pytest.mark.parametrize("steps", range(8))
def test_an_interrupt_as_it_answers_does_not_make_it_wait_for_another_answer(raises: None, steps: int) -> None:
    before = active_count()
    solver = Answering(steps)
    with pytest.raises(Pressed):
        ask(solver.solve, solver.stop)
    assert active_count() == before


def test_a_handler_that_raises_nothing_leaves_the_answer(noted: list[int]) -> None:
    solver = Solver(presses=1)
    assert ask(solver.solve, solver.stop) == "answer"
    assert noted == [signal.SIGINT]


def test_a_handler_may_put_another_in_its_place() -> None:
    def once(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Pressed

    solver = Solver(presses=1)
    with handled_by(once):
        with pytest.raises(Pressed):
            ask(solver.solve, solver.stop)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_the_question_raises_is_raised(raises: None) -> None:
    def fails() -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        ask(fails, lambda: None)


def test_only_the_main_thread_waits_for_another(raises: None) -> None:
    def asked_in() -> Thread:
        return ask(current_thread, lambda: None)

    threads: list[Thread] = []
    other = Thread(target=lambda: threads.append(asked_in()))
    other.start()
    other.join()
    assert threads == [other]
    assert asked_in() is not main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert asked_in() is main_thread()
    finally:
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------ z3


def hard() -> Any:
    """More pigeons than holes: nothing for z3 to do for minutes but to look."""
    z3 = pytest.importorskip("z3")
    solver, holes = new_solver(0), 12
    sits = [[z3.Bool(f"{pigeon}.{hole}", solver.ctx) for hole in range(holes)] for pigeon in range(holes + 1)]
    solver.add([z3.Or(row) for row in sits])
    for hole in range(holes):
        column = [row[hole] for row in sits]
        solver.add([z3.Or(z3.Not(one), z3.Not(other)) for one in column for other in column if one is not other])
    return solver


PRESSES = """
import os, random, sys, time
rng = random.Random(0)
while os.read(0, 1):
    time.sleep(rng.uniform(0, 0.001))
    os.kill(int(sys.argv[1]), 2)
    os.write(1, b"x")
"""

ASKS = """
import os, select, signal, subprocess, sys, z3
from verify.search.solver import check, new_solver

came = []
signal.signal(signal.SIGINT, lambda *_: came.append(1))
solver = new_solver(0)
solver.add(z3.Int("x", solver.ctx) > 3)
command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as presses:
    for pressed in range(1, 801):
        presses.stdin.write(b"x")
        while not select.select([presses.stdout], [], [], 0)[0]:
            assert check(solver) == z3.sat
        presses.stdout.read(1)
        assert check(solver) == z3.sat
        assert len(came) == pressed, f"number {pressed} is lost"
    presses.stdin.close()
print("all came")
"""


@pytest.mark.parametrize("after", [0.0, 0.001, 0.01, 0.3])
def test_z3_is_ended(raises: None, after: float) -> None:
    solver, before = hard(), active_count()
    timer = Timer(after, press)
    started = time.monotonic()

    def asked() -> None:
        timer.start()
        check(solver, stop=stop_after(120))

    with pytest.raises(Pressed):
        asked()
    assert time.monotonic() - started < 30
    timer.join()
    assert active_count() == before


def test_z3_is_ended_where_it_has_not_begun(raises: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that comes before it listens is lost on it."""
    solver = hard()
    begin = solver.check

    def late() -> Any:
        press()
        time.sleep(0.2)
        return begin()

    monkeypatch.setattr(solver, "check", late)
    started = time.monotonic()
    with pytest.raises(Pressed):
        check(solver, stop=stop_after(120))
    assert time.monotonic() - started < 30


def test_none_is_lost_and_nothing_hangs_where_z3_answers_all_the_same() -> None:
    """z3's own handler forgets what comes as it answers, and waits for itself where it is just being installed."""
    pytest.importorskip("z3")
    command = [sys.executable, "-c", ASKS, PRESSES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "all came\n", done.stderr


def test_z3_goes_on_where_the_handler_raises_nothing(noted: list[int]) -> None:
    solver = hard()
    timer = Timer(0.2, press)
    timer.start()
    started = time.monotonic()
    assert str(check(solver, stop=stop_after(2))) == "unknown"
    assert time.monotonic() - started > 1
    assert noted == [signal.SIGINT]


def test_an_end_by_another_hand_is_no_ctrl_c(noted: list[int]) -> None:
    solver = hard()
    timer = Timer(0.2, solver.ctx.interrupt)
    timer.start()
    assert str(check(solver, stop=stop_after(120))) == "unknown"
    assert noted == []


def test_z3_is_asked_in_other_threads_too(raises: None) -> None:
    z3 = pytest.importorskip("z3")
    solver, answers = new_solver(0), []
    solver.add(z3.Int("x", solver.ctx) > 3)
    other = Thread(target=lambda: answers.append(str(check(solver))))
    other.start()
    other.join()
    assert answers == ["sat"]
