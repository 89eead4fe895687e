"""The cells of a torch pipelining CSV to columns of numbers: a line is a rank, a cell one step of it.

A cell is `[stage][kind][microbatch]`: `2F0`, `2SEND_F1`; `2UNSHARD`, `2RESHARD`, `2REDUCE_GRAD` have no microbatch;
`(0F1;3B0)OVERLAP_F_B` is two computations; an empty cell is an idle step. PyTorch reads the same cells with less care:
what follows an operation in its cell it drops without a word.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import overload

import numpy as np

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Source, Span
from pipedsl.program import COMMUNICATION, COMPUTE, Ints, Kind

MOST_FINDINGS = 50
"""More findings than anyone reads; keeps hostile text from producing megabytes of them."""


class Sharding(IntEnum):
    """What FSDP does with the parameters of a stage. Negative, so that they mix with `Kind`."""

    UNSHARD = -1
    RESHARD = -2
    REDUCE_GRAD = -3


_WITH_MICROBATCH: Mapping[str, int] = {kind.name: int(kind) for kind in (*COMPUTE, *COMMUNICATION)}
_WITHOUT_MICROBATCH: Mapping[str, int] = {kind.name: int(kind) for kind in Sharding}
_DIGITS = 9
_HUGE = 10**_DIGITS  # stands for every number with more digits; all of them are out of range

_OPERATION = re.compile(rf"([0-9]{{1,{_DIGITS}}})({'|'.join(_WITH_MICROBATCH)})([0-9]{{1,{_DIGITS}}})(?=,|\Z)")
_PARTS = re.compile(r"([0-9]*)([A-Za-z_]*)([0-9]*)")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"(?=,|\Z)')
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


@dataclass(frozen=True, eq=False)
class Spans(Sequence[Span]):
    """Spans of one source that are made when asked for. `start`, `end`: (spans,), offsets into its text."""

    source: Source = field(repr=False)
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Span(self.source, int(self.start[index]), int(self.end[index]))


@dataclass(frozen=True, eq=False)
class Cells:
    """Every operation of the file in its order: (operations,) each.

    `kind`: a `Kind` or a `Sharding`. `microbatch`: -1 for a Sharding. `step`: the number of the cell in its line, from
    0, empty ones counted, as PyTorch counts. `lines`: the line of each rank.
    """

    rank: Ints
    step: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    spans: Spans
    lines: tuple[Span, ...]

    def select(self, rows: Ints) -> Cells:
        """Those of `rows` (numbers or a mask), in the same order."""
        return Cells(
            rank=self.rank[rows],
            step=self.step[rows],
            kind=self.kind[rows],
            stage=self.stage[rows],
            microbatch=self.microbatch[rows],
            spans=Spans(self.spans.source, self.spans.start[rows], self.spans.end[rows]),
            lines=self.lines,
        )

    def where(self, row: int) -> str:
        """`rank 1, step 4`."""
        return place(int(self.rank[row]), int(self.step[row]))


def place(rank: int, step: int) -> str:
    return f"rank {rank}, step {step}"


def shown(text: str) -> str:
    """A piece of a file as part of a message."""
    short = text if len(text) <= 40 else f"{text[:40]}..."
    return f"`{short if short.isprintable() else ascii(short)[1:-1]}`"


def read_cells(source: Source, limits: Limits) -> Cells:
    """All cells. Raises DiagnosticError with what is wrong in them: PD104, PD120, PD121, PD123."""
    reading = _Reading(source, limits)
    bounds = [*source.line_starts, len(source.text) + 1]
    lines = []
    for rank, start in enumerate(source.line_starts):
        end = bounds[rank + 1] - 1
        if start == len(source.text) and rank:
            break  # the text ends in a line end
        if end > start and source.text[end - 1] == "\r":
            end -= 1
        lines.append(Span(source, start, end))
        reading.line(rank, start, end)
    if reading.found:
        raise DiagnosticError(reading.found)
    return reading.cells(tuple(lines))


class _Reading:
    """Columns that grow cell by cell, and what was wrong with cells so far."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.found: list[Diagnostic] = []
        self.rank, self.step, self.kind, self.stage, self.microbatch = (array("i") for _ in range(5))
        self.start, self.end = array("q"), array("q")

    def cells(self, lines: tuple[Span, ...]) -> Cells:
        rank, step, kind, stage, microbatch = (
            np.array(column, np.int32)
            for column in (self.rank, self.step, self.kind, self.stage, self.microbatch)
        )  # fmt: skip
        start, end = np.array(self.start, np.int64), np.array(self.end, np.int64)
        return Cells(rank, step, kind, stage, microbatch, Spans(self.source, start, end), lines)

    def line(self, rank: int, start: int, end: int) -> None:
        """Read the cells of one rank."""
        text, match, kinds = self.source.text, _OPERATION.match, _WITH_MICROBATCH
        before = len(self.kind), len(self.found)
        position, step = start, 0
        while True:
            plain = match(text, position, end)
            if plain is not None:
                stage, word, microbatch = plain.groups()
                after = plain.end()
                self.rank.append(rank)
                self.step.append(step)
                self.kind.append(kinds[word])
                self.stage.append(int(stage))
                self.microbatch.append(int(microbatch))
                self.start.append(position)
                self.end.append(after)
            else:
                after = self._cell(rank, step, position, end)
            if after >= end:
                break
            position, step = after + 1, step + 1
        span = Span(self.source, start, end)
        if len(self.kind) > self.limits.operations:
            message = f"the file holds more than {self.limits.operations:,} operations"
            self._problem("PD104", message, span, "raise the limit on operations", fatal=True)
        if before == (len(self.kind), len(self.found)):
            help_ = "delete the line: PyTorch takes it for a rank without operations" if rank else None
            self._problem("PD123", f"rank {rank} has no operations", span, help_)

    def _cell(self, rank: int, step: int, start: int, end: int) -> int:
        """Read a cell that is not a plain operation; the offset after it."""
        text = self.source.text
        if text.startswith('"', start, end):
            quoted = _QUOTED.match(text, start, end)
            if quoted is not None:
                self._content(rank, step, quoted.start(1), quoted.end(1))
                return quoted.end()
            message = f"{place(rank, step)}: the quotes do not enclose the cell"
            self._problem("PD120", message, Span(self.source, start, end), "cells need no quotes")
            return end
        comma = text.find(",", start, end)
        after = end if comma < 0 else comma
        self._content(rank, step, start, after)
        return after

    def _content(self, rank: int, step: int, start: int, end: int) -> None:
        """Read what stands in a cell, spaces around it included."""
        span = self._stripped(start, end)
        if span.start == span.end:
            return
        overlap = _OVERLAP.fullmatch(self.source.text, span.start, span.end)
        if overlap is None:
            self._operation(rank, step, span)
            return
        first, found = len(self.kind), len(self.found)
        position = overlap.start(1)
        for part in overlap[1].split(";"):
            inner = self._stripped(position, position + len(part))
            if inner.text:
                self._operation(rank, step, inner)
            position += len(part) + 1
        kinds = sorted(self.kind[first:])
        if len(self.found) == found and (len(kinds) != 2 or kinds[0] != Kind.F or kinds[1] not in COMPUTE[1:]):
            message = f"{place(rank, step)}: an overlap is of one forward and one backward"
            self._problem("PD120", message, span, "write it as (0F1;3B0)OVERLAP_F_B")

    def _operation(self, rank: int, step: int, span: Span) -> None:
        """Read one operation, or say why it is none."""
        where = place(rank, step)
        parts = _PARTS.match(self.source.text, span.start, span.end)
        assert parts is not None  # it matches the empty text too
        stage, word, microbatch = parts.groups()
        sharding = word in _WITHOUT_MICROBATCH
        rest = Span(self.source, parts.end(), span.end)
        if not sharding and word not in _WITH_MICROBATCH:
            self._unknown(where, span, Span(self.source, *parts.span(2)), bool(stage))
        elif not stage:
            message = f"{where}: {shown(span.text)} names no stage"
            self._problem("PD120", message, span, f"the stage stands first, as in 0{span.text[:20]}")
        elif rest.text:
            message = f"{where}: {shown(rest.text)} after {shown(parts[0])}"
            help_ = "delete it; a cell holds one operation, and cells are separated by commas"
            self._problem("PD120", message, rest, help_)
        elif not microbatch and not sharding:
            message = f"{where}: {shown(span.text)} names no microbatch"
            self._problem("PD121", message, span, f"its number stands last, as in {stage[:20]}{word}0")
        elif microbatch and sharding:
            message = f"{where}: {word} is of a stage, not of a microbatch"
            self._problem("PD121", message, span, f"write {stage[:20]}{word}")
        else:
            self.rank.append(rank)
            self.step.append(step)
            self.kind.append(_WITHOUT_MICROBATCH[word] if sharding else _WITH_MICROBATCH[word])
            self.stage.append(_number(stage))
            self.microbatch.append(-1 if sharding else _number(microbatch))
            self.start.append(span.start)
            self.end.append(span.end)

    def _unknown(self, where: str, span: Span, word: Span, stage: bool) -> None:
        if not stage or not word.text:
            message = f"{where}: {shown(span.text)} is not an operation"
            help_ = "operations are written as stage, kind, microbatch: 2F0"
            self._problem("PD120", message, span, help_)
            return
        upper = word.text.upper()
        known = upper in _WITH_MICROBATCH or upper in _WITHOUT_MICROBATCH
        help_ = f"write {upper}" if known else f"kinds are {', '.join((*_WITH_MICROBATCH, *_WITHOUT_MICROBATCH))}"
        self._problem("PD120", f"{where}: there is no kind {shown(word.text)} of operation", word, help_)

    def _stripped(self, start: int, end: int) -> Span:
        text = self.source.text[start:end]
        start += len(text) - len(text.lstrip(" \t"))
        return Span(self.source, start, max(start, start + len(text.strip(" \t"))))

    def _problem(self, code: str, message: str, span: Span, help_: str | None, *, fatal: bool = False) -> None:
        self.found.append(Diagnostic(code, message, span, help=help_))
        if fatal or len(self.found) >= MOST_FINDINGS:
            raise DiagnosticError(self.found)


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= _DIGITS else _HUGE
