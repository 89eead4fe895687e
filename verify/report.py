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


@dataclass(frozen=True)
class Remedy:
    """A help that makes one transport safe; it was tried before it is given.

    `kind`: `warm-up`, `batch`, `order`, `group-per-direction` or `buffer`, or one of them ` + warm-up`. `details`: the
    same for programs, JSON values under `edges` (["pair" or "group", rank, rank], in the order to warm them up),
    `batches`, `moves` and `buffers`. `text`: what to do, for people.
    """

    transport: str
    kind: str
    details: Mapping[str, object]
    text: str


@dataclass(frozen=True, eq=False)
class Report:
    """A verdict and its evidence.

    `transports`: name -> "safe", "deadlock", "crossed" or "undefined"; empty when the structure is broken. `metrics`,
    `timeline` and `calls` are None where the program is too broken to have any. `remedies`: for each transport that is
    not safe, weakest help first.
    """

    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    transports: Mapping[str, str]
    metrics: Metrics | None = None
    timeline: Timeline | None = field(default=None, repr=False)
    calls: Calls | None = field(default=None, repr=False)
    remedies: tuple[Remedy, ...] = ()
