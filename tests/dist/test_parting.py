"""Ranks that do different things are told so, long before they have waited for `timeout` seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.launch import launch

WORKER = Path(__file__).parent / "workers" / "parting.py"
RANKS = 3

# By what rank 1 does: what the others say that it and they did in the same turn.
SAYS = {
    "evaluates": "step 3 (training) on rank {other}, but step 3 (evaluating) on rank 1",
    "skips_an_evaluation": "step 2 (evaluating) on rank {other}, but step 2 (training) on rank 1",
    "trains_once_more": "step 2 (evaluating) on rank {other}, but step 2 (training) on rank 1",
    "renews": "step 2 (training) on rank {other}, but step 2 (training, after renew_shapes()) on rank 1",
    "draws": "step 2 (training, seed 7) on rank {other}, but step 2 (training) on rank 1",
    "clips": "step 2 (training) on rank {other}, but clipping the gradients on rank 1",
    "loads": "step 2 (training) on rank {other}, but step 2 (training, after load_state_dict()) on rank 1",
    "looks_back": "step 2 (training) on rank {other}, but gathering the timeline on rank 1",
    "steps_on": "gathering the timeline on rank {other}, but step 2 (training) on rank 1",
}


@pytest.mark.dist
def test_ranks_that_part_say_where(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=RANKS, m=4)
    for outcome in launch(WORKER, RANKS, [str(path), *SAYS, "renews_twice"], timeout=400):
        assert outcome.returncode == 0, outcome.output
        _, *answers = outcome.output.split("CASE ")
        said = dict(answer.split("\n", 1) for answer in answers)
        assert said.pop("renews_twice") == "nothing happened\n"
        assert said.keys() == SAYS.keys()
        for way, text in said.items():
            first, _, rest = text.partition("\n")
            expected = [turn(SAYS[way], other) for other in (0, 2)]
            assert any(f"the ranks do different things: {each}; rank " in first for each in expected), text
            assert "\n  rank 1 was at " in f"\n{rest}", text


def turn(says: str, other: int) -> str:
    """The same with the lower rank first."""
    text = says.format(other=other)
    return text if other < 1 else ", but ".join(reversed(text.split(", but ")))
