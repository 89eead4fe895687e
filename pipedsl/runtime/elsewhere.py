"""Why the ranks of other pipelines of the job, as of its replicas, are gone: told where all ranks of the job read it.

A pipeline whose stages are replicated cannot go on when another one has failed, but sees no more of that than a
connection that closes, and perhaps the end of the process that holds the store. So whose pipeline fails says why; who
stands still, or fails, looks; and the store's host stays for a moment until all have looked.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from pipedsl.runtime.wire import Store, Wire

_STAY = 5.0  # seconds that the store's host waits at most for the other pipelines' ranks
_STAY_SHARE = 0.25  # of the timeout, where that is less
_KNOWN_POLL = 0.02  # seconds between two looks how many there are
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
        self.text = ""

    def look(self, store: Store) -> None:
        """Has another pipeline failed? It need not be why this one does."""
        if not self._wire.strangers or self.text:
            return
        with contextlib.suppress(Exception):
            said = self._read(store)
            if said is not None and said != self._earlier and said[0] != self._self:
                (ranks, _), why = said
                names = ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
                self.text = f"before that the pipeline of global ranks {names} failed: {why}"
                self._count(store)

    def tell(self, store: Store, why: str) -> None:
        """This pipeline has failed; unless another one's failure is known, which is to be read instead."""
        self.look(store)
        if self._wire.strangers and not self.text:
            with contextlib.suppress(Exception):
                store.set("failure", json.dumps([self._self, why]))

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
