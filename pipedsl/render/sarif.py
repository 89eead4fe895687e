"""Findings as SARIF 2.1.0 (OASIS), what code scanning services read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pipedsl import __version__
from pipedsl.codes import CODES, explanation
from pipedsl.diagnostics import Diagnostic, Severity, Span
from pipedsl.render.document import place_document

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}

Json = dict[str, Any]


def sarif_document(diagnostics: Sequence[Diagnostic], file: str, status: int) -> Json:
    """The log of one run. `file`: where findings without a place belong. `status`: of the process."""
    codes = sorted({each.code for each in diagnostics})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "pipedsl",
                        "semanticVersion": __version__,
                        "rules": [_rule(code, diagnostics) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True, "exitCode": status}],
                "results": [_result(each, file, codes.index(each.code)) for each in diagnostics],
            }
        ],
    }


def _rule(code: str, diagnostics: Sequence[Diagnostic]) -> Json:
    title = CODES.get(code, code)
    level = next(LEVELS[each.severity] for each in diagnostics if each.code == code)
    try:
        text = explanation(code).text.strip()
    except (KeyError, OSError):
        text = title
    return {
        "id": code,
        "shortDescription": {"text": title},
        "fullDescription": {"text": text.split("\n\n")[0].replace("\n", " ")},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": level},
    }


def _result(diagnostic: Diagnostic, file: str, index: int) -> Json:
    remarks = [*diagnostic.notes, *([f"help: {diagnostic.help}"] if diagnostic.help else [])]
    result: Json = {
        "ruleId": diagnostic.code,
        "ruleIndex": index,
        "level": LEVELS[diagnostic.severity],
        "message": {"text": "\n".join([diagnostic.message, *remarks])},
        "locations": [{"physicalLocation": _location(diagnostic.span, file)}],
    }
    if diagnostic.labels:
        result["relatedLocations"] = [
            {"id": number, "physicalLocation": _location(label.span, file), "message": {"text": label.text}}
            for number, label in enumerate(diagnostic.labels, 1)
        ]
    return result


def _location(span: Span | None, file: str) -> Json:
    if span is None:
        return {"artifactLocation": {"uri": _uri(file)}}
    place = place_document(span)
    return {
        "artifactLocation": {"uri": _uri(span.source.name)},
        "region": {
            "startLine": place["line"],
            "startColumn": place["column"],
            "endLine": place["end_line"],
            "endColumn": place["end_column"],
        },
    }


def _uri(name: str) -> str:
    """A path as a reference relative to where the command ran, or to the root of the file system."""
    path = quote(name.encode("utf-8", "surrogateescape"), safe="/")
    return f"file://{path}" if path.startswith("/") else path
