"""Before anything is sent: do all ranks run the same plan, on the same kind of device, with the right modules?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from pipedsl.runtime.plan import CannotStart, Plan
from pipedsl.runtime.wire import Wire, called


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

    CannotStart, on every one of them, where one has a `problem`, another plan or device, or is to share memory with
    others of its host where those are not.
    """
    store = wire.store(name)
    store.set(f"ready/{wire.rank}", json.dumps([problem, plan.fingerprint, device, shares, offer]))
    deadline = time.monotonic() + timeout
    missing = set(range(wire.size))
    while missing:
        missing -= {rank for rank in missing if store.check([f"ready/{rank}"])}
        if missing and time.monotonic() > deadline:
            names = ", ".join(called(wire, rank) for rank in sorted(missing))
            raise CannotStart(plan, f"{names} did not make its Pipeline within {timeout:g} s")
        stop()
        if missing:
            time.sleep(0.01)
    complaints = []
    offers = []
    here = called(wire, wire.rank)
    for rank in range(wire.size):
        there = called(wire, rank)
        theirs, fingerprint, kind, shared, offered = json.loads(store.get(f"ready/{rank}"))
        offers.append(offered)
        if theirs:
            complaints.append(f"{there}: {theirs}")
        if fingerprint != plan.fingerprint:
            complaints.append(f"{there} runs another compiled file than {here}")
        if kind != device:
            complaints.append(f"{there} works on {kind}, {here} on {device}")
        if shared != shares:
            complaints.append(f"{there} has shared_memory={shared}, {here} shared_memory={shares}")
    if complaints:
        raise CannotStart(plan, "; ".join(complaints))
    return offers
