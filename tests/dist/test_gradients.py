"""Every shipped schedule, and some more, trains as one process does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from closed import closed

import pipedsl
from pipedsl.api import parse_text
from tests.support import compiled
from tests.support.launch import launch, succeed
from tests.support.worker import PATIENCE

pytestmark = pytest.mark.dist

WORKER = Path(__file__).parent / "workers" / "gradients.py"
OWN = {
    "one_f_one_b": compiled.ONE_F_ONE_B,
    "split": compiled.SPLIT,
    "v_shape": compiled.V_SHAPE,
    "last_first": compiled.LAST_FIRST,
    "v_shape_reduce": compiled.V_SHAPE_REDUCE,
}


OPEN = "F@down * m || B@down * m || F@up * m || B@up * m"


def two_ways(p: int) -> list[tuple[str, str, int]]:
    """Schedules of two copies that run the pipeline in opposite directions: by hand, and as `search` finds them."""
    cases = [("chimera", compiled.CHIMERA, m) for m in range(1, p // 2 + 1)]
    cases += [("chimera_reduce", compiled.CHIMERA_REDUCE, m) for m in range(1, p // 2 + 1)]
    cases.append(("two_ways_reduce", compiled.TWO_WAYS_REDUCE, 3))
    opened = compiled.TWO_WAYS.replace("F@down * m F@up * m B@down * m B@up * m", OPEN)
    for m in (2, 4):
        found = pipedsl.search(parse_text(opened), {"p": p, "m": m}, budget=5)
        assert found.verdict is pipedsl.Verdict.VERIFIED
        cases += [("two_ways", compiled.TWO_WAYS, m), ("two_ways_split", compiled.TWO_WAYS_SPLIT, m)]
        cases.append(("two_ways_found", found.text, m))
    return cases


@pytest.mark.parametrize("p", [1, 2, 4])
def test_gradients_equal_one_process(p: int, tmp_path: Path) -> None:
    cases = []
    schedules = {**OWN, **{name: name for name in closed()}, **({"nested": compiled.SPLIT} if p > 1 else {})}
    for name, schedule in schedules.items():
        for m in (p, 2 * p, 3 * p + 1):
            path = tmp_path / f"{name}_{m}.py"
            if not compiled.admitted(schedule, p=p, m=m):
                continue
            compiled.compile_to(path, schedule, p=p, m=m)
            # Splitting a backward, or running backwards in another order, may change the last bit.
            split = "\nW 0 " in path.read_text()
            cases.append({"file": str(path), "name": f"{name} p={p} m={m}", "exact": not split})
    if p == 2:  # communication placed by hand, which gloo runs and NCCL does not
        for name, schedule, m in (("sends_first", compiled.SENDS_FIRST, 2), ("mirror_lost", compiled.MIRROR_LOST, 3)):
            path = compiled.compile_to(tmp_path / f"{name}.py", schedule, p=p, m=m)
            cases.append({"file": str(path), "name": name, "exact": True})
            schedules[name] = schedule
    for name, schedule, m in two_ways(p):
        path = compiled.compile_to(tmp_path / f"{name}_{m}.py", schedule, p=p, m=m)
        # Copies add up apart what one process adds up in turn.
        cases.append({"file": str(path), "name": f"{name} p={p} m={m}", "exact": False})
        schedules[name] = schedule
    listing = tmp_path / "cases.json"
    listing.write_text(json.dumps(cases))
    assert {case["name"].split()[0] for case in cases} == set(schedules)
    succeed(launch(WORKER, p, [str(listing)], timeout=PATIENCE + 60))
