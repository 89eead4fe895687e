"""For how long a rank runs nothing, before and after each of its operations.

A rank that has the most to do has little time to lose. That it has lost so much before an operation says more than when
that starts, which depends on what else has run by then; and what is lost before it and after it adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Lost:
    """By row of the rank: at least for how long it runs nothing until the row starts, and from then until the limit."""

    before: Mapping[int, int]
    after: Mapping[int, int]

    def of(self, row: int, first: bool) -> int:
        return (self.before if first else self.after)[row]

    def more(self, row: int, first: bool, time: int) -> Lost:
        """With what is shown of a row."""
        if first:
            return replace(self, before={**self.before, row: time})
        return replace(self, after={**self.after, row: time})


__all__ = ["Lost"]
