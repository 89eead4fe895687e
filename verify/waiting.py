"""Design sections 5.2 and 5.3 over the transports: where calls are safe, and one finding for each reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.program import Program
from verify.counterexample import deadlock, never_gathered
from verify.cycle import shortest_cycle
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import EventGraph, event_graph
from verify.matching import match_alike
from verify.messages import check_messages, crossed
from verify.reductions import check_meetings
from verify.remedies import find_remedies
from verify.report import Remedy
from verify.standing import stuck_ranks
from verify.transports import EXPLAINED_BY, Communicators, Transport
from verify.wording import counted_list

SAFE, DEADLOCK, CROSSED, UNDEFINED = "safe", "deadlock", "crossed", "undefined"


def check_waiting(
    calls: Calls, transports: Sequence[Transport], program: Program | None, budget: int = 0
) -> tuple[list[Diagnostic], dict[str, str], tuple[Remedy, ...]]:
    """Findings, the state of each transport by name, and what would help (`remedies`, at a cost of `budget`)."""
    if mirrored(calls):
        return [], {transport.name: SAFE for transport in transports}, ()
    to_itself = bool((calls.peer == calls.rank_of()).any())
    defined = [t for t in transports if t.communicators is Communicators.NONE or not to_itself]
    states = {transport.name: UNDEFINED for transport in transports}
    found = check_meetings(calls, program) + check_messages(calls, defined, program)
    if len(defined) < len(transports):
        where = ", ".join(t.name for t in transports if t not in defined)
        found.append(Diagnostic("PD303", f"a rank sends to itself, which is not defined on {where}"))
    hanging = _hanging(calls, defined)
    deadlocks: dict[str, tuple[Diagnostic, list[str]]] = {}
    still: dict[tuple[int, ...], list[str]] = {}  # ranks that never reach their end, for messages left over
    for transport in defined:
        if transport.name not in hanging:
            states[transport.name] = CROSSED if not transport.by_tag and crossed(calls, transport) else SAFE
            continue
        states[transport.name] = DEADLOCK
        reason = _explanation(transport.name, deadlocks)
        if reason is not None:
            deadlocks[reason][1].append(transport.name)
            continue
        graph = event_graph(calls, transport)
        stuck = stuck_events(graph)
        finding = _counterexample(graph, stuck, program)
        if finding is not None:
            deadlocks[transport.name] = (finding, [transport.name])
        else:
            still.setdefault(tuple(stuck_ranks(graph, stuck)), []).append(transport.name)
    unsafe = [transport for transport in defined if states[transport.name] != SAFE]
    remedies, stopped = find_remedies(calls, unsafe, budget) if budget and unsafe else ((), ())
    found = _annotated(found, states, remedies, still)
    for finding, names in deadlocks.values():
        finding = replace(finding, message=f"{finding.message} on {', '.join(names)}")
        found.append(_helped(finding, names, remedies, stopped))
    return found, states, remedies


def _helped(
    finding: Diagnostic, names: Sequence[str], remedies: Sequence[Remedy], stopped: Sequence[str]
) -> Diagnostic:
    """The finding with what would help on these transports: as its help the weakest of those that help on the most."""
    lines: dict[str, list[str]] = {}
    for remedy in remedies:
        if remedy.transport in names:
            lines.setdefault(remedy.text, []).append(remedy.transport)
    by_reach = sorted(lines.items(), key=lambda line: -len(line[1]))
    told = [f"{text} (then safe on {', '.join(where)})" for text, where in by_reach]
    notes = tuple(f"or: {text}" for text in told[1:])
    if cut := [name for name in names if name in stopped]:
        notes += (f"what would help on {', '.join(cut)} was not searched to its end, as there are too many calls",)
    return replace(finding, notes=finding.notes + notes, help=told[0] if told else finding.help)


def _annotated(
    found: Sequence[Diagnostic],
    states: dict[str, str],
    remedies: Sequence[Remedy],
    still: dict[tuple[int, ...], list[str]],
) -> list[Diagnostic]:
    """Findings about messages: the first says who hangs for them, and what helps where nothing but they is wrong."""
    notes = tuple(
        f"{counted_list('rank', ranks)} never reach{'es' if len(ranks) == 1 else ''} the end on {', '.join(names)}"
        for ranks, names in still.items()
    )
    hang = {name for names in still.values() for name in names}
    annotated = []
    for finding in found:
        if notes and finding.code == "PD303":
            finding, notes = replace(finding, notes=finding.notes + notes), ()
            finding = _helped(finding, sorted(hang, key=list(states).index), remedies, ())
        elif finding.code == "PD302":
            finding = _helped(finding, [name for name, state in states.items() if state == CROSSED], remedies, ())
            remedies = [remedy for remedy in remedies if states[remedy.transport] != CROSSED]
        annotated.append(finding)
    return annotated


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


def _counterexample(graph: EventGraph, stuck: NDArray[np.bool_], program: Program | None) -> Diagnostic | None:
    """Why calls hang; None where it is for calls that are never matched, which are findings of their own."""
    cycle = shortest_cycle(graph, stuck)
    if cycle:
        return deadlock(graph, stuck, cycle, program)
    return None if len(graph.matching.left) else never_gathered(graph, program)


def _explanation(name: str, deadlocks: dict[str, tuple[Diagnostic, list[str]]]) -> str | None:
    """The transport whose deadlock is this one's too, if one is known."""
    reason = EXPLAINED_BY.get(name)
    while reason is not None and reason not in deadlocks:
        reason = EXPLAINED_BY.get(reason)
    return reason
