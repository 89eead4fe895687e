"""Searches of one problem that go about orders or about bounds: what either finds holds for the other."""

from __future__ import annotations

from itertools import product

import pytest
from problems import uneven

from verify.search import Aim, Budget, Solution, solve

TIMES = ((6, 10, 17), (8, 11, 20), (5, 10, 14))
WORK = 5.0  # enough for stretches and for a first limit


@pytest.mark.parametrize("seed", range(3))
def test_each_knows_more_of_what_it_goes_about(seed: int) -> None:
    """Than one that goes about both with as much work; and no bound is above what another found."""
    problem = uneven(seed, 6, 24, TIMES)
    both, orders, bounds = (solve(problem, budget=Budget(WORK), aim=aim) for aim in (Aim.BOTH, Aim.ORDERS, Aim.BOUNDS))
    assert orders.value <= both.value
    assert bounds.bound >= both.bound
    for one, other in product((both, orders, bounds), repeat=2):
        assert one.bound <= other.value


@pytest.mark.parametrize("aim", Aim)
def test_a_small_problem_is_proved_whatever_the_aim(aim: Aim) -> None:
    found: list[Solution] = [solve(uneven(seed, 3, 4, TIMES), budget=Budget(20), aim=aim) for seed in range(3)]
    assert all(each.proof is not None for each in found)
    assert [each.value for each in found] == [
        solve(uneven(seed, 3, 4, TIMES), budget=Budget(20)).value for seed in range(3)
    ]
