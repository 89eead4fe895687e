"""What the verifier answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pipedsl.calls import Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.simulate import Metrics, Timeline


class Verdict(Enum):
    VERIFIED = "verified"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Report:
    """A verdict and its evidence.

    `transports`: name -> "safe", "deadlock", "crossed" or "undefined"; empty when the structure is broken. `metrics`,
    `timeline` and `calls` are None where the program is too broken to have any.
    """

    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    transports: Mapping[str, str]
    metrics: Metrics | None = None
    timeline: Timeline | None = field(default=None, repr=False)
    calls: Calls | None = field(default=None, repr=False)
