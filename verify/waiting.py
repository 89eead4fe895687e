"""Design sections 5.2 and 5.3 over the transports: where calls are safe, and one finding for each reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.program import Program
from verify.counterexample import deadlock
from verify.cycle import shortest_cycle
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import event_graph
from verify.messages import check_messages, crossed
from verify.transports import EXPLAINED_BY, Communicators, Transport

SAFE, DEADLOCK, CROSSED, UNDEFINED = "safe", "deadlock", "crossed", "undefined"


def check_waiting(
    calls: Calls, transports: Sequence[Transport], program: Program | None
) -> tuple[list[Diagnostic], dict[str, str]]:
    """Findings, and the state of each transport by name."""
    if mirrored(calls):
        return [], {transport.name: SAFE for transport in transports}
    to_itself = bool((calls.peer == calls.rank_of()).any())
    defined = [t for t in transports if t.communicators is Communicators.NONE or not to_itself]
    states = {transport.name: UNDEFINED for transport in transports}
    found = check_messages(calls, defined, program)
    if len(defined) < len(transports):
        where = ", ".join(t.name for t in transports if t not in defined)
        found.append(Diagnostic("PD303", f"a rank sends to itself, which is not defined on {where}"))
    deadlocks: dict[str, tuple[Diagnostic, list[str]]] = {}
    for transport in defined:
        graph = event_graph(calls, transport)
        stuck = stuck_events(graph)
        if not hangs(graph, stuck):
            states[transport.name] = CROSSED if not transport.by_tag and crossed(calls, transport) else SAFE
            continue
        states[transport.name] = DEADLOCK
        reason = _explanation(transport.name, deadlocks)
        if reason is None:
            cycle = shortest_cycle(graph, stuck)
            if cycle:
                deadlocks[transport.name] = (deadlock(graph, cycle, program), [transport.name])
        else:
            deadlocks[reason][1].append(transport.name)
    for finding, names in deadlocks.values():
        found.append(replace(finding, message=f"{finding.message} on {', '.join(names)}"))
    return found, states


def _explanation(name: str, deadlocks: dict[str, tuple[Diagnostic, list[str]]]) -> str | None:
    """The transport whose deadlock is this one's too, if one is known."""
    reason = EXPLAINED_BY.get(name)
    while reason is not None and reason not in deadlocks:
        reason = EXPLAINED_BY.get(reason)
    return reason
