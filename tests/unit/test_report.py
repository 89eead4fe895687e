"""Diagnostics as people read them."""

from __future__ import annotations

import io
import json
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipedsl.diagnostics import Diagnostic, Label, Severity, Source, Span
from pipedsl.render.document import diagnostic_document
from pipedsl.render.report import count_of, diagnostic_lines, diagnostics_lines
from pipedsl.render.style import cells, line, paint, visible, wants_colour, width

TEXT = "schedule x(p, m)\n\nstages p\nplace s -> s\nrank r {\n    F * m\n    B * m\n}\nexpect { }\n"
SOURCE = Source("x.sched", TEXT)


def span(part: str, source: Source = SOURCE) -> Span:
    start = source.text.index(part)
    return Span(source, start, start + len(part))


def text_of(diagnostic: Diagnostic) -> str:
    return paint(diagnostic_lines(diagnostic), colour=False)


def check(diagnostic: Diagnostic, expected: str) -> None:
    assert text_of(diagnostic) == dedent(expected).lstrip("\n")


def test_a_plain_one() -> None:
    check(
        Diagnostic("PD105", "unknown name `m`", span("F * m"), notes=("one", "two\nlines"), help="write `n`"),
        """
        error[PD105]: unknown name `m`
         --> x.sched:6:5
          |
        6 |     F * m
          |     ^^^^^
          |
          = note: one
          = note: two
                  lines
          = help: write `n`
        """,
    )


def test_without_a_place() -> None:
    check(Diagnostic("PD111", "no value for p", severity=Severity.WARNING), "warning[PD111]: no value for p\n")


def test_labels_near_and_far_and_on_one_line() -> None:
    labels = (Label(span("place s -> s"), "far"), Label(span("B * m"), "after"), Label(span("m\n    B"), "two lines"))
    check(
        Diagnostic("PD301", "cycle", span("F * m"), labels=(Label(span("F * m"), "here"), *labels)),
        """
        error[PD301]: cycle
         --> x.sched:6:5
          |
        4 | place s -> s
          | ------------ far
        5 | rank r {
        6 |     F * m
          |     ^^^^^ here
          |         - two lines (to line 7)
        7 |     B * m
          |     ----- after
          |
        """,
    )


def test_a_gap_and_another_file() -> None:
    other = Source("other.sched", "a\nb\n")
    labels = (Label(span("schedule"), "first"), Label(span("b", other), "there"))
    check(
        Diagnostic("PD301", "cycle", span("expect"), labels=labels),
        """
        error[PD301]: cycle
         --> x.sched:9:1
          |
        1 | schedule x(p, m)
          | -------- first
        ...
        9 | expect { }
          | ^^^^^^
          |
         ::: other.sched:2:1
          |
        2 | b
          | - there
          |
        """,
    )


def test_tabs_wide_and_hidden_characters_keep_the_underline_in_place() -> None:
    source = Source("x", "\tF 漢字 \u202e\x1b[31m 'é' X")
    lines = text_of(Diagnostic("PD102", "what is X", span("X", source))).splitlines()
    shown, under = lines[3], lines[4]
    assert shown == "1 |     F 漢字 \\u202e\\x1b[31m 'é' X"
    # Each of the two wide characters takes two columns of a terminal.
    assert under.index("^") == shown.index("X") + 2


def test_the_end_of_the_file() -> None:
    end = len(TEXT)
    assert "x.sched:10:1" in text_of(Diagnostic("PD103", "the file ends", Span(SOURCE, end, end)))
    empty = Source("empty", "")
    assert "empty:1:1" in text_of(Diagnostic("PD103", "empty", Span(empty, 0, 0)))


def test_long_lines_are_cut_around_the_place() -> None:
    source = Source("x", "a" * 5000 + "HERE" + "b" * 5000)
    lines = text_of(Diagnostic("PD103", "long", span("HERE", source))).splitlines()
    assert max(map(len, lines)) < 130
    assert lines[4].index("^^^^") == lines[3].index("HERE")
    assert "x:1:5001" in lines[1]


def test_messages_cannot_drive_the_terminal() -> None:
    text = text_of(Diagnostic("PD102", "bad \x1b[2J", notes=("\x07",), help="\u202e"))
    assert text == "error[PD102]: bad \\x1b[2J\n  = note: \\x07\n  = help: \\u202e\n"


def test_counts() -> None:
    error, advice = Diagnostic("PD101", ""), Diagnostic("PD901", "", severity=Severity.ADVICE)
    warning = Diagnostic("PD101", "", severity=Severity.WARNING)
    assert count_of([]) == ""
    assert count_of([error]) == "1 error"
    assert count_of([error, warning, error, advice, advice]) == "2 errors, 1 warning, 2 pieces of advice"


def test_colour_changes_nothing_but_the_colour() -> None:
    import re

    lines = diagnostics_lines([Diagnostic("PD105", "unknown", span("F * m"), help="h")])
    coloured = paint(lines, colour=True)
    assert "\x1b[1;31m" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [each.rstrip() for each in plain.splitlines()] == paint(lines, colour=False).splitlines()


def test_when_to_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    assert wants_colour(io.StringIO(), "always")
    assert not wants_colour(Terminal(), "never")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    assert wants_colour(Terminal(), "always")


def test_json_has_both_ends_of_every_place() -> None:
    found = Diagnostic("PD105", "no", span("F * m\n    B"), labels=(Label(span("place"), "x"),), notes=("n",), help="h")
    document = json.loads(json.dumps(diagnostic_document(found)))
    place = {key: document[key] for key in ("file", "line", "column", "end_line", "end_column")}
    assert place == {"file": "x.sched", "line": 6, "column": 5, "end_line": 7, "end_column": 6}
    assert document["labels"] == [
        {"message": "x", "file": "x.sched", "line": 4, "column": 1, "end_line": 4, "end_column": 6}
    ]
    assert document["notes"] == ["n"]
    assert diagnostic_document(Diagnostic("PD111", "x"))["line"] is None


@given(st.text(max_size=200), st.integers(0, 200), st.integers(0, 200), st.text(max_size=50))
def test_any_text_and_place_can_be_shown(text: str, start: int, end: int, message: str) -> None:
    source = Source(message, text)
    start, end = sorted((min(start, len(text)), min(end, len(text))))
    found = Diagnostic("PD101", message, Span(source, start, end), labels=(Label(Span(source, end, end), message),))
    shown = text_of(found)
    assert all(char == "\n" or visible(char) == char for char in shown)
    assert "^" in shown


@given(st.text(max_size=50))
def test_cells_end_where_the_text_ends(text: str) -> None:
    shown, columns = cells(text)
    assert len(columns) == len(text) + 1
    assert columns[-1] == width(shown)
    assert paint([line(shown)], colour=False) == shown.rstrip() + "\n"
