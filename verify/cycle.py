"""A short cycle among the events that never happen: the counterexample of a deadlock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipedsl.program import Ints
from verify.deadlock import without_end
from verify.events import Event, EventGraph

_SMALL = 1000  # events from which a breadth-first search starts, at most
_WORK = 200_000  # events that these searches visit in all, about
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Hop:
    """One event of a cycle, by its node, which waits for the next one by `rule`."""

    node: int
    rule: int


@dataclass(frozen=True, eq=False)
class _Edges:
    later: Ints
    sooner: Ints
    rule: Ints

    def among(self, nodes: Ints) -> _Edges:
        keep = np.isin(self.later, nodes) & np.isin(self.sooner, nodes)
        return _Edges(self.later[keep], self.sooner[keep], self.rule[keep])


def shortest_cycle(graph: EventGraph, stuck: NDArray[np.bool_]) -> list[Hop]:
    """A shortest cycle among the events that never happen; empty if they all just wait for unmatched calls.

    Exact where few events are stuck. In a large graph the search is in the part that each rank reaches first, widened
    until it holds a cycle: what comes later on a rank waits for that anyway.
    """
    edges = _Edges(graph.later, graph.sooner, graph.rule).among(np.flatnonzero(stuck))
    edges = _core(edges)
    nodes = np.unique(edges.later)
    depth = _depth(graph, nodes)
    near = max(8, _SMALL // (4 * max(graph.calls.ranks, 1)))
    while len(nodes):
        window = nodes[depth < near]
        part = _core(edges.among(window))
        if len(part.later):
            return _shortest(part)
        near *= 2
    return []


def _core(edges: _Edges) -> _Edges:
    """The edges left after taking away, again and again, events that wait for nothing or that nothing waits for."""
    for forward in (True, False):
        nodes, numbers = np.unique(np.concatenate((edges.later, edges.sooner)), return_inverse=True)
        later, sooner = numbers[: len(edges.later)], numbers[len(edges.later) :]
        left = (
            without_end(len(nodes), later, sooner, _NONE) if forward else without_end(len(nodes), sooner, later, _NONE)
        )
        edges = edges.among(nodes[left])
    return edges


def _depth(graph: EventGraph, nodes: Ints) -> Ints:
    """How many steps of the same rank that are in `nodes` come before each node's; 0 for barriers."""
    count = len(graph.steps)
    is_step = nodes < count * Event.BARRIER
    steps = nodes[is_step] % max(count, 1)
    known = np.unique(steps)
    rank = graph.steps.rank[known]
    place = np.arange(len(known)) - np.searchsorted(rank, rank, "left")
    depth: Ints = np.zeros(len(nodes), np.int64)
    depth[is_step] = place[np.searchsorted(known, steps)]
    return depth


def _shortest(edges: _Edges) -> list[Hop]:
    """A shortest cycle, by breadth-first searches that stop at the best length so far. Every event waits for some.

    The shortest of those through the events searched from, where there are too many to search from all.
    """
    needs: dict[int, list[tuple[int, int]]] = {}
    for a, b, why in zip(edges.later.tolist(), edges.sooner.tolist(), edges.rule.tolist(), strict=True):
        needs.setdefault(a, []).append((b, why))
    best = _any_cycle(needs)
    visited = 0
    for origin in [*(hop.node for hop in best[:1]), *list(needs)[:_SMALL]]:
        cycle, work = _cycle_through(origin, needs, len(best) - 1)
        best, visited = cycle or best, visited + work
        if visited > _WORK:
            break
    return best


def _any_cycle(needs: dict[int, list[tuple[int, int]]]) -> list[Hop]:
    """The cycle that one walk ends in."""
    node, place, walk = next(iter(needs)), dict[int, int](), list[Hop]()
    while node not in place:
        place[node] = len(walk)
        target, why = needs[node][0]
        walk.append(Hop(node, why))
        node = target
    return walk[place[node] :]


def _cycle_through(origin: int, needs: dict[int, list[tuple[int, int]]], most: int) -> tuple[list[Hop], int]:
    """A shortest cycle through `origin` with at most `most` events, else empty; and how many events were visited."""
    came: dict[int, Hop] = {}  # node -> the event that waits for it, and why
    queue = deque([(origin, 1)])
    while queue:
        node, length = queue.popleft()
        if length > most:
            break
        for target, why in needs[node]:
            if target == origin:
                cycle = [Hop(node, why)]
                while cycle[-1].node != origin:
                    cycle.append(came[cycle[-1].node])
                return cycle[::-1], len(came)
            if target not in came:
                came[target] = Hop(node, why)
                queue.append((target, length + 1))
    return [], len(came)
