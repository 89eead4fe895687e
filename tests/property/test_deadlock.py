"""The event graph against an explorer of states that was written apart from it."""

from collections.abc import Callable

import networkx
import pytest
from explore import TRANSPORTS, every_end, run
from random_calls import random_calls, random_reductions

from pipedsl.calls_json import read_calls
from verify import check_calls
from verify.cycle import shortest_cycle
from verify.deadlock import hangs, stuck_events
from verify.events import event_graph
from verify.transports import BY_NAME

PROGRAMS = 2000


@pytest.mark.parametrize(("made", "part"), [*((random_calls, part) for part in range(4)), (random_reductions, 0)])
def test_verdicts_are_those_of_the_explorer(made: Callable[[int], dict], part: int) -> None:
    hanging = 0
    for seed in range(part * PROGRAMS // 4, (part + 1) * PROGRAMS // 4):
        document = made(seed)
        report = check_calls(read_calls(document), TRANSPORTS, remedies=0)
        found = {name: state == "deadlock" for name, state in report.transports.items()}
        assert found == {name: run(document, name, seed) for name in TRANSPORTS}, (seed, document)
        hanging += any(found.values())
        if any(found.values()):
            assert {"PD301", "PD303"} & {one.code for one in report.diagnostics}, (seed, document)
    assert 0.25 < hanging / (PROGRAMS // 4) < 0.85


def test_the_order_of_moves_does_not_matter() -> None:
    """What lets one greedy run decide: every order of moves ends the same way."""
    for document in [made(seed, largest=1) for seed in range(40) for made in (random_calls, random_reductions)]:
        for name in TRANSPORTS:
            assert len(every_end(document, name, most_states=3000)) <= 1, (document, name)


def test_cycles_are_real_and_shortest() -> None:
    checked = 0
    for seed in range(300):
        calls = read_calls((random_calls if seed % 2 else random_reductions)(seed))
        for name in TRANSPORTS:
            graph = event_graph(calls, BY_NAME[name])
            stuck = stuck_events(graph)
            if not hangs(graph, stuck):
                continue
            edges = {(a, b) for a, b in zip(graph.later.tolist(), graph.sooner.tolist(), strict=True) if stuck[b]}
            whole = networkx.DiGraph(edges)
            cycle = [hop.node for hop in shortest_cycle(graph, stuck)]
            assert bool(cycle) != networkx.is_directed_acyclic_graph(whole)
            if cycle:
                assert set(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) <= edges
                lengths = dict(networkx.all_pairs_shortest_path_length(whole))
                assert len(cycle) == min(lengths[b][a] + 1 for a, b in edges if a in lengths[b])
                checked += 1
    assert checked > 100
