"""Stretches of good orders left open: what comes of it fits and is no worse."""

from __future__ import annotations

import pytest
from problems import uneven

from verify.search import Budget, solve
from verify.search.loosen import loosen
from verify.search.model import fits, run
from verify.search.solve import _Search


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_loosened_orders_fit_and_are_no_worse(seed: int) -> None:
    problem = uneven(seed, 4, 12)
    begin = solve(problem, budget=Budget(0.02), seed=seed)
    search = _Search(problem, Budget(10), seed, None, None, None, None)
    rows = search.model.rows(begin.orders)
    search.take(rows, "start")
    loosen(search, 1)
    assert search.rows is not None
    found = run(search.model, search.rows)
    assert found is not None
    assert fits(search.model, search.rows)
    assert search.low <= found.value == search.value <= int(begin.value / problem.time_unit)
    again = _Search(problem, Budget(10), seed, None, None, None, None)
    again.take(rows, "start")
    loosen(again, 1)
    assert again.rows == search.rows
