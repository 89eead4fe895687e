"""The shipped schedules whose order is fixed, of one copy of the stages: what can be compiled."""

from __future__ import annotations

from pipedsl.api import load
from pipedsl.check import openings
from pipedsl.library import shipped
from pipedsl.replicas import replicas_of


def closed() -> list[str]:
    return [name for name in shipped() if not openings(load(name)) and not replicas_of(load(name))]
