"""Reading and verifying a file, for the commands that answer with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipedsl.api import Result, load, load_calls, rejection, verify, verify_calls
from pipedsl.cli.common import print_diagnostics, print_lines
from pipedsl.cli.status import FAILED, OK, REJECTED, UNKNOWN
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.render.report import count_of
from pipedsl.render.style import Colour, line
from pipedsl.render.summary import STYLES, summary_lines, title
from verify import Report, Verdict


def check_file(file: str, params: Mapping[str, int], transports: Sequence[str], limits: Limits) -> Result:
    """The verdict on a schedule, or on the calls in a `.json` file. Raises UsageError."""
    try:
        if file.endswith(".json"):
            return verify_calls(load_calls(file, limits), transports=transports)
        schedule = load(file, limits)
    except DiagnosticError as error:
        return Result(None, params, None, rejection(error))
    return verify(schedule, params, transports=transports, limits=limits)


def name_of(result: Result, file: str) -> str:
    return file if result.schedule is None else result.schedule.header.name


def exit_status(report: Report) -> int:
    if any(each.code == "PD111" for each in report.diagnostics):
        return FAILED
    return {Verdict.VERIFIED: OK, Verdict.REJECTED: REJECTED, Verdict.UNKNOWN: UNKNOWN}[report.verdict]


def print_result(result: Result, file: str, color: Colour, err: bool = False) -> None:
    """Findings, then the verdict and the numbers."""
    report = result.report
    print_diagnostics(report.diagnostics, color, err)
    count = count_of(report.diagnostics)
    verdict = (STYLES[report.verdict], report.verdict.value)
    heading = f"{title(name_of(result, file), result.params)}: "
    print_lines([line(heading, verdict, f", {count}" if count else "")], color, err)
    print_lines(summary_lines(report, result.program, result.claims), color, err)
