"""What every rank did when: one step as it really ran, on one clock; and names for torch's profiler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from pipedsl.runtime.clock import Event
from pipedsl.runtime.files import write_whole
from pipedsl.runtime.plan import PlannedCall
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import Store, Wire

_EXCHANGES = 8  # looks at another rank's clock, of which the quickest counts
_AT_ONCE = 100  # looks for an answer before there is a pause between two
_PAUSE = 0.001  # seconds of that pause


@dataclass(frozen=True)
class Timeline:
    """A step's computations by rank, each rank's in order, in seconds of rank 0's clock.

    `errors`: by how much the times of each rank may be off at most, in seconds: half of the quickest exchange with it.
    """

    ranks: tuple[tuple[Event, ...], ...]
    errors: tuple[float, ...]

    def chrome_trace(self) -> str:
        """The same as JSON for Perfetto or chrome://tracing: a line per rank, times in microseconds."""
        begin = min((event.start for events in self.ranks for event in events), default=0.0)
        return json.dumps(
            [
                {
                    "name": event.label,
                    "cat": event.kind,
                    "ph": "X",
                    "pid": 0,
                    "tid": rank,
                    "ts": (event.start - begin) * 1e6,
                    "dur": (event.end - event.start) * 1e6,
                }
                for rank, events in enumerate(self.ranks)
                for event in events
            ]
        )

    def profile(self) -> str:
        """The same as a profile for `pipedsl verify --profile`: each stage's median durations, in milliseconds.

        Of a REDUCE the shortest, as on the rank that came last and waited for nobody. Kinds that not every stage has
        run are left out.
        """
        found: dict[str, dict[int, list[float]]] = {}
        for event in (event for events in self.ranks for event in events):
            found.setdefault(event.kind, {}).setdefault(event.stage, []).append(event.end - event.start)
        stages = range(max((len(by_stage) for by_stage in found.values()), default=0))
        costs = {
            kind: [f"{1000 * (min if kind == 'REDUCE' else median)(by_stage[s]):.4f}" for s in stages]
            for kind, by_stage in sorted(found.items())
            if by_stage.keys() == set(stages)
        }
        return json.dumps({"format": "pipedsl-profile", "version": 1, "about": "as measured", "costs": costs}, indent=2)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace()` to a file, whole or not at all. OSError, which names the file, as from a full disk."""
        write_whole(path, self.chrome_trace())

    def save_profile(self, path: str | os.PathLike[str]) -> None:
        """Write `profile()` to a file, as `save_trace`."""
        write_whole(path, self.profile())


def gather_timeline(wire: Wire, store: Store, events: Sequence[Event], watch: Watch) -> Timeline:
    """The events of all ranks; every rank must call it. `store`: used for nothing else, and empty again afterwards."""

    def wait_for(rank: int) -> None:
        if watch.position.peer != rank:
            watch.position.note(f"gathering the timeline of rank {rank}", rank)
        watch.stop_if_failed()

    offset, error = clock_offset(wire, store, time.time, wait_for)
    own = [each._replace(start=each.start + offset, end=each.end + offset) for each in events]
    store.set(f"events/{wire.rank}", json.dumps([error, own]))
    ranks, errors = [], []
    for rank in range(wire.size):
        error, rows = json.loads(_answer(store, f"events/{rank}", rank, wait_for))
        ranks.append(tuple(Event(*row) for row in rows))
        errors.append(error)
    if store.add("read", 1) == wire.size:
        for rank in range(wire.size):
            store.delete_key(f"events/{rank}")
        store.delete_key("read")
    return Timeline(tuple(ranks), tuple(errors))


def clock_offset(
    wire: Wire, store: Store, now: Callable[[], float], wait_for: Callable[[int], None]
) -> tuple[float, float]:
    """What to add to this rank's `now()` for rank 0's, and by how much that may be wrong; every rank must call it.

    Rank 0 looked at its clock between two looks of this rank at its own, so the truth is not further from the middle
    than half of what lay between them. `wait_for` is called with a rank while that is waited for, and may raise.
    """
    if wire.rank == 0:
        for rank in range(1, wire.size):
            for turn in range(_EXCHANGES):
                _answer(store, f"ask/{rank}/{turn}", rank, wait_for)
                store.set(f"answer/{rank}/{turn}", repr(now()))
                store.delete_key(f"ask/{rank}/{turn}")
        return 0.0, 0.0
    found = []
    for turn in range(_EXCHANGES):
        before = now()
        store.set(f"ask/{wire.rank}/{turn}", "?")
        answer = float(_answer(store, f"answer/{wire.rank}/{turn}", 0, wait_for))
        after = now()
        store.delete_key(f"answer/{wire.rank}/{turn}")
        found.append(((after - before) / 2, answer - (before + after) / 2))
    error, offset = min(found)
    return offset, error


def _answer(store: Store, key: str, rank: int, wait_for: Callable[[int], None]) -> bytes:
    """What a rank has set, or is about to. The store stays free for the watch, which a blocking `get` locks out.

    Answers come soon where both ranks are here, so the first looks follow one another at once.
    """
    looks = 0
    while not store.check([key]):
        wait_for(rank)
        looks += 1
        if looks > _AT_ONCE:
            time.sleep(_PAUSE)
    value: bytes = store.get(key)
    return value


def labelled(call: PlannedCall, act: Callable[[], None]) -> Callable[[], None]:
    """`act` under its label in torch's profiler."""
    name = call.label

    def run() -> None:
        with torch.profiler.record_function(name):
            act()

    return run
