"""torch pipelining CSV: what is read, what is wrong with a file and where, what is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np
import pytest
from words import gpipe, interleaved, one_f_one_b, word_program, zb_h1

from pipedsl.calls import CallKind, Calls
from pipedsl.codes import CODES
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Source
from pipedsl.lower import lower
from pipedsl.parser import read_source
from pipedsl.program import Kind, Program
from pipedsl.simulate import simulate
from pipedsl.torch_csv import read_csv, text_limits, write_csv
from verify import Verdict, verify

CSV_CODES = [code for code in CODES if code.startswith("PD12")]

TWO = "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def read(text: str, limits: Limits | None = None) -> Program:
    return read_csv(Source("given.csv", text), limits or Limits())


def problems(text: str, limits: Limits | None = None) -> list[Diagnostic]:
    """What the reader, or the verifier after it, says."""
    try:
        return list(verify(read(text, limits)).diagnostics)
    except DiagnosticError as error:
        return list(error.diagnostics)


def operations(program: Program, rank: int) -> list[str]:
    return [
        f"{program.stage[row]}{Kind(program.kind[row]).name}{program.microbatch[row]}" for row in program.rows(rank)
    ]


# ------------------------------------------------------------------ reading


def test_everything_is_derived_from_the_operations() -> None:
    program = read(TWO)
    assert program.params == {"p": 2, "m": 2}
    assert (program.ranks, program.stages, program.microbatches) == (2, 2, 2)
    assert program.placement.tolist() == [[0, 1]]
    assert [operations(program, rank) for rank in range(2)] == [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "1B0", "1F1", "1B1"],
    ]
    assert program.name == "given"
    assert verify(program).verdict is Verdict.VERIFIED
    assert int(simulate(program).makespan) == 9  # F = 1, B = 2; idle cells take no time


def test_spans_point_at_the_operations() -> None:
    program = read(TWO)
    assert [program.span_of(row).text for row in program.rows(1)] == ["1F0", "1B0", "1F1", "1B1"]
    span = program.span_of(int(program.offsets[1]) + 2)
    assert (span.line, span.column) == (2, 9)
    assert [span.text for span in program.spans[:2]] == ["0F0", "0F1"]
    assert program.rank_spans[1] is not None
    assert program.rank_spans[1].text == "1F0,1B0,1F1,1B1"


def test_an_overlap_is_its_two_computations_in_sequence() -> None:
    program = read("0F0,1F0,1B0,( 0F1 ;0B0)OVERLAP_F_B,1F1,1B1,0B1\n")
    assert operations(program, 0) == "0F0 1F0 1B0 0F1 0B0 1F1 1B1 0B1".split()
    assert [program.span_of(row).text for row in (3, 4)] == ["0F1", "0B0"]
    assert verify(program).verdict is Verdict.VERIFIED


def test_sharding_is_checked_and_left_out() -> None:
    program = read("0UNSHARD,0F0,0B0,0RESHARD\n")
    assert operations(program, 0) == ["0F0", "0B0"]


def test_reduce_grad_is_a_reduce() -> None:
    text = "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1REDUCE_GRAD,1SEND_B0\n"
    program = read(text)
    assert [Kind(kind) for kind in program.kind[4:9]] == [Kind.REDUCE, Kind.RECV_F, Kind.F, Kind.B, Kind.REDUCE]
    assert program.microbatch[program.kind == Kind.REDUCE].tolist() == [-1, -1]
    assert program.span_of(4).text == "0REDUCE_GRAD"
    assert verify(program).verdict is Verdict.VERIFIED
    assert write_csv(program) == text


def test_a_reduce_is_written_with_communication_and_without() -> None:
    program = word_program([["F0", "B0", "REDUCE"]])
    assert write_csv(program) == write_csv(program, lower(program, simulate(program))) == "0F0,0B0,0REDUCE_GRAD\n"


@pytest.mark.parametrize(
    "text",
    [
        TWO.replace("\n", "\r\n"),
        TWO.rstrip("\n"),
        TWO.replace("1B1\n", "1B1,,,\n"),
        TWO.replace("0F0,0F1", '"0F0", 0F1\t'),
        TWO.replace("0F1", "00F01"),
    ],
    ids=["crlf", "no_last_line_end", "trailing_commas", "quotes_and_spaces", "leading_zeros"],
)
def test_harmless_ways_to_write_it(text: str) -> None:
    assert write_csv(read(text)) == write_csv(read(TWO))


def test_a_byte_order_mark_is_harmless() -> None:
    source = read_source("given.csv", b"\xef\xbb\xbf" + TWO.encode(), Limits())
    assert write_csv(read_csv(source)) == write_csv(read(TWO))


# ------------------------------------------------------------------ what is wrong


@dataclass(frozen=True)
class Wrong:
    """A file, and the first finding: its code, line, column, the text pointed at, and words of the message."""

    text: str
    code: str
    line: int
    column: int
    token: str
    words: str


WRONG = {
    "junk_letter": Wrong("0F0x,0B0\n", "PD120", 1, 4, "x", "rank 0, step 0: `x` after `0F0`"),
    "junk_number": Wrong("0F0,0B0 1\n", "PD120", 1, 8, " 1", "rank 0, step 1"),
    "junk_cell": Wrong("0F0;0B0\n", "PD120", 1, 4, ";0B0", "after `0F0`"),
    "junk_after_sharding": Wrong("0UNSHARD-,0F0,0B0\n", "PD120", 1, 9, "-", "after `0UNSHARD`"),
    "unknown_kind": Wrong("0F0,,0Q0\n", "PD120", 1, 7, "Q", "rank 0, step 2: there is no kind `Q`"),
    "lower_case": Wrong("0F0,0b0\n", "PD120", 1, 6, "b", "no kind `b`"),
    "half_a_word": Wrong("0F0,0SEND_0\n", "PD120", 1, 6, "SEND_", "no kind `SEND_`"),
    "offload": Wrong("0F0,0OFFLOAD0,0B0\n", "PD120", 1, 6, "OFFLOAD", "no kind `OFFLOAD`"),
    "no_stage": Wrong("F0,0B0\n", "PD120", 1, 1, "F0", "names no stage"),
    "no_kind": Wrong("00,0B0\n", "PD120", 1, 1, "00", "not an operation"),
    "negative": Wrong("-1F0,0B0\n", "PD120", 1, 1, "-1F0", "not an operation"),
    "arabic_digits": Wrong("٠F0,0B0\n", "PD120", 1, 1, "٠F0", "not an operation"),
    "nul": Wrong("0F0,\0\n", "PD120", 1, 5, "\0", r"`\x00` is not an operation"),
    "old_line_ends": Wrong("0F0\r0B0\r", "PD120", 1, 4, "\r0B0", r"`\r0B0` after `0F0`"),
    "open_quote": Wrong('0F0,"0B0\n0F1\n', "PD120", 1, 5, '"0B0', "quotes"),
    "quote_in_the_middle": Wrong('0F0,0"B"0\n', "PD120", 1, 5, '0"B"0', "not an operation"),
    "comma_in_quotes": Wrong('"0F0,0B0"\n', "PD120", 1, 5, ",0B0", "after `0F0`"),
    "tabs_between": Wrong("0F0\t0B0\n", "PD120", 1, 4, "\t0B0", "after `0F0`"),
    "header_line": Wrong("Rank 0,Rank 1\n0F0,0B0\n", "PD120", 1, 1, "Rank 0", "not an operation"),
    "overlap_of_three": Wrong("(0F0;0B0;0F1)OVERLAP_F_B\n", "PD120", 1, 1, "(0F0;0B0;0F1)OVERLAP_F_B", "one forward"),
    "overlap_of_forwards": Wrong("(0F0;0F1)OVERLAP_F_B\n", "PD120", 1, 1, "(0F0;0F1)OVERLAP_F_B", "one forward"),
    "overlap_of_nothing": Wrong("()OVERLAP_F_B\n", "PD120", 1, 1, "()OVERLAP_F_B", "one forward"),
    "overlap_of_sends": Wrong("(0F0;0SEND_F0)OVERLAP_F_B\n", "PD120", 1, 1, "(0F0;0SEND_F0)OVERLAP_F_B", "one forward"),
    "overlap_of_junk": Wrong("(0F0;0B0y)OVERLAP_F_B\n", "PD120", 1, 9, "y", "rank 0, step 0: `y` after `0B0`"),
    "overlap_of_another_kind": Wrong("(0F0;0B0)F\n", "PD120", 1, 1, "(0F0;0B0)F", "not an operation"),
    "overlap_not_closed": Wrong("(0F0;0B0OVERLAP_F_B\n", "PD120", 1, 1, "(0F0;0B0OVERLAP_F_B", "not an operation"),
    "no_microbatch": Wrong("0F,0B0\n", "PD121", 1, 1, "0F", "names no microbatch"),
    "microbatch_of_a_stage": Wrong("0UNSHARD1,0F0,0B0\n", "PD121", 1, 1, "0UNSHARD1", "not of a microbatch"),
    "stage_on_two_ranks": Wrong(TWO.replace("1F1", "0F1"), "PD122", 2, 9, "0F1", "rank 1, step 2: `0F1` is"),
    "empty_file": Wrong("", "PD123", 1, 1, "", "rank 0 has no operations"),
    "line_ends_only": Wrong("\n\n", "PD123", 1, 1, "", "rank 0 has no operations"),
    "commas_only": Wrong("0F0,0B0\n,,\n", "PD123", 2, 1, ",,", "rank 1 has no operations"),
    "blank_line_inside": Wrong(TWO.replace("\n", "\n\n", 1), "PD123", 2, 1, "", "rank 1 has no operations"),
    "blank_line_at_the_end": Wrong(TWO + "\n", "PD123", 3, 1, "", "rank 2 has no operations"),
    "no_computations": Wrong("0SEND_F0\n1RECV_F0\n", "PD123", 1, 1, "", "holds no computations"),
    "sharding_elsewhere": Wrong(
        TWO.replace("1F0", "0UNSHARD,1F0"), "PD124", 2, 1, "0UNSHARD", "rank 1, step 0: the rank"
    ),
    "sharding_of_no_stage": Wrong("9UNSHARD,0F0,0B0\n", "PD124", 1, 1, "9UNSHARD", "does not hold stage 9"),
    "unshard_twice": Wrong("0UNSHARD,0F0,0UNSHARD,0B0\n", "PD124", 1, 14, "0UNSHARD", "second time"),
    "reshard_first": Wrong("0RESHARD,0UNSHARD,0F0,0B0\n", "PD124", 1, 1, "0RESHARD", "what is sharded"),
    "reshard_unused": Wrong("0UNSHARD,0RESHARD,0UNSHARD,0F0,0B0\n", "PD124", 1, 10, "0RESHARD", "not used"),
    "unshard_unused": Wrong("0UNSHARD,0F0,0B0,0RESHARD,0UNSHARD\n", "PD124", 1, 27, "0UNSHARD", "not used after"),
    "computes_sharded": Wrong("0UNSHARD,0F0,0RESHARD,0B0\n", "PD124", 1, 23, "0B0", "parameters that are sharded"),
    "reduced_early": Wrong("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", "PD124", 1, 26, "0B1", "gradients that are reduced"),
    "reduced_twice": Wrong("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", "PD124", 1, 22, "0REDUCE_GRAD", "a second time"),
    "absent_stage": Wrong("0F0,0B0\n2F0,2B0\n3F0,3B0\n", "PD202", 1, 1, "", "no rank runs stage 1"),
    "stage_out_of_range": Wrong(TWO.replace("1B0", "9B0"), "PD204", 2, 5, "9B0", "rank 1, step 1: `9B0`"),
    "next_stage": Wrong("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,2F1,1B1,1F2,1B2\n", "PD204", 2, 9, "2F1", "are 0 .. 1"),
    "enormous_stage": Wrong(TWO.replace("1B0", "9" * 5000 + "B0"), "PD204", 2, 5, "9" * 5000 + "B0", "does not exist"),
    "microbatch_out_of_range": Wrong(TWO.replace("1B1", "1B9"), "PD205", 2, 13, "1B9", "rank 1, step 3: `1B9`"),
    "next_microbatch": Wrong(TWO.replace("1B1", "1B2"), "PD205", 2, 13, "1B2", "are 0 .. 1"),
    "enormous_microbatch": Wrong(TWO.replace("1B1", "1B4294967297"), "PD205", 2, 13, "1B4294967297", "does not exist"),
    "far_microbatch": Wrong("0F999999999,0B999999999\n", "PD205", 1, 1, "0F999999999", "numbered from 0"),
    "twice": Wrong(TWO.replace("1F1", "1F0,1F1"), "PD207", 2, 9, "1F0", "F stage 1 microbatch 0 runs a second time"),
    "forgotten": Wrong(TWO.replace("1B0,", ""), "PD206", 2, 1, "1F0,1F1,1B1", "B (or I and W) of stage 1"),
    "both_forms": Wrong("0F0,0B0,0I0,0W0\n", "PD208", 1, 5, "0B0", "I of the same microbatch"),
    "backward_first": Wrong("0B0,0F0\n", "PD209", 1, 1, "0B0", "before F stage 0 microbatch 0"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_the_first_finding(wrong: Wrong) -> None:
    first = problems(wrong.text)[0]
    assert first.span is not None
    assert (first.code, first.span.line, first.span.column) == (wrong.code, wrong.line, wrong.column)
    assert first.span.text == wrong.token
    assert wrong.words in first.message
    assert len(first.message) < 200


def test_every_own_code_has_a_case() -> None:
    assert {wrong.code for wrong in WRONG.values()} >= set(CSV_CODES)


@pytest.mark.parametrize("code", CSV_CODES)
def test_examples_of_the_explanation(code: str) -> None:
    text = files("pipedsl").joinpath("explanations", f"{code}.md").read_text("utf-8")
    examples = dict(re.findall(r"^```csv (fails|verified)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert {each.code for each in problems(examples["fails"])} == {code}
    assert verify(read(examples["verified"])).verdict is Verdict.VERIFIED


def test_all_cells_are_reported_at_once() -> None:
    found = problems("0F0x,0Q0,0F1\n1F,1B0 2\n")
    assert [each.code for each in found] == ["PD120", "PD120", "PD121", "PD120"]


def test_twice_points_at_both() -> None:
    (found,) = problems("0F0,0B0,0F0\n")
    assert found.span is not None
    assert (found.span.column, [label.span.column for label in found.labels]) == (9, [1])


def test_two_sends_of_one_message_arrive_at_the_verifier() -> None:
    program = word_program(one_f_one_b(2, 2))
    text = write_csv(program, lower(program, simulate(program)))
    found = problems(text.replace("0SEND_F0", "0SEND_F0,0SEND_F0"))
    assert [each.code for each in found] == ["PD207"]


def test_a_moved_operation_names_the_rank_that_holds_its_stage() -> None:
    (found,) = problems(TWO.replace("1F0,", "").replace("0F0", "0F0,1F0"))
    assert found.code == "PD122"
    assert [label.text for label in found.labels] == ["rank 1 runs stage 1 here"]


def test_one_wrong_number_is_one_finding() -> None:
    text = write_csv(word_program(interleaved(4, 8, 2), [0, 1, 2, 3] * 2))
    for right, wrong in (("5F3", "5F8"), ("5F3", "8F3"), ("5F3", "4F3"), ("6B7", "6B70"), ("0F0", "70F0")):
        assert len(problems(text.replace(right, wrong))) == 1, (right, wrong)


def test_findings_are_limited() -> None:
    assert len(problems("?," * 10_000)) <= 50
    assert len(problems("\n" * 10_000)) <= 50
    assert len(problems(",".join(f"{n}F0" for n in range(0, 20_000, 7)))) <= 50


def test_limits() -> None:
    assert [each.code for each in problems(TWO, Limits(operations=7))] == ["PD104"]
    # A line for each of many stages with microbatches of their own: small to write, large as a table.
    text = "".join(f"{n}F{n},{n}B{n}\n" for n in range(300))
    assert [each.code for each in problems(text, Limits(operations=10_000))] == ["PD104"]
    assert text_limits(Limits(operations=10**6)).source_bytes > 10**7


@pytest.mark.parametrize("data", [b"0F0,\xff\n", b"0F0,\0\n", TWO.encode("utf-16")], ids=["latin_1", "nul", "utf_16"])
def test_what_is_not_text(data: bytes) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_csv(read_source("given.csv", data, Limits()))
    assert [each.code for each in caught.value.diagnostics] == ["PD101"]


# ------------------------------------------------------------------ writing

PROGRAMS = {
    "gpipe": word_program(gpipe(3, 4)),
    "1f1b": word_program(one_f_one_b(4, 8)),
    "zb_h1": word_program(zb_h1(4, 8)),
    "interleaved": word_program(interleaved(2, 4, 2), [0, 1, 0, 1]),
}


def same(one: Program, other: Program) -> bool:
    columns = ("offsets", "kind", "stage", "microbatch", "replica", "placement")
    return all(np.array_equal(getattr(one, column), getattr(other, column)) for column in columns)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_what_is_written_is_read_back(program: Program) -> None:
    assert same(read(write_csv(program)), program)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_communication_is_written_where_the_calls_have_it(program: Program) -> None:
    calls = lower(program, simulate(program))
    back = read(write_csv(program, calls))
    assert back.explicit_communication
    again = lower(back, simulate(back))
    for rank in range(program.ranks):
        assert messages(again, rank) == messages(calls, rank)
    report = verify(back)
    assert report.verdict is Verdict.VERIFIED
    assert set(report.transports.values()) == {"safe"}


def messages(calls: Calls, rank: int) -> list[str]:
    return [calls.label(row) for row in calls.rows(rank) if calls.kind[row] in (CallKind.ISEND, CallKind.IRECV)]


def test_a_program_with_communication_is_written_as_it_is() -> None:
    program = PROGRAMS["1f1b"]
    text = write_csv(program, lower(program, simulate(program)))
    assert write_csv(read(text)) == text


def test_what_has_no_place_in_the_file() -> None:
    replicas = word_program([["F0", "B0"]])
    replicas = replace(replicas, placement=np.array([[0], [0]]))
    offload = word_program([["F0", "OFFLOAD0", "B0"]])
    program = PROGRAMS["1f1b"]
    calls = lower(program, simulate(program))
    batched = replace(calls, batch=np.zeros_like(calls.batch))
    idle = word_program([["F0", "B0"], []], placement=[0])
    for attempt in (
        lambda: write_csv(replicas),
        lambda: write_csv(offload),
        lambda: write_csv(program, batched),
        lambda: write_csv(idle),
        lambda: write_csv(idle, lower(idle, simulate(idle))),
    ):
        with pytest.raises(DiagnosticError) as caught:
            attempt()
        assert [each.code for each in caught.value.diagnostics] == ["PD113"]
