"""The timeline as text and as a picture."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from words import costs, gpipe, one_f_one_b, word_program, zb_h1

from pipedsl.library import UsageError
from pipedsl.program import Kind, Program
from pipedsl.render.figure import check_suffix, draw
from pipedsl.render.style import paint
from pipedsl.render.timeline import GLYPHS, legend_line, timeline_lines
from pipedsl.simulate import Timeline, simulate

# As in the documentation of the tool.
ONE_F_ONE_B = """\
rank 0 |0123......aa4bb5cc6dd7ee.ff.gg.hh|
rank 1 |.012....aa3bb4cc5dd6ee7ff.gg.hh..|
rank 2 |..01..aa2bb3cc4dd5ee6ff7gg.hh....|
rank 3 |...0aa1bb2cc3dd4ee5ff6gg7hh......|
"""


def text_of(program: Program, columns: int | None = None) -> str:
    return paint(timeline_lines(program, simulate(program), columns), colour=False)


def naive(program: Program, timeline: Timeline) -> str:
    """The same by painting every unit of time of every operation; for whole durations."""
    rows = []
    length = max(int(timeline.end_of(row)) for row in range(len(program)))
    for rank in range(program.ranks):
        cells = ["."] * length
        for row in program.rows(rank):
            glyphs = GLYPHS[Kind(program.kind[row])]
            for time in range(int(timeline.start_of(row)), int(timeline.end_of(row))):
                cells[time] = glyphs[int(program.microbatch[row]) % len(glyphs)]
        rows.append(f"rank {rank} |{''.join(cells)}|\n")
    return "".join(rows)


def test_the_documented_one() -> None:
    assert text_of(word_program(one_f_one_b(4, 8))) == ONE_F_ONE_B


def test_a_common_factor_of_all_durations_changes_nothing_but_the_unit() -> None:
    program = word_program(one_f_one_b(4, 8), cost=costs(4, f="0.5", i="0.5", w="0.5"))
    assert text_of(program) == ONE_F_ONE_B + "one column is 1/2\n"


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1])
@pytest.mark.parametrize(("p", "m", "f", "i", "w"), [(4, 8, 1, 1, 1), (3, 30, 1, 2, 1), (2, 5, 3, 2, 2)])
def test_against_painting(make, p: int, m: int, f: int, i: int, w: int) -> None:
    program = word_program(make(p, m), cost=costs(p, f, i, w))
    assert text_of(program) == naive(program, simulate(program))


def test_w_is_told_from_i() -> None:
    shown = text_of(word_program([["F0", "I0", "W0", "F1", "I1", "W1"]]))
    assert shown == "rank 0 |0aA1bB|\n"


@pytest.mark.parametrize("columns", [20, 31, 36, 41])
def test_the_middle_is_left_out_where_it_does_not_fit(columns: int) -> None:
    *rows, note = text_of(word_program(one_f_one_b(4, 8)), columns).splitlines()
    assert len({row.index(" ... ") for row in rows}) == 1
    for row, whole in zip(rows, ONE_F_ONE_B.splitlines(), strict=True):
        head, tail = row.split(" ... ")
        assert len(row) == columns
        assert whole.startswith(head)
        assert whole.endswith(tail)
    since, until = map(int, re.findall(r"time (\d+) to (\d+)", note)[0])
    assert 33 - (until - since) == columns - len("rank 0 || ... ")
    assert "of 33" in note


def test_exactly_fitting_is_not_cut() -> None:
    assert text_of(word_program(one_f_one_b(4, 8)), 42) == ONE_F_ONE_B


def test_tiny_terminals_still_show_something() -> None:
    assert " ... " in text_of(word_program(one_f_one_b(4, 8)), 1)


def test_durations_without_a_common_unit_are_resampled() -> None:
    program = word_program(one_f_one_b(4, 8), cost=costs(4, "8.578", "11.1", "3.001", send="0.497"))
    shown = text_of(program)
    rows = shown.splitlines()[:4]
    assert max(map(len, rows)) < 80
    for rank, row in enumerate(rows):
        seen = re.sub(r"(.)\1*", r"\1", row.split("|")[1].replace(".", ""))
        wanted = "".join(GLYPHS[Kind(program.kind[each])][int(program.microbatch[each])] for each in program.rows(rank))
        assert seen == wanted, "every operation is seen, in order"
    assert "one column is 4289/1000" in shown


def test_very_short_operations_are_counted_not_drawn() -> None:
    program = word_program([["F0", "I0", "W0"]], cost=costs(1, 1000, 1000, "0.001"))
    assert text_of(program) == "rank 0 |00000000aaaaaaaa.|\none column is 125\n1 operation is too short to be seen\n"


def test_nothing_takes_time() -> None:
    assert text_of(word_program(one_f_one_b(2, 2), cost=costs(2, 0, 0, 0))) == "rank 0 ||\nrank 1 ||\n"
    program = word_program([["F0", "I0", "W0"]], cost=costs(1, 2, 2, 0))
    assert text_of(program) == "rank 0 |0a|\none column is 2\n"


def test_times_beyond_64_bits() -> None:
    program = word_program([["F0", "B0"]])
    big = 10**30
    timeline = Timeline(np.array([0, big], object), np.array([big, 3 * big], object), Fraction(1, big), np.arange(2))
    assert paint(timeline_lines(program, timeline), False) == "rank 0 |0aa|\n"


def test_legend_names_what_is_there() -> None:
    assert legend_line(word_program([["F0", "B0"]])).text == (
        "0-9 F (forward), a-z B (backward), . idle; the glyph is the microbatch"
    )
    assert "A-Z W" in legend_line(word_program([["F0", "I0", "W0"]])).text


def test_pictures_are_the_same_every_time() -> None:
    pytest.importorskip("matplotlib")
    program = word_program(zb_h1(4, 8))
    timeline = simulate(program)
    for form, magic in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        one, two = (draw(program, timeline, "zb $x$", ["makespan 27", "peak <&>"], form) for _ in range(2))
        assert one == two
        assert one.startswith(magic)
    svg = draw(program, timeline, "zb $x$", ["makespan 27", "peak <&>"], "svg").decode()
    for text in ("zb $x$", "makespan 27", "peak &lt;&amp;&gt;", "F forward", "W backward of weights"):
        assert text in svg


def test_large_pictures_stay_small_and_empty_ones_can_be_drawn() -> None:
    pytest.importorskip("matplotlib")
    large = word_program(one_f_one_b(16, 700))
    assert len(draw(large, simulate(large), "large", ["x"], "svg")) < 1_000_000
    still = word_program(one_f_one_b(2, 2), cost=costs(2, 0, 0, 0))
    assert draw(still, simulate(still), "still", ["x"], "svg")


@pytest.mark.parametrize("path", ["x", "x.jpg", "x.svg.txt", ".svg", ""])
def test_unknown_kinds_of_pictures_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match=r"svg, \.png or \.pdf"):
        check_suffix(path)


def test_known_kinds() -> None:
    assert [check_suffix(path) for path in ("a/x.svg", "x.PNG", "x.y.pdf")] == ["svg", "png", "pdf"]
