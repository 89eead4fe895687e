"""What the report says of each real bug is what caused it: the pair, the calls at its heads, the way out."""

import json
from pathlib import Path

import pytest

from pipedsl.calls_json import read_calls
from verify import Report, check_calls

CASES = {
    case["name"]: case
    for name in ("pp_bugs", "p2p_cases")
    for case in json.loads((Path(__file__).parents[1] / "cases" / f"{name}.json").read_text())
}


def report_of(name: str) -> Report:
    return check_calls(read_calls(CASES[name]["calls"]))


def text_of(report: Report) -> str:
    return "\n".join(
        f"{one.code} {one.message}\n" + "\n".join((*one.notes, one.help or "")) for one in report.diagnostics
    )


FACTS = {
    "pair_send_first": [
        "pair (0, 1): heads S,S at position 1: both ranks send, `isend F1@1 to rank 1` and `isend F0@2 to rank 0`",
        "`isend F1@1 to rank 1` and `irecv F0@2 from rank 1` on rank 0 in one batch",
        "on rank 0, `irecv F0@2 from rank 1` before `isend F1@1 to rank 1`",
    ],
    "pair_mirror_break": [
        "pair (0, 1): heads S,S at position 2: both ranks send, `isend 0F2 to rank 1` and `isend 2B0 to rank 0`",
    ],
    "ring_unbatched": [
        "deadlock in connection set-up: ranks 0, 1, 2 and 3 wait for each other on nccl-lazy",
        "deadlock: ranks 0, 1, 2 and 3 wait for each other on nccl-eager-warm, nccl-eager",
        "warm up the edge 0-1 before the first step (then safe on nccl-lazy)",
    ],
    "pp2_same_peer_fifo": [
        "PD302 rank 1 receives grad from rank 0 where it wants act",
        "PD302 rank 0 receives grad from rank 1 where it wants act",
        "NCCL goes by order alone",
    ],
    "m_lt_p_1f1b": [
        "deadlock in connection set-up: ranks 1 and 2 wait for each other on nccl-lazy",
        "deadlock in connection set-up: ranks 1 and 2 wait for each other on nccl-eager",
        "`batch [irecv F0 from rank 1]` holds the host until rank 1 comes to `batch [isend F0 to rank 2, irecv B0",
        "warm up the edges 0-1, 1-2 of the group",
    ],
    "asymmetric_batch": [
        "PD303 rank 0: the message of `irecv y from rank 1` is never sent",
        "rank 0 never reaches the end on buffered, gloo, nccl-lazy-warm, nccl-eager-warm",
        "ranks 0, 1 never reach the end on nccl-lazy, nccl-eager",
    ],
    "target_to_last_stage": [
        "in short: rank 0 waits for rank 2 (t0), rank 2 for rank 1 (F0), rank 1 for rank 0 (F0)",
        "rank 0 stands at `send t0 to rank 2`, which needs rank 2 to start `recv t0 from rank 0`",
    ],
    "unwaited_send_buffer_reuse": [
        "PD303 rank 0: `isend F0 to rank 1` is never waited for",
        "a lifetime error: the buffer of F0 may be released before its send has completed",
    ],
    "1f1b_unbatched_steady": [
        "pair (0, 1): heads S,S at position 2: both ranks send, `isend F1 to rank 1` and `isend B0 to rank 0`",
        "`isend F1 to rank 1` and `irecv B0 from rank 1` on rank 0 in one batch",
        "`isend B0 to rank 0` and `irecv F1 from rank 0` on rank 1 in one batch",
    ],
    "mbi_buffering_send_recv": [
        "deadlock: ranks 0 and 1 wait for each other on gloo",
        "use a channel from rank 0 to rank 1 that buffers 1 message (then safe on gloo",
    ],
    "mbi_callmatching_recv_send": ["wait for each other on buffered", "each of them receives before it sends"],
    "mbi_unmatched_send": ["the message of `send 0 to rank 1` is never received"],
    "corrbench_tag_inversion": [
        "rank 1 receives 0 from rank 0 where it wants 1",
        "use a channel from rank 0 to rank 1 that buffers 1 message (then safe on gloo)",
    ],
    "corrbench_tag_drift_loop": [
        "the message of `send 80 to rank 1` is never received (and 3 more)",
        "rank 1 receives 80 from rank 0 where it wants 81: NCCL goes by order alone (and 1 more)",
    ],
    "corrbench_tag_mismatch_send_recv": ["PD302 rank 1 receives 0 from rank 0 where it wants 1"],
}


