"""Cases from outside: hangs and wrong data of real jobs, and the point-to-point cases of MPI correctness suites."""

import json
from pathlib import Path

import pytest
from words import word_program

from pipedsl.calls import Calls
from pipedsl.calls_json import read_calls
from verify import TRANSPORTS, Report, Verdict, check_calls, verify
from verify.transports import BY_NAME

CASES = [
    case
    for name in ("pp_bugs", "p2p_cases")
    for case in json.loads((Path(__file__).parents[1] / "cases" / f"{name}.json").read_text())
]


def codes(report: Report) -> list[str]:
    return [one.code for one in report.diagnostics]


def hops(report: Report) -> list[str]:
    texts = [text for one in report.diagnostics for text in (*one.notes, *(label.text for label in one.labels))]
    return [text for text in texts if text[0].isdigit()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_deadlocks(case: dict) -> None:
    expected = {name.removesuffix("-cold"): hangs for name, hangs in case["deadlocks"].items()}
    found = check_calls(read_calls(case["calls"]), tuple(expected)).transports
    states = {name: None if state == "undefined" else state == "deadlock" for name, state in found.items()}
    assert states == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_crossings_and_leftovers(case: dict) -> None:
    report = check_calls(read_calls(case["calls"]))
    crossed = case.get("messages_crossed", case.get("messages_crossed_on_nccl"))
    assert bool(crossed) == ("PD302" in codes(report) or "crossed" in report.transports.values())
    if case.get("left_over_when_buffered"):
        assert "PD303" in codes(report)
    clean = not any(case["deadlocks"].values()) and not crossed
    if clean and case["name"] != "unwaited_send_buffer_reuse":
        assert codes(report) == []


def test_a_deadlock_is_shown_hop_by_hop() -> None:
    report = check_calls(read_calls(next(c for c in CASES if c["name"] == "ring_unbatched")["calls"]), ["nccl-eager"])
    assert codes(report) == ["PD301"]
    assert report.diagnostics[0].message == "deadlock: ranks 0, 1, 2 and 3 wait for each other on nccl-eager"
    assert hops(report)[:2] == [
        "1. rank 0: `irecv F3 from rank 3` queues behind `isend F0 to rank 1` on the one stream of rank 0",
        "2. rank 0: `isend F0 to rank 1` needs rank 1 to start `irecv F0 from rank 0`",
    ]
    assert len(hops(report)) == 8


def test_a_cold_first_use_says_of_what() -> None:
    report = check_calls(read_calls(next(c for c in CASES if c["name"] == "m_lt_p_1f1b")["calls"]), ["nccl-lazy"])
    text = "\n".join(hops(report))
    assert "it is the first use of the communicator of the group" in text
    assert "it is the first use of the direction from rank 1 to rank 2" in text


def test_one_reason_is_told_once() -> None:
    crossing = {"ranks": [[["recv", 1, "b"], ["send", 1, "a"]], [["recv", 0, "a"], ["send", 0, "b"]]]}
    report = check_calls(read_calls(crossing))
    assert codes(report) == ["PD301"]
    assert all(name in report.diagnostics[0].message for name in TRANSPORTS)


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ([["isend", 1, "x"]], "rank 0: `isend x to rank 1` is never waited for"),
        (
            [["isend", 1, "x"], ["wait", 0], ["wait", 0]],
            "rank 0: `wait 0` waits for a request that was waited for before",
        ),
        ([["isend", 1, "x"], ["wait", 0], ["wait", 7]], "rank 0: `wait 7` waits for a request that is never made"),
        ([["wait", 0], ["isend", 1, "x"]], "rank 0: `wait 0` comes before the request that it waits for"),
    ],
)
def test_requests(rank: list, message: str) -> None:
    report = check_calls(read_calls({"ranks": [rank, [["recv", 0, "x"]]]}))
    assert (report.diagnostics[0].code, report.diagnostics[0].message) == ("PD303", message)


