"""A program as a text, read again, is the same program: random orders, placements and shared words."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from words import word_program

from pipedsl.api import parse_text
from pipedsl.diagnostics import Source
from pipedsl.expand import expand
from pipedsl.folding import expand_term, fold
from pipedsl.format import format_schedule
from pipedsl.grammar import lark_parser
from pipedsl.program import Program
from pipedsl.rank_classes import rank_classes
from pipedsl.sched_text import program_text
from pipedsl.torch_csv import read_csv


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from("FIW"), max_size=60), st.booleans())
def test_folded_words_unfold(word: list[str], late: bool) -> None:
    assert [name for term in fold(word, late) for name in expand_term(term)] == word


BODIES = st.sampled_from(["F", "I", "W", "F I", "F I W", "I W"])
PIECES = st.lists(st.tuples(BODIES, st.integers(-2, 2), st.integers(0, 6)), max_size=5)


@settings(max_examples=200, deadline=None)
@given(PIECES, st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.sampled_from("FIW")), max_size=2))
def test_classes_give_every_rank_its_word(
    pieces: list[tuple[str, int, int]], ranks: int, slips: list[tuple[int, str]]
) -> None:
    words = [
        " ".join(" ".join([body] * max(0, slope * rank + base)) for body, slope, base in pieces).split()
        for rank in range(ranks)
    ]
    for rank, name in slips:
        words[rank % ranks].append(name)
    found = rank_classes(words)
    again = [
        [name for term in each.terms for name in [n for part in term.body for n in names(part)] * term.at(rank)]
        for each in found
        for rank in range(each.first, each.last + 1)
    ]
    assert again == words


def names(part: object) -> list[str]:
    return [part] if isinstance(part, str) else expand_term(part)  # type: ignore[arg-type]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Operations in any order at all: a text says what it says, right or wrong."""
    ranks, chunks, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 4))
    placement = draw(st.permutations([r for r in range(ranks) for _ in range(chunks)]))
    words = []
    for rank in range(ranks):
        own = [s for s, r in enumerate(placement) if r == rank]
        names = [f"{kind}{i}@{s}" for s in own for kind in "FIW" for i in range(microbatches)]
        words.append(draw(st.permutations(names)) if draw(st.booleans()) else names)
    return word_program(words, placement)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_texts_come_back(program: Program) -> None:
    again = expand(parse_text(program_text(program)), {})
    for column in ("placement", "offsets", "kind", "stage", "microbatch"):
        assert np.array_equal(getattr(again, column), getattr(program, column)), column


WORDS = [each.pattern.value for each in lark_parser().terminals if each.pattern.type == "str"]
WORDS += "True False F B I W SEND_F RECV_B OFFLOAD RELOAD RECOMPUTE REDUCE KiB MiB GiB TiB 1f1b p m r s 0 _".split()


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.sampled_from(WORDS), st.text(max_size=8), st.text('F1_ é\udcff\n"#{', max_size=8)))
@example("x" * 200)
def test_files_of_any_name_come_back(name: str) -> None:
    """The text of a CSV is named after its file."""
    program = read_csv(Source(f"folder/{name}.csv", "0F0,0F1,0B0,0B1\n"))
    text = program_text(program)
    again = parse_text(text)
    assert again.header.name == program.name
    assert format_schedule(again) == text
    assert np.array_equal(expand(again, {}).kind, program.kind)
    if name.isidentifier() and name.isascii() and name not in WORDS:
        assert program.name == name
