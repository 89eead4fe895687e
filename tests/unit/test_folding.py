"""Words with repetitions, and words that several ranks share."""

from __future__ import annotations

import pytest

from pipedsl.folding import body_text, expand_term, fold
from pipedsl.rank_classes import RankClass, SharedTerm, rank_classes


def folded(word: str, late: bool = False) -> str:
    terms = fold(word.split(), late)
    assert [name for term in terms for name in expand_term(term)] == word.split()
    return body_text(terms)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("", ""),
        ("F B W", "F B W"),
        ("F F F F", "F * 4"),
        ("F B F B F B", "(F B) * 3"),
        ("F F B F B F B B", "F (F B) * 3 B"),
        ("F F B F F B F F B W", "(F * 2 B) * 3 W"),
        ("F F B F F B W F F B F F B W I", "((F * 2 B) * 2 W) * 2 I"),
        ("F F F " + "F I " * 5, "F * 3 (F I) * 5"),
    ],
)
def test_what_repeats_is_written_once(word: str, text: str) -> None:
    assert folded(word) == text


def test_repetitions_begin_early_or_late() -> None:
    word = "X " + "F I W " * 4 + "F I Y"
    assert folded(word) == "X (F I W) * 4 F I Y"
    assert folded(word, late=True) in ("X F (I W F) * 4 I Y", "X F I (W F I) * 4 Y")


def test_long_words_are_folded_quickly() -> None:
    word = "F " * 500 + ("F@0 " * 64 + "F@1 " * 64 + "W I ") * 20 + "W " * 300
    assert folded(word) == "F * 500 (F@0 * 64 F@1 * 64 W I) * 20 W * 300"


def classes(*words: str) -> list[RankClass]:
    return rank_classes([word.split() for word in words])


def test_equal_words_are_a_class() -> None:
    (found,) = classes("F F B", "F F B", "F F B")
    assert (found.first, found.last) == (0, 2)
    assert found.terms == (SharedTerm(("F",), 0, 2), SharedTerm(("B",), 0, 1))


def test_counts_are_lines_in_the_rank() -> None:
    words = ["F " * (3 - r) + "F B " * (5 + r) + "B " * (3 - r) for r in range(4)]
    (found,) = classes(*words)
    assert [(body_text(t.body), t.slope, t.base) for t in found.terms] == [("F", -1, 3), ("F B", 1, 5), ("B", -1, 3)]


def test_what_is_no_line_is_no_class() -> None:
    squares = ["F " * (r * r + 1) + "B" for r in range(5)]
    assert [(c.first, c.last) for c in classes(*squares)] == [(0, 1), (2, 3), (4, 4)]
    assert [(c.first, c.last) for c in classes("F B", "B F", "F B")] == [(0, 0), (1, 1), (2, 2)]


def test_operations_of_any_name_are_told_apart() -> None:
    (found, other) = classes("F@1[0] F@1[1]", "F@1[0] F@11")
    assert [found.terms[0].body, other.terms[1].body] == [("F@1[0]",), ("F@11",)]
