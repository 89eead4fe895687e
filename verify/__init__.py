"""The verifier: takes a Program or Calls, answers with a report. Knows nothing of the language."""

from __future__ import annotations

from collections.abc import Sequence

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic, Severity
from pipedsl.lower import lower
from pipedsl.program import Program
from pipedsl.simulate import Timeline, measure
from verify.graph import dependency_graph
from verify.lifetimes import check_correspondence, check_lifetimes
from verify.memory import check_memory
from verify.messages import check_requests
from verify.report import Report, Verdict
from verify.structure import check_structure
from verify.transports import DEFAULT as TRANSPORTS
from verify.transports import chosen
from verify.waiting import check_waiting


def verify(
    program: Program,
    calls: Calls | None = None,
    timeline: Timeline | None = None,
    transports: Sequence[str] = TRANSPORTS,
) -> Report:
    """Everything there is to prove about a program, most fundamental first (design sections 5.1 to 5.4).

    Lowers the program unless its calls are given. A program whose structure is wrong has no calls to look at.
    Raises ValueError for an unknown transport.
    """
    chosen(transports)
    found, simulated = check_structure(program)
    if simulated is None:
        return Report(Verdict.REJECTED, tuple(found), {})
    timeline = timeline or simulated
    calls = lower(program, timeline) if calls is None else calls
    found = check_correspondence(program, calls)
    if found:
        return Report(Verdict.REJECTED, tuple(found), {}, timeline=timeline)
    found, states = _check(calls, transports, program)
    found += check_memory(program, calls, timeline)
    return Report(_verdict(found), tuple(found), states, measure(program, timeline, calls), timeline, calls)


def check_calls(calls: Calls, transports: Sequence[str] = TRANSPORTS) -> Report:
    """Deadlocks and messages of calls alone. Raises ValueError for an unknown transport."""
    found, states = _check(calls, transports, None)
    return Report(_verdict(found), tuple(found), states, calls=calls)


def _check(calls: Calls, transports: Sequence[str], program: Program | None) -> tuple[list[Diagnostic], dict[str, str]]:
    """What is wrong with calls, and the state of each transport in the order asked for."""
    found = check_requests(calls, program)
    if program is not None and not found:
        found = check_lifetimes(program, calls)
    waiting, states = check_waiting(calls, chosen(transports), program)
    return found + waiting, {name: states[name] for name in transports}


def _verdict(found: Sequence[Diagnostic]) -> Verdict:
    return Verdict.REJECTED if any(one.severity is Severity.ERROR for one in found) else Verdict.VERIFIED


__all__ = [
    "TRANSPORTS",
    "Report",
    "Verdict",
    "check_calls",
    "check_structure",
    "dependency_graph",
    "verify",
]
