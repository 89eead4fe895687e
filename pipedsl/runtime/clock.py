"""When the computations of a step really ran."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch


class Event(NamedTuple):
    """A computation as it ran, `label` as `F3@2`; `start` and `end` in seconds of this machine's clock."""

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

    def read(self, moment: Any) -> float:
        """Seconds of this machine's clock."""
        if not self._cuda:
            return float(moment)
        moment.synchronize()
        return self._zero + float(self._first.elapsed_time(moment)) / 1000
