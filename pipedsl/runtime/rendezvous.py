"""Before anything is sent: do all ranks run the same plan, on the same kind of device, with the right modules?"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable

from pipedsl.runtime.plan import PipelineError, Plan
from pipedsl.runtime.wire import Store, Wire

_LINGER = 2.0  # seconds that the store's host waits for the others to read why nothing starts


def instance_name(wire: Wire) -> str:
    """A name for this pipeline that all its ranks arrive at: how many each has made before."""
    return str(wire.store("made").add(str(wire.rank), 1))


def agree(
    wire: Wire,
    name: str,
    plan: Plan,
    device: str,
    problem: str,
    timeout: float,
    stop: Callable[[], None],
    *,
    shares: bool,
    offer: str,
) -> list[str]:
    """Meet all ranks; what each of them has to `offer`. `stop`: called while they are waited for, to raise.

    PipelineError, on every one of them, where one has a `problem`, another plan or device, or is to share memory with
    others of its host where those are not.
    """
    store = wire.store(name)
    store.set(f"ready/{wire.rank}", json.dumps([problem, plan.fingerprint, device, shares, offer]))
    deadline = time.monotonic() + timeout
    missing = set(range(wire.size))
    while missing:
        missing -= {rank for rank in missing if store.check([f"ready/{rank}"])}
        if missing and time.monotonic() > deadline:
            names = ", ".join(map(str, sorted(missing)))
            raise PipelineError(f"{plan.title}: rank {names} did not make its Pipeline within {timeout:g} s")
        if missing:
            stop()
            time.sleep(0.01)
    complaints = []
    offers = []
    for rank in range(wire.size):
        theirs, fingerprint, kind, shared, offered = json.loads(store.get(f"ready/{rank}"))
        offers.append(offered)
        if theirs:
            complaints.append(f"rank {rank}: {theirs}")
        if fingerprint != plan.fingerprint:
            complaints.append(f"rank {rank} runs another compiled file than rank {wire.rank}")
        if kind != device:
            complaints.append(f"rank {rank} works on {kind}, rank {wire.rank} on {device}")
        if shared != shares:
            complaints.append(f"rank {rank} has shared_memory={shared}, rank {wire.rank} shared_memory={shares}")
    if complaints:
        linger(wire, store)
        raise PipelineError(f"{plan.title} cannot start: " + "; ".join(complaints))
    return offers


def linger(wire: Wire, store: Store) -> None:
    """The process that holds the store goes last."""
    deadline = time.monotonic() + _LINGER
    with contextlib.suppress(Exception):
        store.add("read", 1)
        while wire.hosts_store and store.add("read", 0) < wire.size and time.monotonic() < deadline:
            time.sleep(0.01)
