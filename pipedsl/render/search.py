"""What a search found, for people and as JSON; docs/search.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Diagnostic
from pipedsl.found_text import percent, refuted
from pipedsl.render.document import Json, diagnostic_document, report_document
from pipedsl.render.numbers import json_exact, json_number, number
from pipedsl.render.style import Line, line, visible
from pipedsl.render.summary import STYLES, summary_lines

if TYPE_CHECKING:
    from pipedsl.every_m import EveryM
    from pipedsl.search_answer import SearchResult
    from pipedsl.search_runs import News
    from pipedsl.sweeping import SweepPoint

VERSION = 1


def progress_text(news: News, elapsed: float) -> str:
    """One short line: the last news, and for how many seconds the command has run."""
    where = f"{news.label}: " if news.label else ""
    when = f"{elapsed:.0f} s"
    if news.said:
        return f"{where}{news.said}, {when}"
    if news.value is None or news.gap is None:
        return f"{where}nothing yet, bound {number(news.bound)}, {when}"
    return f"{where}{number(news.value)}, bound {number(news.bound)}, gap {percent(news.gap)}, {when}"


def bound_text(result: SearchResult) -> str:
    """`27 (lower bound: path), so this is the smallest`, or how far off it is at most."""
    by = refuted(result) if result.proof == "refutation" else result.argument
    text = f"{number(result.bound)} ({by})"
    return f"{text}: this is the smallest" if result.optimal else f"{text}: at most {percent(result.gap)} above it"


def search_lines(result: SearchResult, every: EveryM | None = None) -> list[Line]:
    """The answer and how good it is, then what `verify` says of it."""
    good = ("good", "found, the smallest") if result.optimal else ("warning", "found")
    given = ", ".join(result.given)
    heading = f"{visible(f'{result.schedule.header.name} ({given})')}: "
    facts = [("objective", f"{result.objective} {number(result.value)}"), ("bound", bound_text(result))]
    if result.least:
        facts.append(("memory", f"no order with this {result.objective} has a rank that holds less at most"))
    if every is not None:
        facts.append(("for every m", every_text(result, every)))
    if result.placement is not None:
        out = ", ".join(result.task.left_out)
        facts.append(("placement", f"{result.placement}{out and f'; the words cannot run with {out}'}"))
    effort = f"seed {result.seed}, work {result.work:.2f}, {result.elapsed:.1f} s"
    notes = [effort, *(["from the cache"] if result.cached else []), *(["interrupted"] if result.interrupted else [])]
    notes += [text for text in (result.instead, result.lost) if text]
    facts.append(("search", ", ".join(notes)))
    verdict = (STYLES[result.verdict], result.verdict.value)
    lines = [line(heading, good, ", ", verdict)]
    lines += [line(("dim", f"  {name:<16}"), f"  {text}") for name, text in facts]
    return lines + summary_lines(result.report, result.program)


def every_text(result: SearchResult, every: EveryM) -> str:
    """`from 8 on in steps of 2, proved: makespan 41 here, 5 more for each above`; `about 5` where not proved."""
    steps = f" in steps of {every.period}" if every.period > 1 else ""
    above = f" ({percent(every.loss)} above)" if every.loss else ""
    value, slope = number(every.value), number(every.slope)
    more = f"{'' if every.proved else 'about '}{slope} more for each above"
    return f"from {every.shortest} on{steps}, proved: {result.objective} {value} here{above}, {more}"


def search_document(result: SearchResult, every: EveryM | None = None) -> Json:
    return {
        "version": VERSION,
        "schedule": result.schedule.header.name,
        "params": dict(result.params),
        **_answer(result),
        "caps": [None if cap is None else json_number(cap) for cap in result.caps],
        "every_m": None
        if every is None
        else {
            "from": every.shortest,
            "period": every.period,
            "value": json_number(every.value),
            "loss": json_number(every.loss),
            "slope": json_number(every.slope),
            "slope_proved": every.proved,
        },
        "sched": result.text,
        "report": report_document(result.program.name, result.params, result.report),
    }


def _answer(result: SearchResult) -> Json:
    return {
        "found": True,
        "objective": result.objective,
        "value": json_number(result.value),
        "bound": json_number(result.bound),
        "gap": json_number(result.gap),
        "exact": {key: json_exact(getattr(result, key)) for key in ("value", "bound", "gap")},
        "optimal": result.optimal,
        "proof": result.proof,
        "argument": result.argument,
        "least_memory": result.least,
        "placement": result.placement,
        "left_out": [*result.task.left_out],
        "seed": result.seed,
        "work": result.work,
        "elapsed": result.elapsed,
        "cached": result.cached,
        "interrupted": result.interrupted,
        "asked": [*result.task.asked, *result.effort],
        "engine": result.engine,
        "lost": result.lost or None,
    }


def refusal_document(name: str, params: Mapping[str, int], diagnostics: Sequence[Diagnostic]) -> Json:
    """Where no order keeps to the caps."""
    return {
        "version": VERSION,
        "schedule": name,
        "params": dict(params),
        "found": False,
        "diagnostics": [diagnostic_document(each) for each in diagnostics],
    }


# ---------------------------------------------------------------------- sweeps


def sweep_lines(name: str, points: Sequence[SweepPoint]) -> list[Line]:
    """A table: one line a value."""
    head = (name, "value", "bound", "gap", "bubble", "peak", "", "")
    rows = [head, *((number(point.value), *_cells(point)) for point in points)]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for at, row in enumerate(rows):
        text = "  ".join(cell.rjust(width) for cell, width in zip(row[:6], widths, strict=True))
        lines.append(line(("dim" if not at else "", text), "  " if row[6] else "", (row[7], row[6])))
    refused = [point.refusal.diagnostic for point in points if point.refusal is not None]
    for text in (refused[-1].message, *refused[-1].notes) if refused else ():
        lines.append(line(("dim", text)))
    return lines


def _cells(point: SweepPoint) -> tuple[str, ...]:
    result = point.result
    if result is None:
        if point.refusal is None:
            return ("-", "-", "-", "-", "-", f"nothing found: {point.why}", "warning")
        refusal, told = point.refusal, ""
        if not refusal.sure:
            told = f", one was found for a cap of {refusal.said}" if refusal.said else ""
        elif point.least is not None:
            told = f", the smallest is {number(point.least)}"
        elif refusal.said:
            told = f", the smallest cap is {refusal.said}"
        return ("-", "-", "-", "-", "-", f"no order keeps to it{told}", "error")
    metrics = result.report.metrics
    bubble, peak = Fraction(0), Fraction(0)
    if metrics is not None:
        bubble = metrics.bubble if result.objective == "makespan" else metrics.span_bubble
        peak = max(metrics.peak_activations)
    said = [result.placement, "the smallest" if result.optimal else "", "interrupted" if result.interrupted else ""]
    state = ", ".join(text for text in (*said, result.instead, result.lost) if text)
    cells = (number(result.value), number(result.bound), percent(result.gap), percent(bubble), number(peak))
    return (*cells, state, "good" if result.optimal else "")


def sweep_document(name: str, points: Sequence[SweepPoint]) -> Json:
    return {"version": VERSION, "parameter": name, "points": [_point(point) for point in points]}


def _point(point: SweepPoint) -> Json:
    result = point.result
    if result is None:
        why: Json = {"at": json_number(point.value), "found": False, "infeasible": point.refusal is not None}
        if point.refusal is not None:
            for key, least in (("smallest", point.least), ("smallest_cap", point.refusal.smallest)):
                why[key] = None if least is None else json_number(least)
            why["smallest_proved"] = point.refusal.sure
            why["diagnostics"] = [diagnostic_document(point.refusal.diagnostic)]
        return why
    metrics = result.report.metrics
    known: Json = {} if metrics is None else {
        "bubble": json_number(metrics.bubble),
        "span_bubble": json_number(metrics.span_bubble),
        "peak_activations": [json_number(peak) for peak in metrics.peak_activations],
        "memory": [json_number(each) for each in metrics.memory],
    }  # fmt: skip
    return {"at": json_number(point.value), **_answer(result), **known, "sched": result.text}
