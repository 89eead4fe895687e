"""Named buffers and the size of batches in Calls."""

import pytest

from pipedsl.calls_json import read_calls, write_calls
from pipedsl.diagnostics import DiagnosticError
from verify import check_calls, mend_calls

SEND, RECEIVE = ["isend", 1, "F0", "b"], ["irecv", 1, "F0", "b"]


def found(*calls: list) -> list[str]:
    """What is wrong with these calls of rank 0; rank 1 has the other ends."""
    other = []
    for call in calls:
        for name, _, tag, *_ in [call] if len(call) > 2 else call[1] if call[0] == "batch" else []:
            other.append(["recv" if name.endswith("send") else "send", 0, tag])
    report = check_calls(read_calls({"ranks": [list(calls), other]}), ["buffered"])
    return [one.message for one in report.diagnostics if one.code == "PD305"]


@pytest.mark.parametrize(
    "calls",
    [
        [["write", "b"], SEND, ["wait", 0], ["write", "b"]],
        [SEND, ["read", "b"], ["wait", 0], ["free", "b"]],
        [SEND, ["isend", 1, "F1", "b"], ["wait", 0], ["wait", 1], ["free", "b"]],  # two readers
        [RECEIVE, ["wait", 0], ["read", "b"], ["isend", 1, "F1", "b"], ["wait", 1], ["free", "b"]],
        [["send", 1, "F0", "b"], ["write", "b"], ["send", 1, "F1", "b"]],
        [["free", "b"], ["write", "b"], ["send", 1, "F0", "b"]],
        [SEND, ["irecv", 1, "F1", "other"], ["wait", 1], ["read", "other"], ["wait", 0]],
        [["batch", [SEND, ["isend", 1, "F1", "c"]]], ["wait", 0], ["write", "b"], ["free", "c"]],
    ],
)
def test_right(calls: list) -> None:
    assert found(*calls) == []


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([SEND, ["free", "b"], ["wait", 0]], "`free b` frees buffer b before its send has completed"),
        ([SEND, ["write", "b"], ["wait", 0]], "`write b` writes buffer b before its send has completed"),
        ([SEND, ["irecv", 1, "F1", "b"], ["wait", 0], ["wait", 1]], "receives into buffer b before its send"),
        ([RECEIVE, ["read", "b"], ["wait", 0]], "`read b` reads buffer b before the wait for `irecv F0 from rank 1`"),
        ([RECEIVE, ["isend", 1, "F1", "b"], ["wait", 0], ["wait", 1]], "reads buffer b before the wait for"),
        ([RECEIVE, ["irecv", 1, "F1", "b"], ["wait", 0], ["wait", 1]], "two writers, one buffer"),
        ([RECEIVE, ["free", "b"], ["wait", 0]], "frees buffer b before the wait for `irecv F0 from rank 1`"),
        ([["free", "b"], SEND, ["wait", 0]], "uses buffer b after it was freed"),
        ([["free", "b"], ["free", "b"]], "uses buffer b after it was freed"),
        ([["batch", [SEND, ["irecv", 1, "F1", "b"]]], ["wait", 0]], "receives into buffer b before its send"),
    ],
)  # fmt: skip
def test_wrong(calls: list, message: str) -> None:
    assert len(found(*calls)) == 1
    assert message in found(*calls)[0]


def test_one_finding_a_buffer() -> None:
    (message,) = found(SEND, ["write", "b"], ["write", "b"], ["wait", 0])
    assert message.endswith("(and 1 more)")


def test_names_are_written_back() -> None:
    document = {"ranks": [[["write", "b"], SEND, ["wait", 0], ["free", "b"]], [["recv", 0, "F0"], ["read", "x"]]]}
    assert write_calls(read_calls(document)) == document


@pytest.mark.parametrize(
    "call", [["isend", 1, "x", 3], ["isend", 1, "x", "a", "b"], ["free"], ["free", 1], ["read", "a", "b"]]
)
def test_malformed(call: list) -> None:
    with pytest.raises(DiagnosticError):
        read_calls({"ranks": [[call], []]})


def test_mending_keeps_a_buffer_from_being_received_into_too_early() -> None:
    """The second receive goes into the buffer of the first, and so may not be posted before the first is waited for."""
    ranks = [
        [["isend", 1, "a"], ["isend", 1, "b"], ["irecv", 1, "c"], ["wait", 0], ["wait", 1], ["wait", 2]],
        [["irecv", 0, "a", "in"], ["wait", 0], ["read", "in"], ["isend", 0, "c"], ["irecv", 0, "b", "in"], ["wait", 1],
         ["wait", 2]],
    ]  # fmt: skip
    calls = read_calls({"ranks": ranks})
    assert set(check_calls(calls).transports.values()) >= {"deadlock"}
    mended = mend_calls(calls)
    if mended.calls is None:
        assert "buffer in" in str(mended.reason)
    else:
        assert check_calls(mended.calls).diagnostics == ()


def test_batches_past_the_limit() -> None:
    tags = [f"t{k}" for k in range(5)]
    ranks = [
        [["batch", [[name, 1 - rank, tag] for tag in tags]], ["wait", 0]]
        for rank, name in enumerate(("isend", "irecv"))
    ]
    calls = read_calls({"ranks": ranks})
    assert check_calls(calls, batch_limit=5).diagnostics == ()
    report = check_calls(calls, batch_limit=4)
    assert [one.code for one in report.diagnostics] == ["PD304", "PD304"]
    assert "begins with `isend t0 to rank 1` has 5 operations, and NCCL takes 4" in report.diagnostics[0].message
