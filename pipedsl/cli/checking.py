"""Reading and verifying a file, for the commands that answer with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipedsl.api import Result, load, load_calls, load_csv, rejection, verify, verify_calls, verify_program
from pipedsl.cli.common import print_diagnostics, print_lines
from pipedsl.cli.status import FAILED, OK, REJECTED, UNKNOWN
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.library import UsageError
from pipedsl.render.report import count_of
from pipedsl.render.style import Colour, line
from pipedsl.render.summary import STYLES, summary_lines, title
from verify import Report, Verdict
from verify.buffers import BATCH_LIMIT

if TYPE_CHECKING:
    from pipedsl.profile import Profile


def check_file(
    file: str,
    params: Mapping[str, int],
    transports: Sequence[str],
    limits: Limits,
    profile: Profile | None = None,
    batch_limit: int = BATCH_LIMIT,
) -> Result:
    """The verdict on a schedule, on the program in a `.csv` file, or on the calls in a `.json` file.

    Calls have no profile, and neither they nor a program have parameters. Raises UsageError.
    """
    if params and file.endswith((".csv", ".json")):
        raise UsageError(f"{file} has no parameters for -D to set")
    if profile is not None and file.endswith(".json"):
        raise UsageError(f"{file} holds calls, which have no durations and sizes for --profile to set")
    try:
        if file.endswith(".csv"):
            return verify_program(load_csv(file, limits), transports=transports, profile=profile)
        if file.endswith(".json"):
            return verify_calls(load_calls(file, limits), transports=transports, batch_limit=batch_limit)
        schedule = load(file, limits)
    except DiagnosticError as error:
        return Result(None, params, None, rejection(error))
    return verify(schedule, params, transports=transports, limits=limits, profile=profile)


def name_of(result: Result, file: str) -> str:
    return result.name or file


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
    profile = None if result.profile is None else result.profile.name
    print_lines(summary_lines(report, result.program, result.claim_counts, profile), color, err)
