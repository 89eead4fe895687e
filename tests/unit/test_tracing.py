"""A step as it ran: every rank's computations on one clock."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from pipedsl.profile import read_profile
from pipedsl.runtime.clock import Event
from pipedsl.runtime.timeline import Timeline, clock_offset
from tests.support import compiled
from tests.support.nccl_like import Fabric, run_ranks
from tests.support.worker import mlp
from tests.unit.test_executor import results, train

AHEAD = (0.0, 1000.0, -3.5, 0.25)  # seconds by which the clocks of the ranks are ahead


def test_clocks_are_compared_as_exactly_as_is_said() -> None:
    def body(wire: Any) -> tuple[float, float]:
        return clock_offset(wire, wire.store("clocks"), lambda: time.monotonic() + AHEAD[wire.rank], lambda rank: None)

    for rank, (offset, error) in enumerate(results(run_ranks(Fabric(len(AHEAD)), body))):
        assert abs(offset + AHEAD[rank]) <= error + 1e-9
        assert (error > 0) == (rank > 0)


@pytest.mark.parametrize("trace", [True, False])
def test_every_rank_gets_the_timeline_of_all(trace: bool, tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> list[Timeline]:
        found = []
        for _ in range(2):
            pipe.step(torch.zeros(6).long(), torch.zeros(6).long())
            found.append(pipe.timeline())
        return found

    before = time.time()
    ranks = results(
        train(compiled.SPLIT, mlp(2), None, None, functional.cross_entropy, tmp_path, p=2, m=3, trace=trace, body=body)
    )
    assert [each.ranks for each in ranks[0]] == [each.ranks for each in ranks[1]]
    for timeline in ranks[0]:
        if not trace:
            assert timeline.ranks == ((), ())
            continue
        slack = sum(timeline.errors)
        for rank, events in enumerate(timeline.ranks):
            assert [event.label for event in events] == [f"{kind} s{rank} mb{i}" for kind in "FIW" for i in range(3)]
            times = [moment for event in events for moment in (event.start, event.end)]
            assert times == sorted(times)
            assert before - slack <= times[0] <= times[-1] <= time.time() + slack
        at = {event.label: event for events in timeline.ranks for event in events}
        for i in range(3):
            assert at[f"F s0 mb{i}"].end <= at[f"F s1 mb{i}"].start + slack
            assert at[f"I s1 mb{i}"].end <= at[f"I s0 mb{i}"].start + slack
    if trace:
        first, second = ranks[0]
        assert first.ranks[0][-1].end <= second.ranks[0][0].start


def test_a_rank_that_does_not_call_it_is_named(tmp_path: Path) -> None:
    over = threading.Event()

    def body(pipe: Any, rank: int) -> None:
        pipe.step(torch.zeros(6).long(), torch.zeros(6).long())
        pipe._watch._timeout = 2.0  # nothing but the timeline is to run out of it
        if rank == 0:
            while not pipe._watch._turns.told(pipe._watch._own_store, 1)[0]:  # that its step is over
                time.sleep(0.01)
            try:
                pipe.timeline()
            finally:
                over.set()
        over.wait(60)

    first, second = train(compiled.SPLIT, mlp(2), None, None, functional.cross_entropy, tmp_path, p=2, m=3, body=body)
    assert second.error is None
    said = str(first.error)
    assert (
        "nothing happened for 2 s: rank 0 stood at gathering the timeline of rank 1; what it waits for leads to" in said
    )
    assert "leads to rank 1, which does not answer" in said
    assert "\n  rank 0: gathering the timeline; rank 1: after step 1 (training), when it last said so\n" in said


def test_a_timeline_for_a_viewer() -> None:
    timeline = Timeline(
        ((Event("F s0 mb0", "F", 0, 0, 5.0, 5.25),), (Event("B s1 mb0", "B", 1, 0, 5.5, 6.0),)), (0.0, 0.1)
    )
    common = {"ph": "X", "pid": 0}
    assert json.loads(timeline.chrome_trace()) == [
        {**common, "name": "F s0 mb0", "cat": "F", "tid": 0, "ts": 0.0, "dur": 250_000.0},
        {**common, "name": "B s1 mb0", "cat": "B", "tid": 1, "ts": 500_000.0, "dur": 500_000.0},
    ]
    assert json.loads(Timeline((), ()).chrome_trace()) == []


def test_a_timeline_as_a_profile() -> None:
    """Medians of a stage, over its microbatches; what one stage alone has run is left out."""

    def events(stage: int, kind: str, *milliseconds: int) -> list[Event]:
        return [Event("", kind, stage, i, 5.0, 5.0 + each / 1000) for i, each in enumerate(milliseconds)]

    first = [*events(0, "F", 1, 2, 9), *events(2, "F", 4, 4, 5), *events(0, "B", 7), *events(2, "B", 8)]
    second = [*events(1, "F", 3, 3, 3), *events(1, "I", 6), *events(1, "B", 6)]
    profile = read_profile(Timeline((tuple(first), tuple(second)), (0.0, 0.0)).profile())
    assert profile.costs == {"F": (2, 3, 4), "B": (7, 6, 8)}
    assert read_profile(Timeline((), ()).profile()).costs == {}
