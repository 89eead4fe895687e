"""What is proved of one residue class of m, and the classes that all m fall into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipedsl.claims import claims_of
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.parametric.claims import Known, first_failure
from pipedsl.parametric.residue import Refused, Residue
from pipedsl.parametric.words import Unknown
from pipedsl.simulate import Stuck
from pipedsl.syntax import Schedule
from verify.forall import NeedsPeriod, ParametricProgram, Prover, Threshold, TooLate, uncovered


@dataclass(frozen=True)
class Bounds:
    """How far a proof may go before the answer is `unknown`.

    `period`: of m modulo which the text may depend. `microbatches`: from where at the latest the proof must hold.
    `operations`: those of all programs verified one by one, together. `rows`: operations in the words of all classes
    together, each round counted once. `probes`: how many m are verified one by one of a class that is not proved.
    """

    period: int = 1_260
    microbatches: int = 10_000
    operations: int = 20_000_000
    rows: int = 400_000
    probes: int = 4


@dataclass(frozen=True)
class ClassResult:
    """`start`: the first q not to be verified one by one.

    `proved`: every q >= start is verified, those >= `fails` (if any) excepted; `refused`: `require` admits none of
    them. `open`: why it is not proved, and not refuted either.
    """

    residue: Residue
    start: int
    proved: bool = False
    refused: bool = False
    fails: int | None = None
    open: tuple[Diagnostic, ...] = ()
    rows: int = 1_000


def classes(schedule: Schedule, params: Mapping[str, int], limits: Limits, bounds: Bounds) -> list[ClassResult]:
    """A result for every residue class; classes are split where the text depends on m modulo something."""
    done: list[ClassResult] = []
    pending = [(1, 0)]
    rows = 0
    while pending:
        period, number = pending.pop()
        residue = Residue(schedule, params, limits, period, number)
        first = 0 if number else 1
        threshold = Threshold(first, max(first, bounds.microbatches // period))
        rows += done[-1].rows if done else 0
        if rows > bounds.rows:
            done.append(_open(residue, threshold, None, f"the words of all m modulo {period} are too long together"))
            continue
        try:
            done.append(_proved(residue, threshold))
        except NeedsPeriod as need:
            if period * need.factor > bounds.period:
                span = getattr(need.where, "span", None)
                why = f"it depends on m modulo more than {bounds.period}"
                done.append(_open(residue, threshold, span, why))
            else:
                pending.extend((period * need.factor, number + period * i) for i in range(need.factor))
        except TooLate:
            why = f"it is the same for all m only from more than {bounds.microbatches:,} microbatches on"
            done.append(_open(residue, threshold, None, why))
        except Unknown as unknown:
            done.append(_open(residue, threshold, unknown.span, unknown.why))
        except RecursionError:
            done.append(_open(residue, threshold, None, "it nests too deep"))
        except (DiagnosticError, Stuck):
            done.append(ClassResult(residue, threshold.start))
    return done


def _open(residue: Residue, threshold: Threshold, span: Span | None, why: str) -> ClassResult:
    return ClassResult(residue, threshold.start, open=(undecided(residue.schedule, span, why),))


def undecided(schedule: Schedule, span: Span | None, why: str) -> Diagnostic:
    """PD502: what is not decided for all m."""
    what = "this" if span is None else f"`{_short(span.text)}`"
    return Diagnostic("PD502", f"{what} is not decided for all m: {why}", span or schedule.header.span)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _proved(residue: Residue, threshold: Threshold) -> ClassResult:
    """Raises what `Residue.program` raises; Stuck and DiagnosticError mean that large m are wrong."""
    try:
        program = residue.program(threshold)
    except Refused:
        return ClassResult(residue, threshold.start, proved=True, refused=True)
    problem = uncovered(program, threshold)
    if problem is not None:
        span = None if problem.span is None else program.spans[problem.span]
        return _open(residue, threshold, span, problem.why)
    prover = Prover(program)
    if not prover.prove_order(threshold):
        return _open(residue, threshold, None, "the order of operations is not proved to be regular in m")
    for size in (threshold.start, threshold.start + 1):
        if not residue.same_as_expanded(program, size):
            return _open(residue, threshold, None, f"the analysis is wrong at m = {residue.m(size)}")
    return _with_claims(Known(residue, program, prover, threshold))


def _with_claims(known: Known) -> ClassResult:
    """Caps and claims, where structure and order are proved."""
    schedule, program = known.residue.schedule, known.program
    failures: list[int] = []
    found: list[Diagnostic] = []
    if any(cap is not None for cap in program.caps):
        try:
            failures += _over_caps(known, program, schedule.header.span)
        except Unknown as unknown:
            found.append(undecided(schedule, unknown.span, unknown.why))
    for claim in claims_of(known.residue.schedule):
        try:
            failure = first_failure(claim, known)
            failures += [] if failure is None else [failure]
        except Unknown as unknown:
            found.append(undecided(schedule, unknown.span, unknown.why))
        except DiagnosticError:
            failures.append(known.threshold.start)
    start = known.threshold.start
    fails = max(start, min(failures)) if failures else None
    rows = sum(len(segment.body) for word in program.words for segment in word)
    return ClassResult(known.residue, start, proved=not found, fails=fails, open=tuple(found), rows=rows)


def _over_caps(known: Known, program: ParametricProgram, span: Span) -> list[int]:
    """For every rank that is over its cap at some q from the threshold on, the first such q."""
    found = []
    memory = known.memory(span)
    start = known.threshold.start
    for cap, used in zip(program.caps, memory, strict=True):
        if cap is None:
            continue
        spare = cap - used
        if spare.at(start) < 0:
            found.append(start)
        elif spare.slope < 0:
            found.append(int(-spare.constant / spare.slope // 1) + 1)
    return found
