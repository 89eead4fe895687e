"""The shipped schedules whose order is fixed; the others are for `pipedsl search`."""

from __future__ import annotations

from pipedsl.api import load
from pipedsl.check import openings
from pipedsl.library import shipped


def closed() -> list[str]:
    return [name for name in shipped() if not openings(load(name))]
