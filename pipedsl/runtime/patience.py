"""A store that comes back: torch's client waits for ever where its host falls silent, as behind a cut cable."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

_MORE = 1.0  # seconds after which a store that has once been silent is given up


class StoreSilent(RuntimeError):
    """The store has not answered in time."""


class _Question:
    """A call of the store and, once `done`, what came of it."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._result: Any = None
        self._error: Exception | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._ask()
        except Exception as error:
            self._error = error
        self.done.set()

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Helper:
    """A thread that asks stores, one question after the other, for others who will not wait for ever."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        thread = threading.Thread(target=_ask_all, args=(self._questions,), name="pipedsl-store", daemon=True)
        thread.start()
        weakref.finalize(self, self._questions.put, None)

    def call(self, ask: Callable[[], Any]) -> Any:
        """What `ask` returns or raises; StoreSilent where that takes too long. Later calls have little time."""
        question = _Question(ask)
        self._questions.put(question)
        if not question.done.wait(self._seconds):
            waited, self._seconds = self._seconds, min(self._seconds, _MORE)
            raise StoreSilent(f"the ranks' store has not answered for {waited:g} s")
        return question.answer()


def _ask_all(questions: queue.SimpleQueue[_Question | None]) -> None:
    while (question := questions.get()) is not None:
        question.run()
        del question  # it holds the store, and so the helper, whose end ends this thread


class PatientStore:
    """A store through a helper: what of torch's the runtime uses."""

    def __init__(self, store: Any, helper: Helper) -> None:
        self._store = store
        self._helper = helper

    def check(self, keys: list[str]) -> bool:
        return bool(self._helper.call(lambda: self._store.check(keys)))

    def get(self, key: str) -> bytes:
        value: bytes = self._helper.call(lambda: self._store.get(key))
        return value

    def set(self, key: str, value: str | bytes) -> None:
        self._helper.call(lambda: self._store.set(key, value))

    def add(self, key: str, amount: int) -> int:
        return int(self._helper.call(lambda: self._store.add(key, amount)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        value: bytes = self._helper.call(lambda: self._store.compare_set(key, expected, desired))
        return value

    def delete_key(self, key: str) -> bool:
        return bool(self._helper.call(lambda: self._store.delete_key(key)))
