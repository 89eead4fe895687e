"""What the executor makes of a plan's calls, and how it knows for how long it has stood at one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from pipedsl.runtime import position as position_module
from pipedsl.runtime.plan import Plan, merge_backwards, read_calls, split_backwards


def planned(text: str) -> Plan:
    return Plan("x", "x.sched", {}, "", {}, ranks=1, stages=2, microbatches=3, placement=[0, 0], calls=[text])


TEXT = """F 0 0 5
F 0 1 5
I 0 0 6
W 0 0 6
I 0 1 6
isend B1@0 1 6
W 0 1 7
I 1 0 8
W 0 2 8
"""


def test_neighbours_become_one_backward() -> None:
    """Not where a message leaves between them, which would have to wait for W, nor those of others."""
    calls = read_calls(planned(TEXT), 0)
    merged = merge_backwards(calls)
    assert [f"{call.kind}{call.microbatch}@{call.stage}:{call.line}" for call in merged] == [
        "F0@0:5",
        "F1@0:5",
        "B0@0:6",
        "I1@0:6",
        "isend1@0:6",
        "W1@0:7",
        "I0@1:8",
        "W2@0:8",
    ]
    assert Counter(call.kind for call in calls)["I"] == 3
    assert split_backwards(merged, 0) == {1}
    assert split_backwards(merged, 1) == {0}


def test_how_long_a_rank_has_stood_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(position_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    first, second, *_ = read_calls(planned(TEXT), 0)
    position = position_module.Position("x.sched")
    seen = []
    for at, step, moment in ((first, 1, 101), (first, 1, 103), (second, 1, 104), (second, 1, 105), (second, 2, 109)):
        if step != position.steps:
            position.begin("beginning a step", step=True)
        position.at, now[0] = at, float(moment)
        seen.append(position.report()["seconds"])
    assert seen == [0.0, 2.0, 0.0, 1.0, 0.0]  # the same call in another step is another place
    assert position.report()["where"] == "F of stage 0, microbatch 1 (x.sched:5)"
    position.note("summing up", 3)
    assert (position.peer, position.communicating, position.report()["seconds"]) == (3, True, 0.0)
