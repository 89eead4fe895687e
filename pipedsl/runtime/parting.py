"""Why the process that holds the ranks' store has ended: told while there is a store, to those who wait by then.

What fails on a rank alone, as in saving, need not end anybody. But it may end that process, and the others would find
no more than a connection that is closed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from pipedsl.runtime.wire import Store, Wire

_STAY_FOR_OTHERS = 3.0  # seconds that those who wait have to read it
_HEARD_POLL = 0.02  # seconds between two looks whether they have


class Parting:
    """One rank's part in it. `text`: what has failed where the store is held, if this rank has heard of it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.text = ""

    def tell(self, store: Store, why: str) -> None:
        """This has failed here, alone."""
        if not self._wire.hosts_store:
            return
        everybody = store.add("heard", 0) + self._wire.size - 1
        store.set("parting", why)
        deadline = time.monotonic() + _STAY_FOR_OTHERS
        while store.add("heard", 0) < everybody and time.monotonic() < deadline:
            time.sleep(_HEARD_POLL)

    def hear(self, store: Store) -> None:
        """This rank stands still: has something of the kind been told?"""
        with contextlib.suppress(Exception):
            if store.check(["parting"]) and (said := store.get("parting").decode()) != self.text:
                self.text = said
                store.add("heard", 1)


def alone_key(rank: int) -> str:
    """The key by which a rank says what has failed there in what it did by itself, as saving."""
    return f"alone/{rank}"


def failed_alone(store: Store, ranks: Iterable[int]) -> list[str]:
    """What of the kind these ranks have told."""
    found = []
    with contextlib.suppress(Exception):
        for rank in ranks:
            if store.check([alone_key(rank)]):
                found.append(f"before that {store.get(alone_key(rank)).decode()}")
    return found
