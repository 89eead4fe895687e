"""Whatever a CSV holds, it is read or there are findings that point into it; what is written is read back."""

from __future__ import annotations

import random

import numpy as np
from fuzz import mutate
from hypothesis import given, settings
from hypothesis import strategies as st
from words import interleaved, one_f_one_b, word_program, zb_h1

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
from pipedsl.lower import lower
from pipedsl.parser import read_source
from pipedsl.program import Kind, Program
from pipedsl.simulate import simulate
from pipedsl.torch_csv import read_csv, write_csv
from verify import verify

_KINDS = [kind.name for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)]
_PIECES = [*"0 1 2 7 F B I W 999999999 99999999999".split(), *_KINDS, *_KINDS]
_PIECES += [*',,,,""();\t \n\r\0', "\r\n", "\ufeff", "é", "٣", "UNSHARD", "RESHARD", "REDUCE_GRAD", "OVERLAP_F_B"]


def _texts() -> list[str]:
    programs = [word_program(one_f_one_b(2, 3)), word_program(zb_h1(3, 4))]
    programs.append(word_program(interleaved(2, 2, 2), [0, 1, 0, 1]))
    texts = [write_csv(program) for program in programs]
    texts += [write_csv(program, lower(program, simulate(program))) for program in programs]
    return [*texts, "0UNSHARD,(0F1;0B0)OVERLAP_F_B,0RESHARD,0REDUCE_GRAD\n"]


TEXTS = _texts()


def check(data: bytes) -> None:
    limits = Limits(operations=5000)
    try:
        diagnostics = verify(read_csv(read_source("any.csv", data, limits), limits)).diagnostics
    except DiagnosticError as error:
        diagnostics = error.diagnostics or (Diagnostic("", "raised without a finding\n"),)
    for found in diagnostics:
        for span in [found.span, *(label.span for label in found.labels)]:
            if span is not None:
                assert 0 <= span.start <= span.end <= len(span.source.text)
                assert span.line >= 1
        assert "\n" not in found.message
        assert "\0" not in found.message


@given(st.integers(0, 2**32), st.sampled_from(TEXTS))
@settings(max_examples=600, deadline=None)
def test_mutated_files(seed: int, text: str) -> None:
    check(mutate(random.Random(seed), text))


@given(st.lists(st.sampled_from(_PIECES), max_size=40))
@settings(max_examples=400, deadline=None)
def test_pieces_in_no_order(pieces: list[str]) -> None:
    check("".join(pieces).encode())


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data: bytes) -> None:
    check(data)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any order of the operations of a few stages, also ones that cannot run."""
    ranks, chunks, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 5))
    words = []
    for rank in range(ranks):
        stages = [chunk * ranks + rank for chunk in range(chunks)]
        kinds = draw(st.sampled_from(["FB", "FIW"]))
        word = [f"{kind}{i}@{stage}" for stage in stages for i in range(microbatches) for kind in kinds]
        words.append(draw(st.permutations(word)))
    return word_program(words, [stage % ranks for stage in range(ranks * chunks)])


@given(programs())
@settings(max_examples=200, deadline=None)
def test_written_and_read_back(program: Program) -> None:
    back = read_csv(read_source("any.csv", write_csv(program).encode(), Limits()))
    for column in ("offsets", "kind", "stage", "microbatch", "placement"):
        assert np.array_equal(getattr(back, column), getattr(program, column)), column
    assert back.params == program.params