@pytest.mark.parametrize("name", ["pair_send_first", "pair_mirror_break", "1f1b_unbatched_steady"])
def test_the_hang_comes_first(name: str) -> None:
    assert report_of(name).diagnostics[0].code == "PD301"


@pytest.mark.parametrize("name", FACTS)
def test_the_cause_is_named(name: str) -> None:
    text = text_of(report_of(name))
    for fact in FACTS[name]:
        assert fact in text, text


@pytest.mark.parametrize("name", ["pp2_same_peer_fifo", "unwaited_send_buffer_reuse"])
def test_no_hang_is_told_where_there_is_none(name: str) -> None:
    report = report_of(name)
    assert "PD301" not in {one.code for one in report.diagnostics}
    assert "deadlock" not in report.transports.values()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.get("should_say") == "ok"])
def test_nothing_is_said_of_what_is_right(name: str) -> None:
    assert report_of(name).diagnostics == ()


@pytest.mark.parametrize("name", CASES)
def test_every_transport_that_hangs_for_its_order_has_a_remedy(name: str) -> None:
    """All but those whose messages are left over, to oneself, or wanted before they are made."""
    report = report_of(name)
    hopeless = {"asymmetric_batch", "mbi_buffering_sameprocess_send_recv", "mbi_callmatching_recv_send"}
    hopeless |= {"mbi_unmatched_send", "mbi_two_recvs", "corrbench_tag_mismatch_send_recv", "corrbench_tag_drift_loop"}
    unsafe = {name for name, state in report.transports.items() if state not in ("safe", "undefined")}
    helped = {remedy.transport for remedy in report.remedies}
    assert helped == (set() if name in hopeless else unsafe)


def test_at_most_eight_ranks_are_told_of() -> None:
    ring = {
        "ranks": [
            [["isend", (r + 1) % 12, "x"], ["irecv", (r - 1) % 12, "x"], ["wait", 1], ["wait", 0]] for r in range(12)
        ]
    }
    finding = check_calls(read_calls(ring), ["nccl-eager-warm"]).diagnostics[0]
    assert sum(" stands at " in note for note in finding.notes) == 8
    assert "4 more ranks stand still" in finding.notes


def test_the_ranks_of_the_cycle_are_told_of_first() -> None:
    swap = [["send", 3, "x"], ["recv", 3, "y"]], [["send", 2, "y"], ["recv", 2, "x"], ["send", 0, "z"]]
    calls = read_calls({"ranks": [[["recv", 3, "z"]], [], *swap]})
    notes = [note for note in check_calls(calls, ["gloo"]).diagnostics[0].notes if "stands at" in note]
    assert [note[:6] for note in notes] == ["rank 2", "rank 3", "rank 0"]


def test_a_search_that_costs_too_much_says_so() -> None:
    many = 26_000
    ends = [
        [call for k in range(many) for call in (["isend", 1, f"a{k}"], ["irecv", 1, f"b{k}"])],
        [call for k in range(many) for call in (["isend", 0, f"b{k}"], ["irecv", 0, f"a{k}"])],
    ]
    waits = [["wait", k] for k in range(2 * many)]
    report = check_calls(read_calls({"ranks": [end + waits for end in ends]}), ["nccl-lazy-warm"])
    assert report.transports == {"nccl-lazy-warm": "deadlock"}
    assert "what would help on nccl-lazy-warm was not searched to its end" in report.diagnostics[0].notes[-1]


def test_remedies_are_json() -> None:
    for name in CASES:
        for remedy in report_of(name).remedies:
            assert json.loads(json.dumps(remedy.details)) is not None
