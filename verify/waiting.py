"""Design sections 5.2 and 5.3 over the transports: where calls are safe, and one finding for each reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.program import Program
from verify.counterexample import deadlock, never_gathered
from verify.cycle import shortest_cycle
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import event_graph
from verify.matching import match_alike
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
    hanging = _hanging(calls, defined)
    deadlocks: dict[str, tuple[Diagnostic, list[str]]] = {}
    for transport in defined:
        if transport.name not in hanging:
            states[transport.name] = CROSSED if not transport.by_tag and crossed(calls, transport) else SAFE
            continue
        states[transport.name] = DEADLOCK
        reason = _explanation(transport.name, deadlocks)
        if reason is not None:
            deadlocks[reason][1].append(transport.name)
        elif (finding := _counterexample(calls, transport, program)) is not None:
            deadlocks[transport.name] = (finding, [transport.name])
    for finding, names in deadlocks.values():
        found.append(replace(finding, message=f"{finding.message} on {', '.join(names)}"))
    return found, states


def _hanging(calls: Calls, transports: Sequence[Transport]) -> set[str]:
    """The transports on which some rank never reaches its end.

    Where all transports match the same calls, those that wait for more come first: what is safe there is safe on all
    that wait for less.
    """
    comparable = not (calls.batch >= 0).any() and match_alike(calls)
    hanging, safe = set(), set[str]()
    for transport in reversed(transports):
        if transport.name in safe:
            continue
        graph = event_graph(calls, transport)
        if hangs(graph, stuck_events(graph)):
            hanging.add(transport.name)
            continue
        weaker: str | None = transport.name
        while weaker is not None:
            safe.add(weaker)
            weaker = EXPLAINED_BY.get(weaker) if comparable else None
    return hanging


def _counterexample(calls: Calls, transport: Transport, program: Program | None) -> Diagnostic | None:
    """Why calls hang; None where it is for calls that are never matched, which are findings of their own."""
    graph = event_graph(calls, transport)
    cycle = shortest_cycle(graph, stuck_events(graph))
    if cycle:
        return deadlock(graph, cycle, program)
    return None if len(graph.matching.left) else never_gathered(graph, program)


def _explanation(name: str, deadlocks: dict[str, tuple[Diagnostic, list[str]]]) -> str | None:
    """The transport whose deadlock is this one's too, if one is known."""
    reason = EXPLAINED_BY.get(name)
    while reason is not None and reason not in deadlocks:
        reason = EXPLAINED_BY.get(reason)
    return reason
