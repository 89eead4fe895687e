"""Where a rank stands; and, for a post-mortem, where it has stood lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from pipedsl.runtime.plan import COMPUTE_KINDS, PlannedCall

_OUTSIDE = "outside of step()"
_RECENT = 128  # calls that a rank remembers

Report = dict[str, Any]


class Position:
    """Where this rank stands. Before every call the main thread writes `at`, and nothing else, as calls are many.

    How long it has stood there the watch's thread finds out by looking.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._noted_peer = -1
        self._noted_among: Collection[int] = ()
        self.replicas: Mapping[int, Collection[int]] = {}  # of each stage here, by their numbers in the whole job
        self._seen: tuple[PlannedCall | str, int] | None = None
        self._since = time.monotonic()
        self.at: PlannedCall | str = _OUTSIDE
        self.steps = 0
        self._turns = 0  # steps, and what else ranks do together

    def begin(self, text: str, *, step: bool, among: Collection[int] = ()) -> None:
        """A step begins, or something else that ranks do together."""
        self.steps += step
        self._turns += 1
        self.note(text, among=among)

    def note(self, text: str, peer: int = -1, among: Collection[int] = ()) -> None:
        """`among`: where this one exchanges something with several ranks at once, their numbers in the whole job."""
        self._noted_peer = peer
        self._noted_among = among
        self.at = text

    def leave(self) -> None:
        """What began has ended."""
        self.note(_OUTSIDE)

    @property
    def peer(self) -> int:
        """The rank that this one exchanges something with, or -1."""
        at = self.at
        return self._noted_peer if isinstance(at, str) else at.peer

    @property
    def among(self) -> Collection[int]:
        """The ranks that this one exchanges something with at once, by their numbers in the whole job."""
        return self._noted_among if isinstance(self.at, str) else ()

    @property
    def communicating(self) -> bool:
        """True where another rank can be what holds this one up."""
        at = self.at
        return self.peer >= 0 and (isinstance(at, str) or at.kind not in COMPUTE_KINDS)

    def report(self) -> Report:
        at, turns = self.at, self._turns
        if self._seen is None or self._seen[0] is not at or self._seen[1] != turns:
            self._seen, self._since = (at, turns), time.monotonic()
        return {
            "where": self.text(at),
            "peer": self.peer,
            "among": list(self.among),
            "replicas": self._replicas_at(at),
            "seconds": round(time.monotonic() - self._since, 1),
        }

    def _replicas_at(self, at: PlannedCall | str) -> list[int]:
        """Those that the module may exchange something with by itself, as where it computes under FSDP2."""
        return [] if isinstance(at, str) or at.kind not in COMPUTE_KINDS else list(self.replicas.get(at.stage, ()))

    def text(self, at: PlannedCall | str) -> str:
        return at if isinstance(at, str) else at.describe(self._source)


class RecordedPosition(Position):
    """A position that remembers the last calls, with the times when they began."""

    def __init__(self, source: str) -> None:
        self._recent: deque[tuple[float, PlannedCall | str]] = deque(maxlen=_RECENT)
        super().__init__(source)

    @property
    def at(self) -> PlannedCall | str:
        return self._recent[-1][1]

    @at.setter
    def at(self, value: PlannedCall | str) -> None:
        self._recent.append((time.time(), value))

    def recent(self) -> list[tuple[float, PlannedCall | str]]:
        """The last calls, in order, in seconds since 1970; the last is the one that it stands at."""
        return list(self._recent.copy())
