import random
from dataclasses import replace

import numpy as np
import pytest
from words import costs, gpipe, interleaved, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.calls import Calls
from pipedsl.calls_json import write_calls
from pipedsl.lower import lower
from pipedsl.program import Program
from pipedsl.simulate import simulate
from verify import TRANSPORTS, verify
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import event_graph
from verify.transports import BY_NAME


def lowered(program: Program) -> Calls:
    return lower(program, simulate(program))


GRID = [
    pytest.param(words, p, m, id=f"{words.__name__}-{p}-{m}")
    for words in (gpipe, one_f_one_b, zb_h1, zb_h2)
    for p in (1, 2, 3, 5, 8)
    for m in sorted({1, p - 1, p, p + 1, 2 * p, 3 * p + 1} - {0})
    if words in (gpipe, one_f_one_b) or m >= (p if words is zb_h1 else 2 * p - 1)
]


@pytest.mark.parametrize(("words", "p", "m"), GRID)
def test_the_safe_recipe_is_mirrored_and_safe(words: object, p: int, m: int) -> None:
    """Both by the order that the recipe gives, and by the events, which know nothing of it."""
    draw = random.Random(m)
    for cost in (
        costs(p),
        costs(p, 0, 0, 0),
        costs(p, *(draw.randint(0, 5) for _ in range(3)), send=draw.randint(0, 3)),
    ):
        program = word_program(words(p, m), cost=cost)
        calls = lowered(program)
        assert mirrored(calls)
        for name in (*TRANSPORTS, "group-per-direction-warm"):
            graph = event_graph(calls, BY_NAME[name])
            assert not stuck_events(graph).any(), name
        assert verify(program).diagnostics == ()


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 6), (4, 4), (4, 12)])
def test_several_chunks(p: int, m: int, v: int) -> None:
    program = word_program(interleaved(p, m, v), placement=[stage % p for stage in range(p * v)])
    calls = lowered(program)
    assert mirrored(calls)
    assert not any(stuck_events(event_graph(calls, BY_NAME[name])).any() for name in TRANSPORTS)
    assert set(verify(program).transports.values()) == {"safe"}


def test_the_calls_of_1f1b() -> None:
    calls = lowered(word_program(one_f_one_b(2, 2)))
    assert [calls.label(row) for row in calls.rows(0)] == [
        "compute",
        "isend F0@1 to rank 1",
        "compute",
        "isend F1@1 to rank 1",
        "irecv B0@0 from rank 1",
        "wait 2",
        "wait 0",
        "compute",
        "irecv B1@0 from rank 1",
        "wait 3",
        "wait 1",
        "compute",
    ]


def test_chunks_on_one_rank_need_no_messages() -> None:
    program = word_program([["F0@0", "F0@1", "B0@1", "B0@0"]], placement=[0, 0])
    assert write_calls(lowered(program)) == {"ranks": [[]]}


def test_gradient_sends_are_waited_for_two_later() -> None:
    calls = lowered(word_program(one_f_one_b(2, 4)))
    labels = [calls.label(row) for row in calls.rows(1)]
    sends = [label for label in labels if label.startswith("isend")]
    requests = [int(calls.request[row]) for row in calls.rows(1) if calls.label(row).startswith("isend")]
    assert sends == [f"isend B{i}@0 to rank 0" for i in range(4)]
    for k in range(2):
        assert labels.index(f"wait {requests[k]}") + 1 == labels.index(sends[k + 2])
    assert labels[-2:] == [f"wait {requests[2]}", f"wait {requests[3]}"]


def test_explicit_communication_is_lowered_as_written() -> None:
    words = [
        ["F0", "SEND_F0", "F1", "SEND_F1", "RECV_B0", "RECV_B1", "B0", "B1"],
        ["RECV_F0", "RECV_F1", "F0", "B0", "SEND_B0", "F1", "B1", "SEND_B1"],
    ]
    calls = lowered(word_program(words))
    assert calls.order is None
    assert write_calls(calls)["ranks"][1] == [
        ["irecv", 0, "F0@1"],
        ["irecv", 0, "F1@1"],
        ["wait", 0],
        ["isend", 0, "B0@0"],
        ["wait", 1],
        ["isend", 0, "B1@0"],
        ["wait", 2],
        ["wait", 3],
    ]


def test_a_wrong_order_is_not_believed() -> None:
    calls = lowered(word_program(one_f_one_b(3, 4)))
    row = next(row for row in calls.rows(1) if calls.label(row).startswith("isend"))
    order = calls.order.copy()
    order[row] += 1
    assert not mirrored(replace(calls, order=order))
    swapped = calls.order.copy()
    a, b = [row for row in calls.rows(0) if "send" in calls.label(row)][:2]
    swapped[a], swapped[b] = swapped[b], swapped[a]
    assert not mirrored(replace(calls, order=swapped))
    requests = calls.request.copy()
    requests[np.flatnonzero(calls.kind == 5)[0]] = 10_000
    assert not mirrored(replace(calls, request=requests))
    graph = event_graph(calls, BY_NAME["gloo"])
    assert not hangs(graph, stuck_events(graph))
