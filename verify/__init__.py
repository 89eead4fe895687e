"""The verifier: takes a Program or Calls, answers with a report. Knows nothing of the language."""

from __future__ import annotations

from collections.abc import Sequence

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic, Severity
from pipedsl.lower import lower
from pipedsl.program import Program
from pipedsl.simulate import Timeline, measure
from verify.buffers import BATCH_LIMIT, check_batches, check_buffers
from verify.graph import dependency_graph
from verify.lifetimes import check_correspondence, check_lifetimes
from verify.memory import check_memory
from verify.mend import Mended, mend_calls
from verify.mend_program import MendedProgram, mend_program
from verify.messages import check_requests, check_unwaited
from verify.report import Remedy, Report, Verdict
from verify.structure import check_structure
from verify.transports import DEFAULT as TRANSPORTS
from verify.transports import chosen
from verify.trial import BUDGET
from verify.waiting import check_waiting


def verify(
    program: Program,
    calls: Calls | None = None,
    timeline: Timeline | None = None,
    transports: Sequence[str] = TRANSPORTS,
    *,
    remedies: int = BUDGET,
    batch_limit: int = BATCH_LIMIT,
) -> Report:
    """Everything there is to prove about a program, most fundamental first (design sections 5.1 to 5.4).

    Lowers the program unless its calls are given. A program whose structure is wrong has no calls to look at.
    `remedies` bounds the search for what would help where calls are not safe, in calls looked at; 0 is not to search.
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
    found, states, helps = _check(calls, transports, program, remedies, batch_limit)
    found += check_memory(program, calls, timeline)
    metrics = measure(program, timeline, calls)
    return Report(_verdict(found), tuple(found), states, metrics, timeline, calls, helps)


def check_calls(
    calls: Calls,
    transports: Sequence[str] = TRANSPORTS,
    *,
    remedies: int = BUDGET,
    batch_limit: int = BATCH_LIMIT,
) -> Report:
    """Deadlocks, messages and named buffers of calls alone. Raises ValueError for an unknown transport."""
    found, states, helps = _check(calls, transports, None, remedies, batch_limit)
    return Report(_verdict(found), tuple(found), states, calls=calls, remedies=helps)


def _check(
    calls: Calls, transports: Sequence[str], program: Program | None, remedies: int, batch_limit: int
) -> tuple[list[Diagnostic], dict[str, str], tuple[Remedy, ...]]:
    """What is wrong with calls, the state of each transport in the order asked for, and what would help."""
    found, later = check_requests(calls, program), check_unwaited(calls, program)
    if program is not None and not found and not later:
        later = check_lifetimes(program, calls)
    later += check_buffers(calls) + check_batches(calls, batch_limit)
    waiting, states, helps = check_waiting(calls, chosen(transports), program, remedies)
    return found + waiting + later, {name: states[name] for name in transports}, helps


def _verdict(found: Sequence[Diagnostic]) -> Verdict:
    return Verdict.REJECTED if any(one.severity is Severity.ERROR for one in found) else Verdict.VERIFIED


__all__ = [
    "TRANSPORTS",
    "Mended",
    "MendedProgram",
    "Remedy",
    "Report",
    "Verdict",
    "check_calls",
    "check_structure",
    "dependency_graph",
    "mend_calls",
    "mend_program",
    "verify",
]
