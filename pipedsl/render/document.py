"""The report as JSON; docs/formats.md is its documentation. A change that could break a reader raises `VERSION`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipedsl.diagnostics import Diagnostic, Span
from pipedsl.occupancy import Part
from pipedsl.render.numbers import json_exact, json_number
from pipedsl.simulate import Metrics
from verify.report import Report

VERSION = 1

Json = dict[str, Any]


def report_document(
    name: str,
    params: Mapping[str, int],
    report: Report,
    memory_at_peak: Sequence[Mapping[Part, Fraction]] = (),
    advice: Sequence[Diagnostic] = (),
) -> Json:
    """What `verify --format json` writes. `memory_at_peak`: what every rank's memory is for at its peak."""
    return {
        "version": VERSION,
        "schedule": name,
        "params": dict(params),
        "verdict": report.verdict.value,
        "diagnostics": [diagnostic_document(each) for each in (*report.diagnostics, *advice)],
        "metrics": None if report.metrics is None else metrics_document(report.metrics, memory_at_peak),
        "transports": dict(report.transports),
        "remedies": [
            {"transport": each.transport, "kind": each.kind, "text": each.text, "details": dict(each.details)}
            for each in report.remedies
        ],
    }


def diagnostic_document(diagnostic: Diagnostic) -> Json:
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        **place_document(diagnostic.span),
        "labels": [{"message": label.text, **place_document(label.span)} for label in diagnostic.labels],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
    }


def metrics_document(metrics: Metrics, memory_at_peak: Sequence[Mapping[Part, Fraction]] = ()) -> Json:
    """Numbers twice: to be computed with, and under `exact` as strings that lose nothing."""
    values: dict[str, Fraction | tuple[Fraction, ...]] = {
        "makespan": metrics.makespan,
        "bubble": metrics.bubble,
        "span": metrics.span,
        "span_bubble": metrics.span_bubble,
        "busy": metrics.busy,
        "peak_activations": metrics.peak_activations,
        "memory": metrics.memory,
    }
    document: Json = {key: _each(json_number, value) for key, value in values.items()}
    document["exact"] = {key: _each(json_exact, value) for key, value in values.items()}
    for place, convert in ((document, json_number), (document["exact"], json_exact)):
        place["memory_at_peak"] = [
            {part.value: convert(size) for part, size in rank.items()} for rank in memory_at_peak
        ]
    return document


def _each(convert: Any, value: Fraction | tuple[Fraction, ...]) -> Any:
    return [convert(one) for one in value] if isinstance(value, tuple) else convert(value)


def place_document(span: Span | None) -> Json:
    """Lines and columns count from 1; the end is the column after the last character."""
    if span is None:
        return dict.fromkeys(("file", "line", "column", "end_line", "end_column"))
    line, column = span.source.position(span.start)
    end_line, end_column = span.source.position(max(span.start, span.end - 1))
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column + (span.end > span.start),
    }
