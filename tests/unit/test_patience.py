"""The thread that asks the ranks' store: what it answers, how long it is waited for, and when it ends."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch.distributed as dist

from pipedsl.runtime.patience import Helper, PatientStore, StoreSilent


def ask(store: Any) -> threading.Thread:
    """Ask a store something through a helper of its own; the helper's thread."""
    before = set(threading.enumerate())
    patient = PatientStore(store, Helper(60))
    (thread,) = set(threading.enumerate()) - before
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
