"""Limits that are refuted a part of the windows at a time, and lowered on the way: no bound is above the optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from problems import uneven

from verify.search import Budget, lower_bound, refute, solve
from verify.search.problem import Problem
from verify.search.refute import _sweeps, _Turn
from verify.search.shave import Shaving
from verify.search.solve import _Search
from verify.search.spacing import Spacing

TIMES = ((6, 10, 17), (8, 11, 20), (5, 10, 14))


def settled(problem: Problem) -> tuple[_Search, int]:
    """A search that has the best orders, and no bound but the first."""
    best = solve(problem, budget=Budget(20))
    assert best.proof is not None
    search = _Search(problem, Budget(40), 0, None, None, None, None)
    search.take(search.model.rows(best.orders), "start")
    return search, search.value


def test_limits_end_below_the_optimum_however_little_the_work() -> None:
    """And some are the optimum."""
    reached = 0
    for seed, work in product(range(6), (0.002, 0.02, 0.3)):
        search, least = settled(uneven(seed, 3, 4, TIMES))
        shown: dict[int, Spacing] = {}
        for _ in range(12):
            if not search.done:
                refute.refute(search, Spacing(), shown, search.work + work)
            assert search.low <= least
        reached += lower_bound(search.model).value < search.low == least
    assert reached > 1


def test_a_limit_left_open_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a problem too large for a turn; and what is shown of it holds for orders that were found otherwise."""
    problem = uneven(4, 6, 16, TIMES)
    search = _Search(problem, Budget(40), 0, None, None, None, None)
    search.take(search.model.rows(solve(problem, budget=Budget(0.2)).orders), "start")
    shown: dict[int, Spacing] = {}
    refute.refute(search, Spacing(), shown, search.work + 0.2)
    left = [limit for limit in shown if limit >= search.low]
    assert left
    assert all(search.low <= limit < search.value for limit in left)
    limits, made = list[int](), list[Shaving]()

    class Noticed(Shaving):
        def __init__(self, standing: _Search, spacing: Spacing, limit: int) -> None:
            limits.append(limit)
            made.append(self)
            super().__init__(standing, spacing, limit)

        def lower(self, limit: int) -> None:
            limits.append(limit)
            assert limit < self.limit
            super().lower(limit)
            assert self.low <= search.low  # and no window is wider than the limit leaves it

    monkeypatch.setattr(refute, "Shaving", Noticed)
    low = search.low
    refute.refute(search, Spacing(), shown, search.work + 0.2)
    assert limits[0] == min(left)
    assert max(each.low for each in made) <= search.low
    assert low <= search.low <= search.value


def test_a_limit_with_too_little_work_left_is_lowered_until_it_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum cannot be; what is below it is, though the work is only enough for that."""
    made: list[Shaving] = []

    class Noticed(Shaving):
        def __init__(self, standing: _Search, spacing: Spacing, limit: int) -> None:
            made.append(self)
            super().__init__(standing, spacing, limit)

    monkeypatch.setattr(refute, "Shaving", Noticed)
    search, least = settled(uneven(4, 6, 16, TIMES))
    search.value = least + 40
    refutation = refute._Refutation(search, _Turn(search, search.work + 0.5), Spacing(), {}, least + 30)
    held = refutation.holds()
    assert held == (search.low == refutation.limit + 1)
    assert made[0].limit == refutation.limit < least + 30
    assert refutation.limit in refutation.shown or held
    assert search.low <= least


def test_what_is_shown_of_a_limit_is_used_for_it_and_for_lower_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Spacing, int]] = []

    class Noticed(Shaving):
        def __init__(self, standing: _Search, spacing: Spacing, limit: int) -> None:
            made.append((spacing, limit))
            super().__init__(standing, spacing, limit)

    search, least = settled(uneven(3, 3, 4, TIMES))
    monkeypatch.setattr(refute, "Shaving", Noticed)
    high, low = (Spacing(starts=((0, 0), (row, 1)), ends=((row, 2),)) for row in (1, 2))
    few = Spacing(apart=((1, 1),))
    for limit, expected in ((least - 1, low), (least, high), (least + 1, Spacing())):
        made.clear()
        search.value = limit + 1
        search.low = min(search.low, limit)
        refute._Refutation(search, _Turn(search, search.work + 0.01), few, {least: high, least - 1: low}, limit).holds()
        assert made[0] == (replace(few, starts=expected.starts, ends=expected.ends), limit)


def test_more_and_more_microbatches_a_question() -> None:
    """Those at the end it begins from are not asked about again, until the most are."""
    sweeps = _sweeps([2, 4, 7], False)
    assert [next(sweeps) for _ in range(9)] == [
        *((2, True, 0), (2, False, 0), (4, True, 2), (4, False, 2), (7, True, 4), (7, False, 4)),
        *((7, True, 0), (7, False, 0), (7, True, 0)),
    ]
    again = _sweeps([2, 4, 7], True)
    assert [next(again) for _ in range(4)] == [(4, True, 0), (4, False, 0), (7, True, 4), (7, False, 4)]
    alone = _sweeps([3], True)
    assert [next(alone) for _ in range(3)] == [(3, True, 0), (3, False, 0), (3, True, 0)]


def test_what_was_asked_about_is_left_out() -> None:
    search, least = settled(uneven(3, 3, 5, TIMES))
    cut: list[tuple[int, int, bool]] = []

    class Noticed(Shaving):
        def _cut(self, few: object, row: int, first: int, early: bool, more: object) -> None:
            cut.append((self.standing.model.operations[row].microbatch, first, early))

    shaving = Noticed(search, Spacing(), least)
    for early, asked, microbatches in product((True, False), (0, 2), (1, 2, 3, 4)):
        cut.clear()
        shaving.sweep(microbatches, early, lambda: True, asked)
        seen = [each for each, _, _ in cut]
        assert seen == (list(range(asked, 5)) if early else list(range(5 - asked))[::-1])
        for each, first, side in cut:
            assert side is early
            assert 0 <= first <= each < first + microbatches <= 5
            # As much before it, or behind it, as a question has, but for one.
            known = each - first if early else first + microbatches - 1 - each
            assert known >= min(each if early else 4 - each, microbatches - 2)


def test_a_turn_ends_by_work_or_by_the_clock() -> None:
    search, _ = settled(uneven(3, 3, 4, TIMES))
    turn = _Turn(search, search.work + 8)
    assert turn.rest == 1
    search.work += 6
    assert turn.rest == pytest.approx(1 / 4)
    assert turn.more(0.2)
    assert not turn.more(0.3)
    search.work += 3
    assert turn.rest == 0
    assert not turn.more()
    search.work -= 9
    search.stop = 0.0  # long ago
    assert turn.rest == 0
    assert not turn.more()
