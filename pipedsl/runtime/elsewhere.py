"""Why the ranks of other pipelines of the job, as of its replicas, are gone: told where all ranks of the job read it.

A pipeline whose stages are replicated cannot go on when another one has failed, but sees no more of that than a
connection that closes, and perhaps the end of the process that holds the store. So whose pipeline fails says why; all
that are in a step look, and with that have answered; and the store's host stays for a moment until all have looked. A
pipeline that has lost it knows not whom says so too, until one knows better; who does not answer it may be that rank.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Sequence
from typing import Any

from pipedsl.runtime.wire import Store, Wire

_STAY = 5.0  # seconds that the store's host waits at most for the other pipelines' ranks
_STAY_SHARE = 0.25  # of the timeout, where that is less
_KNOWN_POLL = 0.02  # seconds between two looks how many there are
_ANSWER = 1.0  # seconds that other pipelines' ranks have to answer
_NAMED = 8  # ranks of another pipeline that are listed


class Elsewhere:
    """One rank's part in it; nothing where all ranks of the job are of this pipeline.

    `text`: what is known to have failed elsewhere, since this pipeline was made. Stores are `Wire.job_store`'s.
    """

    def __init__(self, wire: Wire, name: str, timeout: float, store: Store) -> None:
        self._wire = wire
        self._stay = min(_STAY, _STAY_SHARE * timeout)
        self._self = [list(wire.ranks), name]
        self._earlier = self._read(store) if wire.strangers else None
        self._counted_before = store.add("known", 0) if wire.strangers else 0
        self._counted = False
        self._answered: Any = None
        self._explains = False
        self.text = ""

    def look(self, store: Store) -> None:
        """Has another pipeline failed? It need not be why this one does."""
        if not self._wire.strangers or self._explains:
            return
        with contextlib.suppress(Exception):
            said = self._read(store)
            if said is not None and said != self._earlier and said[0] != self._self:
                pipeline, why, self._explains = said
                ranks = pipeline[0]
                self.text = f"before that the pipeline of global ranks {listed(ranks)} failed: {why}"
                if self._answered != pipeline:
                    store.set(_answer_key(pipeline, self._wire.ranks[self._wire.rank]), "")
                    self._answered = pipeline
                if self._explains:
                    self._count(store)

    def tell(self, store: Store, why: str, *, sure: bool = True) -> None:
        """This pipeline has failed; unless another one's failure is known, which is to be read instead.

        `sure`: that is more than a connection lost to nobody knows whom, which another one's failure may explain.
        """
        self.look(store)
        if self._wire.strangers and not self._explains and (sure or not self.text):
            with contextlib.suppress(Exception):
                store.set("failure", json.dumps([self._self, why, sure]))

    def silent(self, store: Store, among: Collection[int]) -> list[int]:
        """Which of these global ranks, of other pipelines, have not answered what was told; empty where that is known.

        Those that are in no step do not; `among` empty stands for all.
        """
        others = set(range(self._wire.size + self._wire.strangers)) - set(self._wire.ranks)
        waited = sorted(others & set(among) if among else others)
        deadline = time.monotonic() + _ANSWER
        with contextlib.suppress(Exception):
            while waited and not self._explains and time.monotonic() < deadline:
                time.sleep(_KNOWN_POLL)
                waited = [rank for rank in waited if not store.check([_answer_key(self._self, rank)])]
                self.look(store)
            return [] if self._explains else waited
        return []

    def leave(self, store: Store) -> None:
        """This rank knows what it has to. The process that holds the store goes last, or the others could not."""
        if not self._wire.strangers:
            return
        deadline = time.monotonic() + self._stay
        with contextlib.suppress(Exception):
            self._count(store)
            everybody = self._counted_before + self._wire.strangers + self._wire.size
            while self._wire.hosts_store and store.add("known", 0) < everybody and time.monotonic() < deadline:
                time.sleep(_KNOWN_POLL)

    def _count(self, store: Store) -> None:
        if not self._counted:
            self._counted = True
            store.add("known", 1)

    def _read(self, store: Store) -> Any:
        """Which pipeline has lately failed, and why."""
        if not store.check(["failure"]):
            return None
        return json.loads(store.get("failure"))


def _answer_key(pipeline: Any, rank: int) -> str:
    """The key by which a global rank says that it has read of a pipeline's failure."""
    return f"answer/{json.dumps(pipeline)}/{rank}"


def listed(ranks: Sequence[int | str]) -> str:
    """Ranks in words, the first few."""
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
