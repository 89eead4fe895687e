"""Verdicts against programs that really run: ranks are threads, over the process group that behaves as NCCL."""

import pytest
from nccl_like import DIRECTIONS, EAGER, LAZY, Fabric, run_calls
from random_calls import all_waited, has_batches, random_calls

from pipedsl.calls import Calls
from pipedsl.calls_json import read_calls
from verify import check_calls

PROGRAMS = 400  # of which about half hang
WARM = {"nccl-lazy-warm": LAZY, "nccl-eager-warm": EAGER, "group-per-direction-warm": DIRECTIONS}
COLD = {"nccl-lazy": LAZY, "nccl-eager": EAGER}


def outcome(calls: Calls, mode: str, cold: bool) -> str:
    where, crossed = run_calls(calls, Fabric(calls.ranks, mode, cold=cold))
    return "deadlock" if any(where) else "crossed" if crossed else "safe"


@pytest.mark.timeout(280)
@pytest.mark.parametrize("part", range(2))
def test_warm(part: int) -> None:
    ran = hung = 0
    seed = part * 10_000
    while ran < PROGRAMS // 2:
        seed += 1
        document = random_calls(seed)
        if has_batches(document):
            continue
        document = all_waited(document)
        calls = read_calls(document)
        states = check_calls(calls, tuple(WARM), remedies=0).transports
        for name, mode in WARM.items():
            assert outcome(calls, mode, cold=False) == states[name], (seed, name, document)
        ran += 1
        hung += "deadlock" in states.values()
    assert 0.2 < hung / ran < 0.8


@pytest.mark.timeout(280)
def test_cold() -> None:
    """Waits hold the thread here and not NCCL's host, so they all come last."""
    ran = hung = 0
    seed = 50_000
    while ran < PROGRAMS // 4:
        seed += 1
        document = random_calls(seed)
        if has_batches(document):
            continue
        document = all_waited(document, at_the_end=True)
        calls = read_calls(document)
        states = check_calls(calls, tuple(COLD), remedies=0).transports
        for name, mode in COLD.items():
            assert outcome(calls, mode, cold=True) == states[name], (seed, name, document)
        ran += 1
        hung += "deadlock" in states.values()
    assert 0.2 < hung / ran < 0.8
