from dataclasses import replace

import networkx
import numpy as np
import pytest
from words import gpipe, memory, one_f_one_b, word_program, zb_h1

from pipedsl.diagnostics import Diagnostic
from pipedsl.lower import lower
from pipedsl.program import Kind, Program
from pipedsl.simulate import simulate
from verify import Verdict, dependency_graph, verify
from verify.memory import size_text
from verify.structure import check_structure


def findings(words: list[list[str]], **more: object) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in check_structure(word_program(words, **more))[0]]


def first(words: list[list[str]], **more: object) -> Diagnostic:
    return verify(word_program(words, **more)).diagnostics[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [["F0", "B0"], ["F0"]],
            [("PD206", "B (or I and W) of stage 1 never runs for microbatch 0")],
        ),
        (
            [["F0", "F1", "B0", "B1"], ["B1"]],
            [
                ("PD206", "F of stage 1 never runs for microbatches 0, 1"),
                ("PD206", "B (or I and W) of stage 1 never runs for microbatch 0"),
            ],
        ),
        ([["F0", "I0"]], [("PD206", "W of stage 0 never runs for microbatch 0")]),
        ([["F0", "W0"]], [("PD206", "I of stage 0 never runs for microbatch 0")]),
        ([["F0", "F0", "B0"]], [("PD207", "F stage 0 microbatch 0 runs a second time")]),
        ([["F0", "B0", "W0"]], [("PD208", "B stage 0 microbatch 0 runs, and W of the same microbatch too")]),
        (
            [["B0", "F0"]],
            [("PD209", "rank 0 runs B stage 0 microbatch 0 before F stage 0 microbatch 0, which it needs")],
        ),
        (
            [["F0", "W0", "I0"]],
            [("PD209", "rank 0 runs W stage 0 microbatch 0 before I stage 0 microbatch 0, which it needs")],
        ),
        (
            [["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]],
            [("PD209", "ranks 0, 1 wait for each other, whatever the transport")],
        ),
        (
            [["F0", "SEND_F0", "RECV_B0", "B0"], ["F0", "B0", "SEND_B0"]],
            [("PD210", "RECV_F of stage 1 is missing for microbatch 0: the activation from stage 0")],
        ),
        (
            [["F0", "SEND_F0", "B0"], ["RECV_F0", "F0", "B0", "SEND_B0"]],
            [("PD210", "RECV_B of stage 0 is missing for microbatch 0: the gradient from stage 1")],
        ),
        (
            [["F0", "SEND_F0", "RECV_B0", "B0"], ["RECV_F0", "F0", "SEND_F0", "B0", "SEND_B0"]],
            [("PD210", "SEND_F stage 1 microbatch 0 is needless: there is no stage beyond it")],
        ),
        (
            [["F0", "RECV_B0", "B0", "SEND_F0"], ["RECV_F0", "F0", "B0", "SEND_B0"]],
            [("PD209", "ranks 0, 1 wait for each other, whatever the transport")],
        ),
        (
            [["SEND_F0", "F0", "RECV_B0", "B0"], ["F0", "RECV_F0", "B0", "SEND_B0"]],
            [
                ("PD209", "rank 0 runs SEND_F stage 0 microbatch 0 before F stage 0 microbatch 0, which it needs"),
                ("PD209", "rank 1 runs F stage 1 microbatch 0 before RECV_F stage 1 microbatch 0, which it needs"),
            ],
        ),
    ],
)
def test_findings(words: list[list[str]], expected: list[tuple[str, str]]) -> None:
    assert findings(words) == expected


def test_messages_between_chunks_of_one_rank_are_needless() -> None:
    found = findings([["F0@0", "SEND_F0@0", "F0@1", "B0@1", "B0@0"]], placement=[0, 0])
    assert found == [("PD210", "SEND_F stage 0 microbatch 0 is needless: stage 1 is on the same rank")]


