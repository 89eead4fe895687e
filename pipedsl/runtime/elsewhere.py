"""Why the ranks of other pipelines of the job, as of its replicas, are gone: told where all ranks of the job read it.

A pipeline whose stages are replicated cannot go on when another one has failed, but sees no more of that than a
connection that closes, and perhaps the end of the process that holds the store. So whose pipeline fails says why; all
that are in a step look, and with that have answered; and the store's host stays for a moment until all have looked. A
pipeline that has lost it knows not whom says so too, until one knows better; who does not answer it may be that rank.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Collection, Sequence

from pipedsl.runtime.wire import Store, Wire

_STAY = 5.0  # seconds that the store's host waits at most for the other pipelines' ranks
_STAY_SHARE = 0.25  # of the timeout, where that is less
_KNOWN_POLL = 0.02  # seconds between two looks how many there are
_TRIES = 3  # to tell something while others do, which is to be read first
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
        several = wire.strangers > 0
        self._made = store.add("moments", 1) if several else 0  # by a clock that all ranks of the job share
        self._earlier = self._answered = self._read(store) if several else ""
        self._counted_before = store.add("known", 0) if several else 0
        self._counting = threading.Lock()  # the watch's thread looks while the main thread tells
        self._counted = False
        self._explains = False
        self.text = ""

    def look(self, store: Store) -> None:
        """Has another pipeline failed? It need not be why this one does. Whatever it is, this rank answers."""
        if self._wire.strangers:
            with contextlib.suppress(Exception):
                self._hear(store)

    def tell(self, store: Store, why: str, *, sure: bool = True) -> None:
        """This pipeline has failed; unless another one's failure is known, which is to be read instead.

        `sure`: that is more than a connection lost to nobody knows whom, which another one's failure may explain.
        """
        if not self._wire.strangers:
            return
        with contextlib.suppress(Exception):
            moment = store.add("moments", 1)
            self._answer(store, moment)  # who has failed may be asked for, too, by one that has failed before
            news = json.dumps([moment, self._self, why, sure])
            for _ in range(_TRIES):
                before = self._hear(store)
                if self._explains or (self.text and not sure):
                    return
                if store.compare_set("failure", before, news).decode() == news:
                    return  # else there is something else, which may explain this
            store.set("failure", news)

    def silent(self, store: Store, among: Collection[int] | None) -> list[int]:
        """Which of these global ranks, of other pipelines, have answered nothing that was told; empty if why is known.

        Whom they have answered does not matter, as of what several pipelines tell at once a rank reads but one. Those
        that are in no step do not; None stands for all.
        """
        others = set(range(self._wire.size + self._wire.strangers)) - set(self._wire.ranks)
        waited = sorted(others if among is None else others & set(among))
        deadline = time.monotonic() + _ANSWER
        with contextlib.suppress(Exception):
            while waited and not self._explains and time.monotonic() < deadline:
                time.sleep(_KNOWN_POLL)
                waited = [rank for rank in waited if not self._has_answered(store, rank)]
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
        with self._counting:
            first, self._counted = not self._counted, True
        if first:
            store.add("known", 1)

    def _hear(self, store: Store) -> str:
        """What has lately been told, as it is in the store; empty where nothing was."""
        said = self._read(store)
        if said != self._answered:
            self._answer(store, store.add("moments", 0))
            self._answered = said
        if said != self._earlier:
            _, pipeline, why, explains = json.loads(said)
            if pipeline != self._self and not self._explains:
                self.text = f"before that the pipeline of global ranks {listed(pipeline[0])} failed: {why}"
                self._explains = explains  # after the text, which another thread may read by then
                if explains:
                    self._count(store)
        return said

    def _read(self, store: Store) -> str:
        return str(store.get("failure").decode()) if store.check(["failure"]) else ""

    def _answer(self, store: Store, moment: int) -> None:
        """This rank was alive then."""
        store.set(_answer_key(self._wire.ranks[self._wire.rank]), str(moment))

    def _has_answered(self, store: Store, rank: int) -> bool:
        """Whether a rank has, since this pipeline was made."""
        key = _answer_key(rank)
        return bool(store.check([key])) and int(store.get(key)) >= self._made


def _answer_key(rank: int) -> str:
    """The key by which a global rank says that it has read of a failure."""
    return f"answer/{rank}"


def listed(ranks: Sequence[int | str]) -> str:
    """Ranks in words, the first few."""
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