def test_a_batch_and_a_single_call_never_meet_on_a_lazy_pair() -> None:
    mixed = {"ranks": [[["batch", [["isend", 1, "x"]]], ["wait", 0]], [["recv", 0, "x"]]]}
    report = check_calls(read_calls(mixed))
    assert report.transports["nccl-eager-warm"] == report.transports["gloo"] == "safe"
    assert report.transports["nccl-lazy-warm"] == "deadlock"
    assert "a batched call never meets an unbatched one" in report.diagnostics[0].message


def test_unknown_transport() -> None:
    with pytest.raises(ValueError, match="carrier pigeon"):
        check_calls(read_calls({"ranks": []}), ["carrier pigeon"])


def test_no_calls() -> None:
    report = check_calls(read_calls({"ranks": [[], []]}), tuple(BY_NAME))
    assert report.verdict is Verdict.VERIFIED


# The two hangs of PyTorch issue 172668: stages 0 and 2 on rank 0, 1 and 3 on rank 1.
HANGS = {
    "both send first": [
        "F0@0 SEND_F0@0 F1@0 SEND_F1@0 RECV_F0@2 F0@2 SEND_F0@2 RECV_F1@2 F1@2 SEND_F1@2 "
        "RECV_B0@2 B0@2 SEND_B0@2 RECV_B1@2 B1@2 SEND_B1@2 RECV_B0@0 B0@0 RECV_B1@0 B1@0",
        "RECV_F0@1 F0@1 SEND_F0@1 RECV_F1@1 F1@1 SEND_F1@1 RECV_F0@3 F0@3 RECV_F1@3 F1@3 "
        "B0@3 SEND_B0@3 B1@3 SEND_B1@3 RECV_B0@1 B0@1 SEND_B0@1 RECV_B1@1 B1@1 SEND_B1@1",
    ],
    "mirror broken at the second message": [
        "F0@0 SEND_F0@0 F1@0 RECV_F0@2 SEND_F1@0 F0@2 SEND_F0@2 RECV_F1@2 F1@2 SEND_F1@2 F2@0 SEND_F2@0 "
        "RECV_B0@2 B0@2 SEND_B0@2 RECV_F2@2 F2@2 SEND_F2@2 RECV_B1@2 B1@2 SEND_B1@2 RECV_B2@2 B2@2 SEND_B2@2 "
        "RECV_B0@0 B0@0 RECV_B1@0 B1@0 RECV_B2@0 B2@0",
        "RECV_F0@1 F0@1 SEND_F0@1 RECV_F1@1 F1@1 RECV_F0@3 F0@3 SEND_F1@1 RECV_F1@3 B0@3 SEND_B0@3 F1@3 B1@3 "
        "RECV_F2@1 F2@1 RECV_B0@1 SEND_F2@1 RECV_F2@3 F2@3 SEND_B1@3 B2@3 B0@1 RECV_B1@1 SEND_B2@3 RECV_B2@1 "
        "SEND_B0@1 B1@1 SEND_B1@1 B2@1 SEND_B2@1",
    ],
}


@pytest.mark.parametrize("name", HANGS)
def test_pytorch_172668(name: str) -> None:
    program = word_program([word.split() for word in HANGS[name]], placement=[0, 1, 0, 1])
    report = verify(program)
    assert report.transports["gloo"] == report.transports["buffered"] == "safe"
    assert {state for transport, state in report.transports.items() if "nccl" in transport} == {"deadlock"}
    assert codes(report) == ["PD301"]
    sources = {label.span.text for label in report.diagnostics[0].labels}
    assert {"both send first": {"SEND_F1@0", "SEND_F0@1"}}.get(name, {"SEND_F2@0", "SEND_B0@3"}) <= sources


def test_calls_of_another_program_are_refused() -> None:
    from pipedsl.lower import lower
    from pipedsl.simulate import simulate

    one, other = (
        word_program([["F0", "F1", *order], ["F0", "B0", "F1", "B1"]]) for order in (["B0", "B1"], ["B1", "B0"])
    )
    calls: Calls = lower(one, simulate(one))
    assert codes(verify(one, calls)) == []
    assert codes(verify(word_program([["F0", "B0"], ["F0", "B0"]]), calls))[0] == "PD209"
    assert other.microbatches == 2
