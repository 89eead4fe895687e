"""A deadlock as a diagnostic: the cycle hop by hop, each with the call, its place in the text and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Program
from verify.cycle import Hop
from verify.events import Event, EventGraph, Rule
from verify.naming import name, span_of
from verify.standing import heads, in_short, standing
from verify.transports import Communicators

_HELP = "let both ends list their common messages in the same order"
REDUCE_HELP = "let all ranks come to their reductions in one order, after what the others need of them"
_MOST_HOPS = 30
_NO_DATA = "each of them receives before it sends: let one send first"


@dataclass(frozen=True)
class _Link:
    """Step `step` waits for step `other` by a rule. `use`: of what, for a first use. `between`: steps left out."""

    step: int
    rule: Rule
    use: str
    other: int
    between: int = 0


def deadlock(graph: EventGraph, stuck: NDArray[np.bool_], cycle: Sequence[Hop], program: Program | None) -> Diagnostic:
    """PD301 for one cycle. The caller says on which transports."""
    hops = _hops(graph, cycle, program)
    ranks = sorted({int(graph.steps.rank[graph.steps.of_row[row]]) for row, _ in hops})
    left_out = len(hops) - _MOST_HOPS
    if left_out > 0:
        hops = hops[:_MOST_HOPS]
    spans = [span_of(program, graph.calls, row) for row, _ in hops]
    numbered = [f"{place}. {text}" for place, (_, text) in enumerate(hops, 1)]
    labels = tuple(Label(span, text) for span, text in zip(spans, numbered, strict=True) if span is not None)
    notes = () if len(labels) == len(hops) else tuple(numbered)
    who = (
        f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} wait" if len(ranks) > 1 else f"rank {ranks[0]} waits"
    )
    whom = "each other" if len(ranks) > 1 else "itself"
    cold = any(hop.rule == Rule.FIRST_USE for hop in cycle)
    message = f"deadlock{' in connection set-up' if cold else ''}: {who} for {whom}"
    first = next((span for span in spans if span is not None), None)
    short = in_short(graph, cycle)
    more = (
        *((f"{left_out} more hops lead back to the first",) if left_out > 0 else ()),
        *(() if short is None else (short,)),
        *heads(graph, ranks),
        *standing(graph, stuck, ranks),
    )
    return Diagnostic(
        "PD301",
        message,
        first,
        labels if not notes else (),
        notes + more,
        help=_help(graph, [row for row, _ in hops]),
    )


def _help(graph: EventGraph, rows: Sequence[int]) -> str:
    if (graph.calls.kind[rows] == CallKind.REDUCE).any():
        return REDUCE_HELP
    return _NO_DATA if graph.transport.buffered else _HELP


def never_gathered(graph: EventGraph, program: Program | None) -> Diagnostic | None:
    """PD301 for a cold first use that some rank never makes, if there is one."""
    if graph.uses is None or not graph.uses.lacking:
        return None
    what, steps = graph.uses.lacking[0]
    calls, row = graph.calls, int(graph.steps.first[steps[0]])
    came = {int(graph.steps.rank[step]) for step in steps}
    absent = next(rank for rank in range(calls.ranks) if rank not in came)
    message = (
        f"deadlock: rank {calls.rank_of()[row]}: `{name(calls, row)}` holds the host until every rank has come to "
        f"its first use of {what}, and rank {absent} never does"
    )
    return Diagnostic(
        "PD301", message, span_of(program, calls, row), help="use the same form, batched or not, everywhere"
    )


def _hops(graph: EventGraph, cycle: Sequence[Hop], program: Program | None) -> list[tuple[int, str]]:
    """Row and text of each hop. An event of a call that just waits for another of its own is no hop."""
    count = len(graph.steps)
    barrier = count * Event.BARRIER
    start = next(place for place, hop in enumerate(cycle) if hop.node < barrier)
    turned = [*cycle[start:], *cycle[: start + 1]]
    links: list[_Link] = []
    for place, hop in enumerate(turned[:-1]):
        if hop.node >= barrier or hop.rule == Rule.OWN:
            continue
        after = next(later.node for later in turned[place + 1 :] if later.node < barrier)
        chain = [(hop.node % count, "", after % count)]
        if hop.rule == Rule.FIRST_USE and graph.uses is not None:
            chain = graph.uses.path(hop.node % count, after % count)
        links += [_Link(step, Rule(hop.rule), use, other) for step, use, other in chain]
    links = _contracted(graph, links)
    rows = [int(graph.steps.first[link.step]) for link in links]
    return [(row, _because(graph, link, row, program)) for row, link in zip(rows, links, strict=True)]


def _contracted(graph: EventGraph, links: Sequence[_Link]) -> list[_Link]:
    """Three or more links in a row of one rank and for one reason as one."""
    groups: list[list[_Link]] = []
    for link in links:
        last = groups[-1][-1] if groups else None
        line = link.rule in (Rule.STREAM, Rule.HOST, Rule.WAIT_EARLIER)
        if last is not None and line and link.rule is last.rule and last.other == link.step:
            groups[-1].append(link)
        else:
            groups.append([link])
    contracted = []
    for group in groups:
        if len(group) < 3:
            contracted += group
        else:
            contracted.append(replace(group[0], other=group[-1].other, between=len(group) - 1))
    return contracted


def _because(graph: EventGraph, link: _Link, row: int, program: Program | None) -> str:
    calls, rule, other, use = graph.calls, link.rule, int(graph.steps.first[link.other]), link.use
    rank, rank_of_other = int(graph.steps.rank[link.step]), int(graph.steps.rank[link.other])
    this, that = name(calls, row), name(calls, other)
    between = f", with {link.between} calls between them" if link.between else ""
    match rule:
        case Rule.WAIT_EARLIER:
            why = f"comes after `{that}`{between}"
        case Rule.STREAM:
            why = f"queues behind `{that}` on {_stream(graph, row if calls.peer[row] >= 0 else other)}{between}"
        case Rule.MATCH:
            why = f"needs rank {rank_of_other} to start `{that}`"
        case Rule.REQUEST:
            return f"rank {rank}: `{this}` waits for its message"
        case Rule.HOST:
            why = f"is launched after `{that}`{between}"
        case Rule.FIRST_USE:
            why = f"holds the host until rank {rank_of_other} comes to `{that}`: it is the first use of {use}"
        case Rule.LAYOUT:
            made = graph.held[row]
            of = "" if program is None else f" {program.label(int(calls.op[made]))}"
            why = f"holds the host until rank {rank_of_other} has run{of}, which comes after `{that}`"
        case Rule.OWN:
            why = "has to start"
    return f"rank {rank}: `{this}` {why}"


def _stream(graph: EventGraph, row: int) -> str:
    calls = graph.calls
    if graph.transport.communicators is Communicators.WORLD:
        return f"the one stream of rank {calls.rank_of()[row]}"
    if calls.batch[row] >= 0:
        return "the stream of the group"
    low, high = sorted((int(calls.rank_of()[row]), int(calls.peer[row])))
    return f"the one stream of ranks {low} and {high}"
