"""The straight line, composed: text to schedule to program to report. Nothing here prints.

import pipedsl
result = pipedsl.verify(pipedsl.load("1f1b"), {"p": 4, "m": 8})
assert result.verdict is pipedsl.Verdict.VERIFIED
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipedsl.calls import Calls
from pipedsl.calls_json import read_calls
from pipedsl.claims import check_claims
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.expand import expand
from pipedsl.library import find
from pipedsl.parser import parse, read_source
from pipedsl.program import Costs, Program
from pipedsl.simulate import Metrics, Timeline, measure, simulate
from pipedsl.syntax import ExpectBlock, Schedule
from verify import TRANSPORTS, Report, Verdict, check_calls
from verify import verify as verify_program

# Findings that leave a question open instead of answering it with no.
OPEN = frozenset({"PD502"})


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a schedule under some parameters. `program` is None where the text has none."""

    schedule: Schedule | None
    params: Mapping[str, int]
    program: Program | None
    report: Report

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return self.report.diagnostics

    @property
    def metrics(self) -> Metrics | None:
        return self.report.metrics

    @property
    def timeline(self) -> Timeline | None:
        return self.report.timeline

    @property
    def calls(self) -> Calls | None:
        return self.report.calls

    @property
    def claims(self) -> int:
        """How many claims the text makes."""
        if self.schedule is None:
            return 0
        return sum(len(item.claims) for item in self.schedule.items if isinstance(item, ExpectBlock))


def load(file_or_name: str, limits: Limits | None = None) -> Schedule:
    """The schedule in a file, or a shipped one by its name. Raises UsageError and DiagnosticError."""
    limits = limits or Limits()
    name, data = find(file_or_name, limits)
    return parse(read_source(name, data, limits), limits)


def parse_text(text: str, name: str = "<text>", limits: Limits | None = None) -> Schedule:
    """The schedule that `text` writes. Raises DiagnosticError."""
    limits = limits or Limits()
    return parse(read_source(name, text.encode("utf-8", "surrogatepass"), limits), limits)


def verify(
    schedule: Schedule,
    params: Mapping[str, int],
    *,
    transports: Sequence[str] | None = None,
    limits: Limits | None = None,
) -> Result:
    """Prove the schedule under `params`, or say what is wrong with it. Raises nothing for any schedule."""
    try:
        program = expand(schedule, params, limits or Limits())
    except DiagnosticError as error:
        return Result(schedule, dict(params), None, rejection(error))
    try:
        report = verify_program(program, transports=tuple(transports or TRANSPORTS))
        if report.metrics is not None:
            report = _with_claims(schedule, program, report, report.metrics)
    except DiagnosticError as error:
        report = rejection(error)
    return Result(schedule, program.params, program, report)


def verify_text(text: str, params: Mapping[str, int], name: str = "<text>") -> Report:
    """`verify` for a text; a text that does not parse is rejected too."""
    try:
        schedule = parse_text(text, name)
    except DiagnosticError as error:
        return rejection(error)
    return verify(schedule, params).report


def load_calls(file: str, limits: Limits | None = None) -> Calls:
    """The calls in a JSON file (docs/formats.md). Raises UsageError and DiagnosticError."""
    import json

    limits = limits or Limits()
    source = read_source(*find(file, limits), limits)
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        place = Span(source, error.pos, min(error.pos + 1, len(source.text)))
        raise DiagnosticError([Diagnostic("PD103", f"this is not JSON: {error.msg}", place)]) from None
    except (ValueError, RecursionError):  # numbers of thousands of digits, brackets a thousand deep
        raise DiagnosticError([Diagnostic("PD104", "this JSON holds numbers too long or brackets too deep")]) from None
    return read_calls(document)


def verify_calls(calls: Calls, *, transports: Sequence[str] | None = None) -> Result:
    """Prove that calls alone do not hang and that their messages match; nothing is known of what they are for."""
    return Result(None, {}, None, check_calls(calls, tuple(transports or TRANSPORTS)))


def rejection(error: DiagnosticError) -> Report:
    """The report of what could not go on."""
    return Report(Verdict.REJECTED, error.diagnostics, {})


def _with_claims(schedule: Schedule, program: Program, report: Report, metrics: Metrics) -> Report:
    def resimulate(costs: Costs) -> Metrics:
        changed = replace(program, costs=costs)
        return measure(changed, simulate(changed), report.calls)

    found = tuple(check_claims(schedule, program, metrics, resimulate))
    if not found:
        return report
    verdict = report.verdict
    if any(each.code not in OPEN for each in found):
        verdict = Verdict.REJECTED
    elif verdict is Verdict.VERIFIED:
        verdict = Verdict.UNKNOWN
    return replace(report, verdict=verdict, diagnostics=report.diagnostics + found)
