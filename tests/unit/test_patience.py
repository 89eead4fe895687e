"""The thread that asks the ranks' store: what it answers, how long it is waited for, and when it ends."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch.distributed as dist

from pipedsl.runtime import patience
from pipedsl.runtime.patience import Helper, PatientStore, StoreSilent


def ask(store: Any) -> threading.Thread:
    """Ask a store something through a helper of its own; the helper's thread."""
    before = set(threading.enumerate())
    patient = PatientStore(store, Helper(60))
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon  # no process waits for it
    patient.set("key", "value")
    assert patient.get("key") == b"value"
    return thread


class Broken:
    """A store whose connection is lost."""

    def set(self, key: str, value: str) -> None:
        raise ConnectionError("on purpose")


def test_its_thread_ends_with_the_last_store() -> None:
    thread = ask(dist.HashStore())
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_its_thread_ends_after_a_question_that_failed() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConnectionError, match="on purpose"):
        ask(Broken())
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_a_store_that_is_silent_is_given_up() -> None:
    answered = threading.Event()
    before = set(threading.enumerate())
    helper = Helper(0.01)
    (thread,) = set(threading.enumerate()) - before
    with pytest.raises(StoreSilent, match=r"has not answered for 0\.01 s"):
        helper.call(answered.wait)
    answered.set()
    del helper
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(("first", "later", "said"), [(0.04, 0.01, 0.01), (0.01, 0.04, 0.01)])
def test_a_store_that_was_silent_once_is_not_waited_for_long_again(
    first: float, later: float, said: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never longer than at first."""
    monkeypatch.setattr(patience, "_MORE", later)
    answered, helper = threading.Event(), Helper(first)
    for seconds in (first, said, said):
        with pytest.raises(StoreSilent, match=f"has not answered for {seconds:g} s"):
            helper.call(answered.wait)
    answered.set()


class Noted:
    """A store that notes what it is asked, and by whom."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        answers = {"check": True, "get": b"it", "set": None, "add": 7, "compare_set": b"was", "delete_key": False}

        def ask(*given: Any) -> Any:
            self.asked.append((name, *given, threading.current_thread().name))
            return answers[name]

        return ask


def test_every_question_is_asked_by_the_helper() -> None:
    store = Noted()
    patient = PatientStore(store, Helper(60))
    answers = [
        patient.check(["a", "b"]),
        patient.get("a"),
        patient.set("a", "x"),  # type: ignore[func-returns-value]
        patient.add("a", 3),
        patient.compare_set("a", "old", "new"),
        patient.delete_key("a"),
    ]
    assert answers == [True, b"it", None, 7, b"was", False]
    assert store.asked == [
        (*each, "pipedsl-store")
        for each in [
            ("check", ["a", "b"]),
            ("get", "a"),
            ("set", "a", "x"),
            ("add", "a", 3),
            ("compare_set", "a", "old", "new"),
            ("delete_key", "a"),
        ]
    ]
