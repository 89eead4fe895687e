"""Open words become strands, or are refused where strands cannot say what they mean."""

from __future__ import annotations

import pytest

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand, expand_open
from pipedsl.format import format_schedule
from pipedsl.open_words import OpenProgram
from pipedsl.program import Kind

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\n"


def opened(word: str, p: int = 1, m: int = 3, head: str = HEAD) -> OpenProgram:
    (found,) = expand_open(parse_text(f"{head}rank r {{ {word} }}"), {"p": p, "m": m})
    return found


def texts(found: OpenProgram, rank: int = 0) -> list[str]:
    """Every strand as `F0 I0 F1`."""
    program = found.program
    return [
        " ".join(f"{Kind(program.kind[row]).name}{program.microbatch[row]}" for row in strand)
        for strand in found.strands[rank]
    ]


def code(word: str) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        opened(word)
    return [each.code for each in caught.value.diagnostics]


def test_operands_are_strands() -> None:
    assert texts(opened("F * m || I * m || W * m")) == ["F0 F1 F2", "I0 I1 I2", "W0 W1 W2"]
    assert texts(opened("(F I) * m || W * m")) == ["F0 I0 F1 I1 F2 I2", "W0 W1 W2"]
    assert texts(opened("F[2] F[0] F[1] || B[2] B * 0 B[0] B[1]")) == ["F2 F0 F1", "B2 B0 B1"]


def test_a_word_in_order_is_one_strand_and_empty_words_are_none() -> None:
    assert texts(opened("(F B) * m")) == ["F0 B0 F1 B1 F2 B2"]
    assert texts(opened("F * 0 || (F B) * m || if p > 1 { F }")) == ["F0 B0 F1 B1 F2 B2"]


def test_shuffles_nest() -> None:
    assert texts(opened("(F * m || I * m) || W * m")) == ["F0 F1 F2", "I0 I1 I2", "W0 W1 W2"]


def test_some_ranks_may_be_in_order() -> None:
    found = opened("if r == 0 { F * m || B * m } else { (F B) * m }", p=2)
    assert [len(strands) for strands in found.strands] == [2, 1]


def test_what_stands_before_and_after_goes_on_in_a_strand() -> None:
    # I[0] is after F[0] anyway, and W[0] after I[0].
    assert texts(opened("F (F * (m - 1) || I * m || W * m)")) == ["F0 F1 F2", "I0 I1 I2", "W0 W1 W2"]
    # The Ws are after the last F because I[0] is.
    assert texts(opened("F * m (I * m || W * m)")) == ["F0 F1 F2 I0 I1 I2", "W0 W1 W2"]
    # W[0] is after all Is, so after all Fs.
    assert texts(opened("(F * m || I * m) W * m")) == ["F0 F1 F2", "I0 I1 I2 W0 W1 W2"]


def fences(found: OpenProgram) -> list[str]:
    program = found.program
    return [
        " < ".join(f"{Kind(program.kind[row]).name}{program.microbatch[row]}" for row in pair) for pair in found.fences
    ]


def test_what_does_not_follow_is_a_fence() -> None:
    # I[0] has to wait for F[1], and so has W[0], which waits for I[0] anyway.
    assert fences(opened("F * 2 (F * (m - 2) || I * m || W * m)")) == ["F1 < I0"]
    assert fences(opened("for k in 0 .. m { F (I || W) }")) == ["W0 < F1", "W1 < F2"]
    assert fences(opened("F * m || I * m || W * m")) == []
    assert fences(opened("(F * m || I * 2) (I * (m - 2) || W * m)")) == ["I1 < W0"]


def test_a_fence_to_several_words_is_refused() -> None:
    # I[2] would have to wait for W[0], beside F[2], which it needs.
    assert code("(F * m || I[0] I[1] || W[0]) I[2] W[1] W[2]") == ["PD601"]


def test_one_kind_and_chunk_is_counted_in_one_strand() -> None:
    assert code("F || F * (m - 1) || B * m") == ["PD601"]
    assert texts(opened("F[0] F[2] || F[1] || B * m")) == ["F0 F2", "F1", "B0 B1 B2"]


def test_placements() -> None:
    head = "schedule x(p, m)\nstages 2 * p\nplace ?\n"
    word = "for c in 0 .. 2 { F@c * m } || for c in 0 .. 2 { B@(1 - c) * m }"
    found = expand_open(parse_text(f"{head}rank r {{ {word} }}"), {"p": 2, "m": 1})
    assert {each.placement: each.program.placement[0].tolist() for each in found} == {
        "linear": [0, 0, 1, 1],
        "looped": [0, 1, 0, 1],
        "v": [0, 1, 1, 0],
    }
    some = parse_text(f"{head.replace('?', '? in v, linear')}rank r {{ {word} }}")
    assert [each.placement for each in expand_open(some, {"p": 2, "m": 1})] == ["v", "linear"]


def test_expand_refuses_what_is_open() -> None:
    with pytest.raises(DiagnosticError, match="search problem"):
        expand(parse_text(f"{HEAD}rank r {{ F * m || B * m }}"), {"p": 1, "m": 2})


@pytest.mark.parametrize("place", ["?", "? in v", "? in linear, looped"])
def test_open_placements_are_formatted(place: str) -> None:
    text = f"schedule x(p, m)\nstages p\nplace {place}\nrank r {{ F * m || B * m }}\nminimize span\n"
    assert format_schedule(parse_text(text)) == text
    with pytest.raises(DiagnosticError, match="unknown placement"):
        expand_open(parse_text(text.replace(place, "? in zigzag")), {"p": 1, "m": 1})
