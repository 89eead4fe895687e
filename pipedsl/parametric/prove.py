"""`verify --for-all m`: a schedule proved for every number of microbatches, at fixed other parameters.

The small m are verified one by one, all larger ones by a proof per residue class of m (`classes`). A rejection is
always the ordinary verifier's, at the smallest m that it rejects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import lcm

from pipedsl.api import verify
from pipedsl.check import check
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
from pipedsl.expand import parameter_values
from pipedsl.parametric.classes import Bounds, ClassResult, classes, undecided
from pipedsl.syntax import Schedule
from verify import Report, Verdict

FIRST = 4
"""The first few m are verified before anything is proved: most mistakes show there."""


@dataclass(frozen=True)
class ForAll:
    """What is proved for all m under `params`.

    `checked`: the m that were verified one by one; `refused`: how many more `require` did not admit of those tried.
    `from_m`: every m from there on that `require` admits is covered by the proof by repetition, whose argument treats m
    modulo `period`; None where there is no such proof, or `require` admits none of them. REJECTED: `fails_at` is the
    smallest m that fails and `report` its report, or `fails_at` is None and no m is admitted at all. UNKNOWN:
    `diagnostics` name what is not decided.
    """

    verdict: Verdict
    params: Mapping[str, int]
    checked: tuple[int, ...] = ()
    refused: int = 0
    from_m: int | None = None
    period: int = 1
    diagnostics: tuple[Diagnostic, ...] = ()
    fails_at: int | None = None
    report: Report | None = field(default=None, repr=False)


def prove_for_all(
    schedule: Schedule, params: Mapping[str, int], limits: Limits | None = None, bounds: Bounds | None = None
) -> ForAll:
    """Prove the schedule for every m, reject it with the smallest m that fails, or say what is not decided.

    `params`: every parameter without a default but `m`. Raises nothing for any schedule.
    """
    limits, bounds = limits or Limits(), bounds or Bounds()
    params = {name: value for name, value in params.items() if name != "m"}
    found = check(schedule, limits)
    if not found:
        try:
            parameter_values(schedule, {**params, "m": 1}, limits)
        except DiagnosticError as error:
            found = list(error.diagnostics)
    if found:
        return ForAll(Verdict.REJECTED, params, diagnostics=tuple(found))
    return _Search(schedule, params, limits, bounds).answer()


def prove_for_all_in(
    schedule: Schedule,
    params: Mapping[str, int],
    ranks: Iterable[int],
    limits: Limits | None = None,
    bounds: Bounds | None = None,
) -> dict[int, ForAll]:
    """`prove_for_all` for every number of ranks `p` in a range: the answers by p."""
    return {p: prove_for_all(schedule, {**params, "p": p}, limits, bounds) for p in ranks}


@dataclass
class _Search:
    schedule: Schedule
    params: Mapping[str, int]
    limits: Limits
    bounds: Bounds
    checked: list[int] = field(default_factory=list)
    refused: int = 0
    operations: int = 0
    open: list[Diagnostic] = field(default_factory=list)

    def answer(self) -> ForAll:
        for m in range(1, FIRST + 1):
            report = self.report(m)
            if report is not None and report.verdict is Verdict.REJECTED:
                return self.result(Verdict.REJECTED, [], report.diagnostics, m, report)
        results = classes(self.schedule, self.params, self.limits, self.bounds)
        for result in results:
            self.open.extend(result.open)
        failing = min((each.residue.m(each.fails) for each in results if each.fails is not None), default=None)
        for m in _one_by_one(results, self.bounds, failing):
            if m <= FIRST:
                continue
            report = self.report(m)
            if report is not None and report.verdict is Verdict.REJECTED:
                return self.result(Verdict.REJECTED, results, report.diagnostics, m, report)
            if self.operations > self.bounds.operations:
                why = f"the programs verified one by one, up to m = {m}, have too many operations"
                self.open.append(undecided(self.schedule, None, why))
                break
        if failing is not None:
            report = self.report(failing)
            if report is not None and report.verdict is Verdict.REJECTED:
                return self.result(Verdict.REJECTED, results, report.diagnostics, failing, report)
            why = f"the proof rejects m = {failing}, which could not be confirmed"
            self.open.append(undecided(self.schedule, None, why))
        unproved = [each for each in results if not each.proved and not each.open]
        if unproved:
            m = unproved[0].residue.m(unproved[0].start)
            why = f"the analysis finds a mistake from m = {m} on, which could not be confirmed"
            self.open.append(undecided(self.schedule, None, why))
        if self.open:
            return self.result(Verdict.UNKNOWN, results, _distinct(self.open))
        if not self.checked and all(each.refused for each in results):
            refusal = verify(self.schedule, {**self.params, "m": 1}, limits=self.limits).report
            return self.result(Verdict.REJECTED, results, refusal.diagnostics, None, refusal)
        return self.result(Verdict.VERIFIED, results, ())

    def report(self, m: int) -> Report | None:
        """The ordinary report of one m; None where `require` refuses it or a limit is in the way."""
        result = verify(self.schedule, {**self.params, "m": m}, limits=self.limits)
        codes = {each.code for each in result.diagnostics}
        if result.program is None and codes == {"PD112"}:
            self.refused += 1
            return None
        if result.verdict is Verdict.UNKNOWN or (result.verdict is Verdict.REJECTED and codes == {"PD104"}):
            self.open.extend(result.diagnostics)
            return None
        if result.program is not None:
            self.operations += len(result.program)
        self.checked.append(m)
        return result.report

    def result(
        self,
        verdict: Verdict,
        results: list[ClassResult],
        diagnostics: tuple[Diagnostic, ...],
        fails_at: int | None = None,
        report: Report | None = None,
    ) -> ForAll:
        from_m = None
        if verdict is Verdict.VERIFIED and not all(each.refused for each in results):
            from_m = 1 + max((each.residue.m(each.start - 1) for each in results), default=0)
        return ForAll(
            verdict=verdict,
            params=self.params,
            checked=tuple(self.checked),
            refused=self.refused,
            from_m=None if from_m is None else max(1, from_m),
            period=lcm(1, *(each.residue.period for each in results)),
            diagnostics=diagnostics,
            fails_at=fails_at,
            report=report,
        )


def _one_by_one(results: list[ClassResult], bounds: Bounds, failing: int | None) -> list[int]:
    """The m that no class proof covers, smallest first, below `failing`."""
    found: set[int] = set()
    for each in results:
        end = each.start + (0 if each.proved else bounds.probes)
        found.update(m for m in map(each.residue.m, range(end)) if m >= 1)
    return sorted(m for m in found if failing is None or m < failing)


def _distinct(diagnostics: list[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Each finding once: many classes may meet the same obstacle."""
    seen: dict[tuple[str, str, int], Diagnostic] = {}
    for each in diagnostics:
        key = (each.code, each.message, each.span.start if each.span is not None else -1)
        seen.setdefault(key, each)
    return tuple(list(seen.values())[:20])
