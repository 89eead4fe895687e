"""When the computations of a step really ran."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from pipedsl.runtime.plan import PlannedCall

Mark = tuple[PlannedCall, Any, Any]  # a computation, and the moments when it began and ended


class Event(NamedTuple):
    """A computation or REDUCE as it ran, `label` as `F s2 mb3`; `start` and `end` in seconds of this machine's clock.

    A REDUCE, as `REDUCE s2`, has -1 for the microbatch, and has waited for the other copies of its stage.

    Where there are copies of the stages, `label` is `F s2/up mb3`, and `stage` and `microbatch` are those of the copy.
    """

    label: str
    kind: str
    stage: int
    microbatch: int
    start: float
    end: float


class Clock:
    """Takes times without holding up a GPU, whose events are read only afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._zero = 0.0
        self._first: Any = None

    def begin(self) -> None:
        """A step begins."""
        if self._cuda:
            torch.cuda.synchronize()
            self._first = self.now()
        self._zero = time.time()

    def now(self) -> Any:
        """A moment, for `read`."""
        if not self._cuda:
            return time.time()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def events(self, marks: Iterable[Mark], stages: int) -> list[Event]:
        """What was marked, in order. `stages`: of one copy."""
        return [Event(c.label, c.kind, c.stage % stages, c.number, self.read(a), self.read(b)) for c, a, b in marks]

    def read(self, moment: Any) -> float:
        """Seconds of this machine's clock."""
        if not self._cuda:
            return float(moment)
        moment.synchronize()
        return self._zero + float(self._first.elapsed_time(moment)) / 1000
