"""The straight line, composed: text to schedule to program to report. Nothing here prints.

import pipedsl
result = pipedsl.verify(pipedsl.load("1f1b"), {"p": 4, "m": 8})
assert result.verdict is pipedsl.Verdict.VERIFIED
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pipedsl.blame import at_the_cap, point
from pipedsl.calls import Calls
from pipedsl.calls_json import read_calls
from pipedsl.claims import ClaimCounts, check_claims, claims_of, count_claims, is_about_own_times
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.expand import admits, expand
from pipedsl.library import find, find_text
from pipedsl.occupancy import Part, memory_used, parts_at_peaks
from pipedsl.parser import parse, read_source
from pipedsl.program import Costs, Program
from pipedsl.simulate import Metrics, Stuck, Timeline, measure, simulate
from pipedsl.syntax import Schedule
from verify import TRANSPORTS, Report, Verdict, check_calls
from verify import verify as prove
from verify.buffers import BATCH_LIMIT

if TYPE_CHECKING:
    from pipedsl.profile import Profile

# Findings that leave a question open instead of answering it with no.
OPEN = frozenset({"PD502"})


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a schedule under some parameters. `program` is None where the text has none.

    `profile`: whose durations and sizes the program has instead of its own, if any.
    """

    schedule: Schedule | None
    params: Mapping[str, int]
    program: Program | None
    report: Report
    profile: Profile | None = None

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
    def name(self) -> str | None:
        """What the schedule is called; None for calls alone."""
        if self.schedule is not None:
            return self.schedule.header.name
        return None if self.program is None else self.program.name

    @property
    def claims(self) -> int:
        """How many claims the text makes."""
        return 0 if self.schedule is None else len(claims_of(self.schedule))

    @property
    def claim_counts(self) -> ClaimCounts:
        """What more there is to say of them where they all hold."""
        if self.schedule is None or self.program is None or self.metrics is None:
            return ClaimCounts(self.claims)
        own_costs = self.profile is None or not self.profile.costs
        return count_claims(self.schedule, self.program, self.metrics, own_costs)

    @property
    def unchecked_claims(self) -> int:
        """How many of them are about times in plain numbers, which say nothing of the durations of a profile."""
        if self.schedule is None or self.profile is None or not self.profile.costs:
            return 0
        return sum(map(is_about_own_times, claims_of(self.schedule)))

    @property
    def memory_at_peak(self) -> tuple[Mapping[Part, Fraction], ...]:
        """For every rank what its memory is for at its peak, in the unit of `metrics.memory`; nothings left out."""
        if self.program is None or self.metrics is None:
            return ()
        used = memory_used(self.program, self.calls)
        peaks = [used.peak(rank) for rank in range(self.program.ranks)]
        return tuple(parts_at_peaks(self.program, self.calls, peaks))


def load(file_or_name: str, limits: Limits | None = None) -> Schedule:
    """The schedule in a file, or a shipped one by its name. Raises UsageError and DiagnosticError."""
    limits = limits or Limits()
    name, data = find_text(file_or_name, limits)
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
    profile: Profile | None = None,
) -> Result:
    """Prove the schedule under `params`, or say what is wrong with it.

    With a `profile`, under its durations and sizes (`load_profile`). Raises nothing for any schedule; UsageError for a
    profile that is for another number of stages.
    """
    try:
        own = expand(schedule, params, limits or Limits())
    except DiagnosticError as error:
        report = _pointed(schedule, params, rejection(error), limits)
        return Result(schedule, dict(params), None, report, profile)
    program = own
    if profile is not None:
        from pipedsl.profile import apply_profile

        program = apply_profile(profile, own)
    try:
        report = prove(program, transports=tuple(transports or TRANSPORTS))
        if report.metrics is not None:
            report = with_claims(schedule, own, report, report.metrics, profile)
    except DiagnosticError as error:
        report = rejection(error)
    if program.memory.cap == own.memory.cap:
        report = replace(report, diagnostics=tuple(at_the_cap(schedule, each) for each in report.diagnostics))
    return Result(schedule, program.params, program, _pointed(schedule, params, report, limits), profile)


def _pointed(schedule: Schedule, params: Mapping[str, int], report: Report, limits: Limits | None) -> Report:
    """The report with its findings at the lines to change, where that can be told."""
    if report.verdict is not Verdict.REJECTED:
        return report
    return replace(report, diagnostics=point(schedule, params, report.diagnostics, limits or Limits()))