def test_stages_that_lack_the_same_are_one_finding() -> None:
    words = [[op for op in word if not op.endswith(("3", "4", "5", "6", "7"))] for word in gpipe(4, 8)]
    assert findings(words, microbatches=8) == [
        ("PD206", "F of stages 0, 1, 2, 3 never runs for microbatches 3, 4, 5 (and 2 more)"),
        ("PD206", "B (or I and W) of stages 0, 1, 2, 3 never runs for microbatches 3, 4, 5 (and 2 more)"),
    ]


def test_what_is_missing_is_found_without_counting_to_the_number_of_microbatches() -> None:
    found = findings([["F0", "B0"]], microbatches=10**15)
    assert found[0] == ("PD206", f"F of stage 0 never runs for microbatches 1, 2, 3 (and {10**15 - 4} more)")


def test_a_second_time_shows_the_first() -> None:
    found = first([["F0", "F0", "B0"]])
    assert found.span is not None
    assert [(label.span.start, label.text) for label in found.labels] == [(0, "the first time is here")]
    assert found.span.start == 3


def test_a_cycle_is_shown_rank_by_rank() -> None:
    found = first([["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]])
    assert [label.text for label in found.labels] == [
        "rank 0 waits here, at B stage 0 microbatch 0, for B stage 1 microbatch 0; "
        "rank 1 runs that only after F stage 1 microbatch 1",
        "rank 1 waits here, at F stage 1 microbatch 1, for F stage 0 microbatch 1; "
        "rank 0 runs that only after B stage 0 microbatch 0",
    ]


def test_out_of_range() -> None:
    program = word_program(one_f_one_b(2, 2))

    def found(**changes: object) -> list[str]:
        return [f"{one.code} {one.message}" for one in check_structure(replace(program, **changes))[0]]

    assert found(microbatches=1) == ["PD205 F stage 0 microbatch 1 does not exist: there is 1 microbatch (and 3 more)"]
    assert found(stages=1, placement=program.placement[:, :1])[0].startswith("PD204 F stage 1 microbatch 0")
    assert found(placement=np.array([[1, 0]]))[0].startswith("PD204 F stage 0 microbatch 0 runs on a rank that")
    assert found(placement=np.array([[0, 2]])) == ["PD202 stage 1 is placed on rank 2, but there are 2 ranks"]


def test_every_single_omission_and_repetition_is_found() -> None:
    """Each operation of a right program removed, and each written twice, is found and named."""
    words = zb_h1(3, 4)
    for rank, word in enumerate(words):
        for at, operation in enumerate(word):
            name = f"{operation[0]} stage {rank} microbatch {operation[1:]}"
            without = [*words[:rank], [*word[:at], *word[at + 1 :]], *words[rank + 1 :]]
            twice = [*words[:rank], [*word[:at], operation, *word[at:]], *words[rank + 1 :]]
            assert {code for code, _ in findings(without, microbatches=4)} == {"PD206"}
            assert findings(twice) == [("PD207", f"{name} runs a second time")]


def naive_order_is_possible(program: Program) -> bool:
    """Whether the dependency graph, built in the open, has no cycle."""
    rows = {(Kind(program.kind[r]), int(program.stage[r]), int(program.microbatch[r])): r for r in range(len(program))}
    graph = networkx.DiGraph()
    for (kind, stage, i), row in rows.items():
        before = {
            Kind.F: [(Kind.F, stage - 1)],
            Kind.B: [(Kind.F, stage), (Kind.B, stage + 1)],
        }[kind]
        graph.add_edges_from((rows[other, at, i], row) for other, at in before if (other, at, i) in rows)
    for rank in range(program.ranks):
        graph.add_edges_from(zip(program.rows(rank), program.rows(rank)[1:], strict=False))
    return networkx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("seed", range(200))
def test_wrong_orders_against_a_graph(seed: int) -> None:
    draw = np.random.default_rng(seed)
    words = gpipe(2, 2) if seed % 2 else one_f_one_b(3, 2)
    for word in words:
        for _ in range(int(draw.integers(0, 3))):
            a, b = draw.integers(0, len(word), 2)
            word[a], word[b] = word[b], word[a]
    program = word_program(words)
    found, timeline = check_structure(program)
    assert (timeline is not None) == (not found) == naive_order_is_possible(program)
    assert {one.code for one in found} <= {"PD209"}


def test_dependency_graph() -> None:
    program = word_program(one_f_one_b(3, 4))
    graph = dependency_graph(program)
    assert networkx.is_directed_acyclic_graph(graph)
    assert len(graph) == len(program)
    assert graph.nodes[0] == {"kind": "F", "stage": 0, "microbatch": 0, "replica": 0, "rank": 0}
    sequence = {row: at for at, row in enumerate(simulate(program).sequence.tolist())}
    assert all(sequence[a] < sequence[b] for a, b in graph.edges)
    assert networkx.dag_longest_path_length(graph) <= len(program)


def test_memory_over_the_cap_shows_what_is_alive() -> None:
    found = first(one_f_one_b(4, 8), sizes=memory(4, 4, 2, weights=1, cap=9))
    assert (found.code, found.message) == ("PD401", "rank 0 holds 10 at its peak, 1 over its cap of 9")
    assert [label.text for label in found.labels] == ["the peak is at F stage 0 microbatch 3"]
    assert found.notes == (
        "the peak is at time 3, when F stage 0 microbatch 3 starts; alive then:",
        "weights: 1",
        "gradients: 1",
        "activations: 8, stage 0: 4 x 2, microbatches 0, 1, 2, 3",
    )


def test_memory_at_the_cap_is_fine() -> None:
    assert verify(word_program(one_f_one_b(4, 8), sizes=memory(4, 4, cap=4))).verdict is Verdict.VERIFIED


def test_memory_held_for_w_and_buffers_are_told() -> None:
    found = first(
        [["F0", "I0", "F1", "I1", "W0", "W1"], ["F0", "I0", "F1", "I1", "W0", "W1"]],
        sizes=memory(2, 2, 4, 2, output=1, cap=6),
    )
    assert found.code == "PD401"
    assert found.notes == (
        "the peak is at time 5, at irecv B1@0 from rank 1; alive then:",
        "activations: 4, stage 0: 1 x 4, microbatch 1",
        "held for W: 2, stage 0: 1 x 2, microbatch 0",
        "send buffers: 1, F1@1",
        "receive buffers: 1, B1@0",
    )


def test_weights_alone_over_the_cap() -> None:
    found = first([["F0", "B0"]], sizes=memory(1, 1, 0, weights=5, cap=9))
    assert found.message == "rank 0 holds 10 at its peak, 1 over its cap of 9"


@pytest.mark.parametrize(("size", "text"), [(3 * 2**30 // 2, "1.5 GiB"), (2**20, "1 MiB"), (1000, "1000 bytes")])
def test_sizes_in_bytes(size: int, text: str) -> None:
    from fractions import Fraction

    assert size_text(Fraction(size), in_bytes=True) == text


def test_buffers_freed_too_soon_and_data_used_too_soon() -> None:
    program = word_program(one_f_one_b(2, 2))
    calls = lower(program, simulate(program))

    def moved(label: str, rank: int, to: int) -> list[str]:
        rows = list(range(len(calls)))
        at = next(row for row in calls.rows(rank) if calls.label(row) == label)
        rows.remove(at)
        rows.insert(to, at)
        columns = ("kind", "peer", "tag", "request", "batch", "op")
        changed = replace(calls, order=None, **{name: getattr(calls, name)[rows] for name in columns})
        return [f"{one.code} {one.message}" for one in verify(program, changed).diagnostics]

    assert moved("wait 0", 0, calls.rows(0).stop - 1)[0] == (
        "PD305 B stage 0 microbatch 0 frees what `isend F0@1 to rank 1` may still be sending"
    )
    assert moved("wait 2", 0, calls.rows(0).stop - 1)[0].startswith("PD209 B stage 0 microbatch 0 runs before its data")
