"""The process group that behaves as NCCL does: it hangs where NCCL hangs, and runs what is safe."""

from __future__ import annotations

import pytest
from closed import closed

from tests.support import compiled
from tests.support.nccl_like import DIRECTIONS, EAGER, LAZY, Fabric, run_calls


@pytest.mark.parametrize("mode", [LAZY, EAGER])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("text", "m"), [(compiled.SENDS_FIRST, 2), (compiled.MIRROR_LOST, 3)])
def test_hangs_as_nccl_does(text: str, m: int, mode: str, cold: bool) -> None:
    _, _, calls = compiled.build(text, p=2, m=m)
    where, crossed = run_calls(calls, Fabric(2, mode, cold=cold))
    assert all(where), where
    assert not crossed


@pytest.mark.parametrize(("text", "m"), [(compiled.SENDS_FIRST, 2), (compiled.MIRROR_LOST, 3)])
def test_one_stream_for_both_directions_is_their_only_fault(text: str, m: int) -> None:
    _, _, calls = compiled.build(text, p=2, m=m)
    where, crossed = run_calls(calls, Fabric(2, DIRECTIONS, cold=False))
    assert not any(where), where
    assert not crossed


@pytest.mark.parametrize("mode", [LAZY, EAGER])
@pytest.mark.parametrize("cold", [False, True])
def test_runs_what_is_lowered_by_the_safe_recipe(mode: str, cold: bool) -> None:
    schedules = [compiled.ONE_F_ONE_B, compiled.SPLIT, compiled.V_SHAPE, compiled.LAST_FIRST, *closed()]
    for schedule in schedules:
        for p, m in ((2, 2), (2, 5), (3, 6), (4, 4), (4, 8)):
            if not compiled.admitted(schedule, p=p, m=m):
                continue
            _, _, calls = compiled.build(schedule, p=p, m=m)
            where, crossed = run_calls(calls, Fabric(p, mode, cold=cold))
            assert not any(where), (schedule, p, m, where)
            assert not crossed


def test_a_crossing_delivers_the_wrong_tensor_silently() -> None:
    text = """schedule crossing(p, m)
    stages 2
    place s -> s
    rank r where r == 0 { F SEND_F F SEND_F  RECV_B[1] RECV_B[0] B[0] B[1] }
    rank r where r == 1 { RECV_F RECV_F F F B SEND_B B SEND_B }
    """
    _, _, calls = compiled.build(text, p=2, m=2)
    where, crossed = run_calls(calls, Fabric(2, LAZY, cold=False))
    assert not any(where)
    assert sorted(crossed) == ["B0@0 arrived as B1@0", "B1@0 arrived as B0@0"]