def advise(result: Result, *, thorough: bool = False, limits: Limits | None = None) -> tuple[Diagnostic, ...]:
    """What a verified schedule could do better: codes PD901 and on, which are no findings.

    `thorough` looks for moves of single operations for up to some ten seconds; without it, some 50 ms.
    """
    program, report = result.program, result.report
    if report.verdict is not Verdict.VERIFIED or program is None or not report.metrics:
        return ()
    if report.timeline is None or report.calls is None:
        return ()
    from verify.advice import advise as advise_on
    from verify.advice import few_microbatches

    found = advise_on(program, report.calls, report.timeline, report.metrics, thorough)
    limits, m = limits or Limits(), 4 * program.ranks
    if result.schedule is not None and not admits(result.schedule, {**result.params, "m": m}, limits):
        return tuple(found)
    few = few_microbatches(program, report.metrics, _with_microbatches(result, m, limits))
    return (*found, *([few] if few else []))


def _with_microbatches(result: Result, m: int, limits: Limits) -> Metrics | None:
    """The metrics of a result with more microbatches; None where they are not quickly known."""
    program, schedule = result.program, result.schedule
    if schedule is None or program is None or m <= program.microbatches:
        return None
    if len(program) * m > 20_000 * program.microbatches:
        return None
    try:
        more = expand(schedule, {**result.params, "m": m}, limits)
        if result.profile is not None:
            from pipedsl.profile import apply_profile

            more = apply_profile(result.profile, more)
        return measure(more, simulate(more))
    except (DiagnosticError, Stuck):
        return None


def verify_text(text: str, params: Mapping[str, int], name: str = "<text>") -> Report:
    """`verify` for a text; a text that does not parse is rejected too."""
    try:
        schedule = parse_text(text, name)
    except DiagnosticError as error:
        return rejection(error)
    return verify(schedule, params).report


def load_csv(file: str, limits: Limits | None = None) -> Program:
    """The program in a CSV of torch's pipelining (docs/formats.md). Raises UsageError and DiagnosticError."""
    from pipedsl.torch_csv import read_csv, text_limits

    limits = text_limits(limits or Limits())
    return read_csv(read_source(*find(file, limits), limits), limits)


def verify_program(
    program: Program, *, transports: Sequence[str] | None = None, profile: Profile | None = None
) -> Result:
    """Prove a program that no `.sched` wrote, as `load_csv` reads one; it makes no claims."""
    if profile is not None:
        from pipedsl.profile import apply_profile

        program = apply_profile(profile, program)
    try:
        report = prove(program, transports=tuple(transports or TRANSPORTS))
    except DiagnosticError as error:
        report = rejection(error)
    return Result(None, program.params, program, report, profile)


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


def verify_calls(calls: Calls, *, transports: Sequence[str] | None = None, batch_limit: int = BATCH_LIMIT) -> Result:
    """Prove that calls alone do not hang and that their messages match; nothing is known of what they are for.

    A batch of more than `batch_limit` operations is a finding (PD304).
    """
    return Result(None, {}, None, check_calls(calls, tuple(transports or TRANSPORTS), batch_limit=batch_limit))


def rejection(error: DiagnosticError) -> Report:
    """The report of what could not go on."""
    return Report(Verdict.REJECTED, error.diagnostics, {})


def with_claims(schedule: Schedule, own: Program, report: Report, metrics: Metrics, profile: Profile | None) -> Report:
    """The report with what is wrong with the claims.

    They are about the file's own durations and sizes (`own`), or all durations; only `memory(r)` is what was verified
    (`metrics`), with the sizes of a profile if there is one.
    """

    if profile is not None:
        metrics = replace(measure(own, simulate(own)), memory=metrics.memory)

    def resimulate(costs: Costs) -> Metrics:
        changed = replace(own, costs=costs)
        return measure(changed, simulate(changed), known=metrics)

    found = tuple(check_claims(schedule, own, metrics, resimulate, profile is None or not profile.costs))
    if not found:
        return report
    verdict = report.verdict
    if any(each.code not in OPEN for each in found):
        verdict = Verdict.REJECTED
    elif verdict is Verdict.VERIFIED:
        verdict = Verdict.UNKNOWN
    return replace(report, verdict=verdict, diagnostics=report.diagnostics + found)
