"""What pipedsl has to say about a text: sources, spans, and diagnostics that carry data rather than strings.

Every layer reports through these types; rendering for people is `pipedsl.render.report`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Source:
    """A text and the name it is known by (a path, or `<shipped>/1f1b.sched`)."""

    name: str
    text: str = field(repr=False)
    line_starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0]
        starts.extend(i + 1 for i, char in enumerate(self.text) if char == "\n")
        object.__setattr__(self, "line_starts", tuple(starts))

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character offset, both counted from 1."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of line `number` (from 1), without its line end."""
        start = self.line_starts[number - 1]
        end = self.line_starts[number] if number < len(self.line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


@dataclass(frozen=True)
class Span:
    """The characters `start` to `end` (exclusive) of a source."""

    source: Source = field(repr=False)
    start: int
    end: int

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.source, self.start, other.end)


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


@dataclass(frozen=True)
class Label:
    """A second place that a diagnostic points at, and what is to be seen there."""

    span: Span
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `code` is a key of `pipedsl.codes`; `help` says what to write instead."""

    code: str
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    severity: Severity = Severity.ERROR


class DiagnosticError(Exception):
    """Raised where a layer cannot go on: carries every diagnostic collected so far."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))


@dataclass(frozen=True)
class Limits:
    """What one file may cost. Over a limit is a diagnostic (PD104), never a hang.

    `operations`: operations that a program may expand to. `steps`: loop rounds and function calls
    while expanding. `nesting`: depth of brackets, blocks and expressions. `tokens`: tokens of a file.
    `source_bytes`: size of a file. `bits`: size of a number.
    """

    operations: int = 10_000_000
    steps: int = 20_000_000
    nesting: int = 100
    tokens: int = 200_000
    source_bytes: int = 1 << 20
    bits: int = 256
