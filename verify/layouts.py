"""What a compiled executor adds to a transport that matches by order: the first receive of a boundary holds its host.

The rank that runs the stage before a boundary publishes the layout of what crosses it when its first F of that stage
has run. Who receives there for the first time cannot make room before that, and by order alone cannot post later than
its calls say: its host waits. So does the first receive of gradients there, whose layout is the rank's own. Later
receives find the layout known, and channels have all been opened (the transport is warm).

Calls that `mirrored` proves need no more: the receive stands at the place of its send, the F that made the message
earlier on the sender's rank, and to get there the sender needs earlier places only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.program import Kind, Program
from verify.counterexample import deadlock
from verify.cycle import shortest_cycle
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import Assumed, EventGraph, Rule, event_graph
from verify.matching import RECEIVES
from verify.naming import span_of
from verify.transports import BY_NAME

HELD = "deadlock at a first receive"  # the state of a transport where the calls are safe and the executor is not
_WARM = {"nccl-lazy-warm": "nccl-lazy", "nccl-eager-warm": "nccl-eager"}
_HELP = (
    "place each of these receives after all that the F needs, or leave out SEND and RECV to have them placed safely; "
    "`--transport gloo` compiles for gloo alone, where no receive holds its rank"
)


def check_layouts(
    program: Program, calls: Calls, states: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Diagnostic]]:
    """The states of the transports for an executor of these calls, and why those that change do (PD301).

    `calls` are those of `program`, unbatched; `states` those of the calls by themselves.
    """
    states = dict(states)
    findings: dict[str, Diagnostic] = {}
    if mirrored(calls):
        return states, findings
    held = first_receives(program, calls)
    for name, cold in _WARM.items():
        claimed = [each for each in (name, cold) if states.get(each) == "safe"]
        if not claimed:
            continue
        graph = event_graph(calls, BY_NAME[name], Assumed(held=held))
        stuck = stuck_events(graph)
        if hangs(graph, stuck):
            finding = _finding(graph, stuck, held, program)
            for each in claimed:
                states[each] = HELD
                findings[each] = finding
    return states, findings


def first_receives(program: Program, calls: Calls) -> dict[int, int]:
    """The row of the first receive of every boundary and direction, and of the F whose output it has the layout of."""
    rows = np.flatnonzero(calls.op >= 0)
    op = calls.op[rows]
    stage = program.replica[op].astype(np.int64) * program.stages + program.stage[op]
    forward = (calls.kind[rows] == CallKind.COMPUTE) & (program.kind[op] == Kind.F)
    stages, at = np.unique(stage[forward], return_index=True)
    first_forward = dict(zip(stages.tolist(), rows[forward][at].tolist(), strict=True))
    receives = np.isin(calls.kind[rows], RECEIVES)
    # Of what stage the output is: a gradient to stage s has the layout of its own output, an activation of that before.
    made_by = stage[receives] - ~np.isin(program.kind[op[receives]], (Kind.RECV_B, Kind.B, Kind.I))
    key = np.stack((calls.rank_of()[rows[receives]], made_by), axis=1)
    of_boundary, at = np.unique(key, axis=0, return_index=True)
    return {
        int(rows[receives][place]): first_forward[maker]
        for (_, maker), place in zip(of_boundary.tolist(), at.tolist(), strict=True)
    }


def _finding(graph: EventGraph, stuck: NDArray[np.bool_], held: Mapping[int, int], program: Program) -> Diagnostic:
    """The deadlock, with the first receive in its cycle as its place."""
    cycle = shortest_cycle(graph, stuck)
    calls, count = graph.calls, len(graph.steps)
    step = next(hop.node % count for hop in cycle if hop.rule == Rule.LAYOUT)
    row = int(graph.steps.first[step])
    forward = held[row]
    ranks = calls.rank_of()
    message = (
        f"deadlock in the compiled executor on {graph.transport.name}: rank {ranks[row]} stands at "
        f"`{calls.label(row)}`, the first receive there, until rank {ranks[forward]} has run "
        f"{program.label(int(calls.op[forward]))} and so the layout is known, which waits for the receive"
    )
    finding = deadlock(graph, stuck, cycle, program)
    return replace(finding, message=message, span=span_of(program, calls, row), help=_HELP)
