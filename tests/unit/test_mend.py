"""Programs with communication of their own, mended: the same computations, safe on every transport, and as a text."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from words import one_f_one_b, word_program

from pipedsl.api import load, verify, verify_text
from pipedsl.calls_json import read_calls, write_calls
from pipedsl.lower import lower
from pipedsl.program import COMMUNICATION, Program
from pipedsl.sched_text import program_text
from pipedsl.simulate import simulate
from verify import Verdict, check_calls, mend_calls, mend_program
from verify.transports import BY_NAME

GOLDEN = Path(__file__).parents[1] / "golden"
BROKEN = [
    "pd209_received_too_late",
    "pd209_sent_before_made",
    "pd210_half_written",
    "pd210_no_receive",
    "pd210_same_rank",
    "pd301_both_send_first",
    "pd301_only_eager",
    "pd301_three_ranks",
    "pd301_torch_172668_first",
    "pd301_torch_172668_second",
    "pd302_crossed",
    "pd302_gradients",
]


def golden(name: str) -> Program:
    path = GOLDEN / f"{name}.sched"
    arguments = shlex.split(path.read_text().split("\n", 1)[0].removeprefix("# args: "))
    params = dict(re.fullmatch(r"(\w+)=(\d+)", each).groups() for each in arguments if "=" in each)  # type: ignore[union-attr]
    result = verify(load(str(path)), {key: int(value) for key, value in params.items()})
    assert result.verdict is Verdict.REJECTED
    assert result.program is not None
    return result.program


def computations(program: Program) -> list[list[tuple[int, int, int]]]:
    rows = zip(program.kind.tolist(), program.stage.tolist(), program.microbatch.tolist(), strict=True)
    table = list(rows)
    return [[table[k] for k in program.rows(r) if table[k][0] not in COMMUNICATION] for r in range(program.ranks)]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_communication_is_mended(name: str) -> None:
    program = golden(name)
    mended = mend_program(program).program
    assert mended is not None
    assert computations(mended) == computations(program)
    report = verify_text(program_text(mended), {})
    assert (report.verdict, report.diagnostics) == (Verdict.VERIFIED, ())
    assert set(report.transports.values()) == {"safe"}
    again = mend_program(mended).program
    assert again is not None
    assert program_text(again) == program_text(mended)


@pytest.mark.parametrize("name", ["pd206_last_backward", "pd207_sent_twice", "pd209_waits_for_later"])
def test_what_no_place_of_a_message_mends(name: str) -> None:
    program = golden(name)
    result = mend_program(program)
    if result.program is None:
        assert result.reason
    else:  # only its communication was wrong
        assert verify_text(program_text(result.program), {}).verdict is Verdict.VERIFIED


def test_a_span_stays_with_its_operation() -> None:
    program = golden("pd301_both_send_first")
    mended = mend_program(program).program
    assert mended is not None
    for row in range(len(mended)):
        kind = mended.label(row).split()[0]
        assert mended.span_of(row).text.startswith(kind)


def test_a_program_without_communication_is_left_alone() -> None:
    program = word_program(one_f_one_b(3, 4))
    assert mend_program(program).program is program


CASES = [
    case
    for name in ("pp_bugs", "p2p_cases")
    for case in json.loads((GOLDEN.parent / "cases" / f"{name}.json").read_text())
]
NOT_MENDABLE = {
    "asymmetric_batch": "the message of `irecv y from rank 1` is never sent",
    "mbi_buffering_sameprocess_send_recv": "sends to itself",
    "mbi_callmatching_recv_send": "even if every message is buffered",
    "mbi_unmatched_send": "is never received",
    "mbi_two_recvs": "sends to itself",
    "corrbench_tag_mismatch_send_recv": "is never received",
    "corrbench_tag_drift_loop": "is never received",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases_are_mended_or_said_why_not(case: dict) -> None:
    result = mend_calls(read_calls(case["calls"]))
    if case["name"] in NOT_MENDABLE:
        assert result.calls is None
        assert NOT_MENDABLE[case["name"]] in str(result.reason)
        return
    assert result.calls is not None
    report = check_calls(read_calls(write_calls(result.calls)), tuple(BY_NAME))
    assert (report.verdict, report.diagnostics) == (Verdict.VERIFIED, ())


def test_large_calls_are_mended_in_linear_time() -> None:
    program = word_program(one_f_one_b(4, 400))
    calls = lower(program, simulate(program))
    mended = mend_calls(calls).calls
    assert mended is not None
    assert len(mended) >= len(calls)
    assert np.array_equal(mended.op[mended.kind == 0], calls.op[calls.kind == 0])
