"""The verdict and the numbers in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from pipedsl.claims import ClaimCounts
from pipedsl.program import Program
from pipedsl.render.numbers import number, per_rank, percent
from pipedsl.render.style import Line, line, visible
from pipedsl.simulate import Metrics
from verify.report import Report, Verdict

STYLES = {Verdict.VERIFIED: "good", Verdict.REJECTED: "error", Verdict.UNKNOWN: "warning"}


def title(name: str, params: Mapping[str, int]) -> str:
    """`zb_h1 (p=4, m=8)`."""
    given = ", ".join(f"{key}={value}" for key, value in params.items())
    return visible(f"{name} ({given})" if given else name)


def summary_lines(
    report: Report, program: Program | None, claims: ClaimCounts | None = None, profile: str | None = None
) -> list[Line]:
    """Transports, metrics and claims, as far as there are any.

    `profile`: the name of one whose durations and sizes these are.
    """
    facts = list(_transports(report.transports))
    if report.metrics is not None and program is not None:
        if profile is not None:
            facts.append(("profile", visible(profile)))
        facts += metric_facts(report.metrics, program)
    if claims is not None and claims.all and report.verdict is Verdict.VERIFIED:
        facts.append(("claims", _claims(claims)))
    margin = max((len(name) for name, _ in facts), default=0)
    return [line(("dim", f"  {name:<{margin}}"), f"  {text}") for name, text in facts]


def _claims(claims: ClaimCounts) -> str:
    held, said = claims.all - claims.absent - claims.passed_over, []
    if held:
        which = f"{held} of {claims.all}" if held < claims.all else f"all {held}" if held > 1 else "1"
        said.append(f"{which} hold{'s' if held == 1 else ''}")
    if claims.even:
        these = f"{claims.even} of them " if claims.even < held else ""
        said.append(f"{these}for stages of equal costs, unlike these")
    if claims.absent:
        said.append(f"{claims.absent} do{'es' if claims.absent == 1 else ''} not apply: `when` is false")
    if claims.passed_over:
        said.append(f"{claims.passed_over} not checked: about the schedule's own durations, not the profile's")
    return ", ".join(said)


def metric_facts(metrics: Metrics, program: Program) -> Iterator[tuple[str, str]]:
    """(name, text) of each metric; memory only where it says more than the peaks do."""
    yield "makespan", number(metrics.makespan)
    yield "bubble", percent(metrics.bubble)
    if metrics.span != metrics.makespan:
        yield "span", f"{number(metrics.span)}, span bubble {percent(metrics.span_bubble)}"
    yield "peak activations", per_rank(metrics.peak_activations)
    if metrics.memory != metrics.peak_activations:
        yield "memory", per_rank(metrics.memory, program.memory.in_bytes)
    if any(cap is not None for cap in program.memory.cap):
        caps = [cap if cap is not None else Fraction(-1) for cap in program.memory.cap]
        yield "cap", per_rank(caps, program.memory.in_bytes).replace("-1", "none")


def _transports(transports: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for result in sorted(set(transports.values()), key=lambda each: (each != "safe", each)):
        names = ", ".join(name for name, found in transports.items() if found == result)
        yield "safe on" if result == "safe" else f"{result} on", names


def captions(report: Report, program: Program) -> list[str]:
    """The same in a few lines of plain text, for under a picture."""
    facts = [] if report.metrics is None else list(metric_facts(report.metrics, program))
    times = [f"{name} {text}" for name, text in facts if name in ("makespan", "bubble", "span")]
    peaks = [f"{name} {text}" for name, text in facts if name not in ("makespan", "bubble", "span")]
    verdict = [report.verdict.value, *(f"{name} {text}" for name, text in _transports(report.transports))]
    return [" · ".join(part) for part in (times, peaks, verdict) if part]
