"""Pieces of work in processes of their own: killed, interrupted, failed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pieces import await_file, piece

from pipedsl import search_processes
from pipedsl.search_processes import Ended, in_processes

KILLED = "a process was killed by signal 9, as the system does where memory runs out"


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background, whose shell has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Run:
    """`in_processes`, with what was told on the way."""

    def __init__(self, folder: Path, most: int = 2, retried: tuple[bool, ...] = (False, True)) -> None:
        """`retried`: whether what is lost is tried again at once (False), alone (True), or not at all."""
        self.folder, self.most, self.retried = folder, most, retried
        self.told: dict[int, str] = {}
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, *names: tuple[str, str]) -> list[Ended[str]]:
        items = [(what, self.folder / name) for what, name in names]

        def again(number: int, after: float, alone: bool) -> tuple[str, Path] | None:
            assert after >= 0
            self.asked.append((number, alone))
            return items[number] if alone in self.retried else None

        return in_processes(piece, items, self.most, again, self.done)

    def done(self, number: int, value: str) -> None:
        self.told[number] = value

    def times(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0


def test_values_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    run = Run(tmp_path)
    found = run(("after the other", "first"), ("x", "other"), ("y", "third"))
    assert found == [Ended("after the other, 1"), Ended("x, 1"), Ended("y, 1")]
    assert run.told == {0: "after the other, 1", 1: "x, 1", 2: "y, 1"}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("what", ["killed once", "too large"])
def test_what_is_lost_is_tried_again_and_the_others_stay(what: str, alone: bool, tmp_path: Path) -> None:
    run = Run(tmp_path, retried=(alone,))
    assert run((what, "a"), ("x", "b")) == [Ended(f"{what}, 2"), Ended("x, 1")]
    assert run.times("b") == 1
    assert run.asked == [(0, False), (0, True)][: 1 + alone]


def test_what_is_tried_again_at_once_does_not_wait_for_the_others(tmp_path: Path) -> None:
    """The other one answers after it has begun again."""
    found = Run(tmp_path)(("killed once", "other"), ("after another try", "b"))
    assert found == [Ended("killed once, 2"), Ended("after another try, 1")]


def test_what_is_tried_alone_begins_when_the_others_have_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, retried=(True,))
    assert run(("killed once", "a"), ("x", "b"), ("x", "c")) == [Ended("killed once, 2"), Ended("x, 1"), Ended("x, 1")]
    assert list(run.told) in ([1, 2, 0], [2, 1, 0])


def test_what_is_lost_twice_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run(("killed", "a"), ("x", "b"), ("leaves", "c")) == [
        Ended(lost=KILLED), Ended("x, 1"), Ended(lost="a process ended with status 3"),
    ]  # fmt: skip
    assert (run.times("a"), run.times("b"), run.times("c")) == (2, 1, 2)
    assert run.told == {1: "x, 1"}


def test_what_has_no_time_left_is_not_tried_again(tmp_path: Path) -> None:
    run = Run(tmp_path, retried=())
    assert run(("killed", "a"), ("x", "b")) == [Ended(lost=KILLED), Ended("x, 1")]
    assert run.times("a") == 1


def test_what_fails_is_raised_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such piece"):
        Run(tmp_path)(("until stopped", "a"), ("fails", "b"))


def test_ctrl_c_to_this_process_alone_reaches_the_others(tmp_path: Path) -> None:
    class Pressed(Run):
        def done(self, number: int, value: str) -> None:
            super().done(number, value)
            if number == 1:
                await_file(self.folder / "a.waits")
                signal.raise_signal(signal.SIGINT)

    run = Pressed(tmp_path)
    found = run(("until stopped", "a"), ("x", "b"), ("until stopped", "c"))
    assert found == [Ended("stopped"), Ended("x, 1"), Ended()]
    assert run.times("c") == 0, "nothing is begun after Ctrl-C"


@pytest.mark.parametrize("press_first", [False, True])
def test_ctrl_c_as_a_process_is_started_reaches_it(
    press_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = search_processes._start

    def pressed(*args: Any, **options: Any) -> None:
        if press_first:
            signal.raise_signal(signal.SIGINT)
        start(*args, **options)
        await_file(tmp_path / "a.waits")
        if not press_first:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(search_processes, "_start", pressed)
    assert Run(tmp_path, most=1)(("until stopped", "a"), ("x", "b")) == [Ended("stopped"), Ended()]


def test_ctrl_c_is_not_lost_in_what_ends(tmp_path: Path) -> None:
    assert Run(tmp_path)(("until stopped, once lost", "a"), ("x", "b")) == [Ended("stopped"), Ended("x, 1")]


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    class Pressed(Run):
        def done(self, number: int, value: str) -> None:
            await_file(self.folder / "a.deaf")
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    assert Pressed(tmp_path)(("deaf", "a"), ("x", "b")) == [Ended(), Ended("x, 1")]
