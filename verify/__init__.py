"""The verifier: takes a Program or Calls, answers with a report. Knows nothing of the language."""

from __future__ import annotations

from collections.abc import Sequence

from pipedsl.calls import Calls
from pipedsl.program import Program
from pipedsl.simulate import Timeline
from verify.report import Report, Verdict

TRANSPORTS = ("buffered", "gloo", "nccl-lazy", "nccl-eager", "nccl-lazy-warm", "nccl-eager-warm")


def verify(
    program: Program,
    calls: Calls | None = None,
    timeline: Timeline | None = None,
    transports: Sequence[str] = TRANSPORTS,
) -> Report:
    """Everything there is to prove about a program; simulates and lowers it unless that was done already."""
    raise NotImplementedError


def check_calls(calls: Calls, transports: Sequence[str] = TRANSPORTS) -> Report:
    """Deadlocks and messages of calls alone."""
    raise NotImplementedError


__all__ = ["TRANSPORTS", "Report", "Verdict", "check_calls", "verify"]
