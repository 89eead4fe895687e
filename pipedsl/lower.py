"""Program to Calls: where each message is sent, received and waited for."""

from __future__ import annotations

from pipedsl.calls import Calls
from pipedsl.program import Program
from pipedsl.simulate import Timeline


def lower(program: Program, timeline: Timeline) -> Calls:
    """The calls of a complete program, by the safe recipe; as written where it places communication itself."""
    raise NotImplementedError
