"""Findings one a line: `concise` for editors and grep, `github` as workflow commands that annotate a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipedsl.codes import CODES
from pipedsl.diagnostics import Diagnostic, Severity
from pipedsl.render.document import place_document
from pipedsl.render.style import visible

# docs.github.com, "Workflow commands for GitHub Actions".
COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def concise_lines(diagnostics: Iterable[Diagnostic], file: str) -> Iterator[str]:
    """`file:line:column: CODE message`; without the place where a finding has none but `file`."""
    for each in diagnostics:
        place = file if each.span is None else f"{each.span.source.name}:{each.span.line}:{each.span.column}"
        yield f"{visible(place)}: {each.code} {visible(' '.join(each.message.split()))}\n"


def github_lines(diagnostics: Iterable[Diagnostic], file: str) -> Iterator[str]:
    """`::error file=...,line=...,col=...,endLine=...,endColumn=...,title=...::message`, one for each finding."""
    for each in diagnostics:
        place = place_document(each.span)
        given = {"file": file if place["file"] is None else place["file"]}
        if each.span is not None:
            given |= {"line": place["line"], "col": place["column"], "endLine": place["end_line"]}
            # GitHub takes columns of one line only, and the last one as included.
            if place["line"] == place["end_line"]:
                given["endColumn"] = max(place["end_column"] - 1, place["column"])
        given["title"] = f"{each.code} {CODES.get(each.code, '')}".rstrip()
        properties = ",".join(f"{key}={_property(str(value))}" for key, value in given.items())
        yield f"::{COMMANDS[each.severity]} {properties}::{_data(_body(each))}\n"


def _body(diagnostic: Diagnostic) -> str:
    lines = [diagnostic.message, *diagnostic.notes, *([f"help: {diagnostic.help}"] if diagnostic.help else [])]
    return "\n".join(visible(part) for text in lines for part in text.split("\n"))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
