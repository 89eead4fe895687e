"""Why the process that holds the ranks' store has ended: told while there is a store, to those who wait by then.

What fails on a rank alone, as in saving, need not end anybody. But it may end that process, and the others would find
no more than a connection that is closed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from pipedsl.runtime.elsewhere import listed
from pipedsl.runtime.wire import Store, Wire

_STAY_FOR_OTHERS = 3.0  # seconds that those who wait have to read it
_HEARD_POLL = 0.02  # seconds between two looks whether they have


class Parting:
    """One rank's part in it. `text`: what has failed where the store is held, if this rank has heard of it.

    `store`, here and below: the pipeline's; `job_store`: that of all ranks of the job, as replicas lose it likewise.
    """

    def __init__(self, wire: Wire, job_store: Store) -> None:
        self._wire = wire
        self._earlier = _read_parting(job_store) if wire.strangers else ""
        self.text = ""

    def tell(self, store: Store, job_store: Store, why: str) -> None:
        """This has failed here, alone."""
        if not self._wire.hosts_store:
            return
        told = [(store, self._wire.size - 1, why)]
        if self._wire.strangers:
            pipeline = f"in the pipeline of global ranks {listed(self._wire.ranks)}"
            told.append((job_store, self._wire.strangers, f"{pipeline} {why}"))
        waited = []
        for each, others, text in told:
            waited.append((each, each.add("heard", 0) + others))
            each.set("parting", text)
        deadline = time.monotonic() + _STAY_FOR_OTHERS
        while any(each.add("heard", 0) < all_of for each, all_of in waited) and time.monotonic() < deadline:
            time.sleep(_HEARD_POLL)

    def hear(self, store: Store, job_store: Store) -> None:
        """This rank stands still: has something of the kind been told?"""
        with contextlib.suppress(Exception):
            if said := _read_parting(store):
                self._take(store, said)
            elif self._wire.strangers and (said := _read_parting(job_store)) != self._earlier:
                self._take(job_store, said)

    def _take(self, store: Store, said: str) -> None:
        if said != self.text:
            self.text = said
            store.add("heard", 1)


def _read_parting(store: Store) -> str:
    return str(store.get("parting").decode()) if store.check(["parting"]) else ""


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
