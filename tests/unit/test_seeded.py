"""Random numbers by seed, stage and microbatch."""

from __future__ import annotations

import pytest
import torch

from pipedsl.runtime.seeded import cell_seed, seeded


def test_seeds_stay_what_they_are() -> None:
    """`printf '7 2 3' | sha256sum`: a job that goes on under another version must draw the same."""
    assert cell_seed(7, 2, 3) == 0x2EBEFD2F006E1759 >> 1


def test_draws_depend_on_the_cell_and_on_nothing_before() -> None:
    drawn = {}
    for cell in [(s, stage, i) for s in (0, 1, -1) for stage in range(3) for i in range(3)]:
        for _ in range(2):
            torch.rand(3)
            with seeded(*cell):
                found = torch.rand(4)
                assert torch.equal(drawn.setdefault(cell, found), found)
    assert len({tuple(each.tolist()) for each in drawn.values()}) == len(drawn)


def test_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with pytest.raises(ZeroDivisionError), seeded(1, 2, 3), seeded(4, 5, 6):
        raise ZeroDivisionError(torch.rand(7))
    assert torch.equal(torch.rand(2), expected)
