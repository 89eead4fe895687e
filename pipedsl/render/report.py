"""Diagnostics as people read them: the message, the lines of the text with the place underlined, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipedsl.diagnostics import Diagnostic, Severity, Source, Span
from pipedsl.render.style import Line, cells, line, visible

# Columns of source text shown of one line; around the place that matters when the line is longer.
EXCERPT = 110


@dataclass(frozen=True)
class _Mark:
    """Columns `start` to `end` (from 0) of source line `number`, and what is to be said of them."""

    number: int
    start: int
    end: int
    text: str
    primary: bool


def diagnostic_lines(diagnostic: Diagnostic) -> list[Line]:
    """One diagnostic, with its excerpt, notes and help."""
    style = diagnostic.severity.value
    first, *rest = diagnostic.message.split("\n")
    lines = [line((style, f"{style}[{diagnostic.code}]"), ("bold", f": {visible(first)}"))]
    lines += [line(("bold", f"  {visible(more)}")) for more in rest]
    marks = _marks(diagnostic)
    margin = max((len(str(mark.number)) for found in marks.values() for mark in found), default=1)
    for index, (source, found) in enumerate(marks.items()):
        primary = next((mark for mark in found if mark.primary), found[0])
        place = f"{visible(source.name)}:{primary.number}:{primary.start + 1}"
        lines.append(line(("gutter", f"{' ' * margin}{'::: ' if index else '--> '}"), place))
        lines += _excerpt(source, found, margin, style)
    for note in diagnostic.notes:
        lines += _remark("note", note, margin)
    if diagnostic.help:
        lines += _remark("help", diagnostic.help, margin)
    return lines


def diagnostics_lines(diagnostics: Iterable[Diagnostic]) -> list[Line]:
    """All of them, a blank line after each."""
    return [each for diagnostic in diagnostics for each in (*diagnostic_lines(diagnostic), line())]


def count_of(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`; empty without any."""
    counts = Counter(diagnostic.severity for diagnostic in diagnostics)
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "piece of advice"}
    plural = {Severity.ADVICE: "pieces of advice"}
    return ", ".join(
        f"{counts[severity]} {name if counts[severity] == 1 else plural.get(severity, name + 's')}"
        for severity, name in names.items()
        if counts[severity]
    )


def _remark(kind: str, text: str, margin: int) -> Iterator[Line]:
    first, *rest = text.split("\n")
    space = " " * margin
    yield line(("gutter", f"{space} = "), ("bold", f"{kind}: "), visible(first))
    for more in rest:
        yield line(f"{space}   {' ' * len(kind)}  {visible(more)}")


def _marks(diagnostic: Diagnostic) -> dict[Source, list[_Mark]]:
    """What is marked in each source; the source of the main span first."""
    spans = [(diagnostic.span, "", True)] if diagnostic.span else []
    spans += [(label.span, label.text, False) for label in diagnostic.labels]
    # The main place and a label on the same characters are one mark.
    merged: list[tuple[Span, str, bool]] = []
    for span, text, primary in spans:
        if merged and merged[0][2] and not merged[0][1] and not primary and _same(merged[0][0], span):
            merged[0] = (span, text, True)
        else:
            merged.append((span, text, primary))
    found: dict[Source, list[_Mark]] = {}
    for span, text, primary in merged:
        found.setdefault(span.source, []).append(_mark(span, text, primary))
    return found


def _same(one: Span, other: Span) -> bool:
    return (one.start, one.end) == (other.start, other.end) and one.source == other.source


def _mark(span: Span, text: str, primary: bool) -> _Mark:
    number, column = span.source.position(span.start)
    last, end = span.source.position(max(span.start, span.end - 1))
    if last == number:
        return _Mark(number, column - 1, max(end, column), text, primary)
    end = max(len(span.source.line(number).rstrip()), column)
    return _Mark(number, column - 1, end, f"{text}{' ' if text else ''}(to line {last})", primary)


def _excerpt(source: Source, marks: list[_Mark], margin: int, style: str) -> Iterator[Line]:
    """The marked lines in the order of the text, each with its marks in the order they were given."""
    bar = ("gutter", f"{' ' * margin} |")
    yield line(bar)
    before: int | None = None
    for number in sorted({mark.number for mark in marks}):
        if before is not None and number == before + 2:
            yield _source_line(before + 1, _window(source.line(before + 1), [])[0], margin)
        elif before is not None and number > before + 2:
            yield line(("gutter", "..."))
        here = [mark for mark in marks if mark.number == number]
        shown, places = _window(source.line(number), here)
        yield _source_line(number, shown, margin)
        for mark, (start, end) in zip(here, places, strict=True):
            sign, paint = ("^", style) if mark.primary else ("-", "second")
            text = f" {visible(mark.text)}" if mark.text else ""
            yield line(bar, f" {' ' * start}", (paint, sign * (end - start) + text))
        before = number
    yield line(bar)


def _source_line(number: int, text: str, margin: int) -> Line:
    return line(("gutter", f"{number:>{margin}} |"), f" {text}" if text else "")


def _window(text: str, marks: list[_Mark]) -> tuple[str, list[tuple[int, int]]]:
    """The part of a line that is shown, and the terminal columns of each mark in it."""
    first = 0
    if len(text) > EXCERPT:
        wanted = marks[0].start if marks else 0
        first = max(0, min(wanted - EXCERPT // 3, len(text) - EXCERPT))
    shown, columns = cells(text[first : first + EXCERPT])
    head = "..." if first else ""
    tail = "..." if first + EXCERPT < len(text) else ""
    places = []
    for mark in marks:
        start, end = (columns[min(max(place - first, 0), len(columns) - 1)] for place in (mark.start, mark.end))
        places.append((start + len(head), max(end, start + 1) + len(head)))
    return f"{head}{shown}{tail}", places
