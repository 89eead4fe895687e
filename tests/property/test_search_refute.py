"""Limits that are refuted a part of the windows at a time, and lowered on the way: no bound is above the optimum."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from every_order import all_there_are, holds_for
from problems import EQUAL, linear, uneven

from pipedsl.program import Costs
from verify.search import Budget, lower_bound, make_problem, model_of, refute, shave, solve
from verify.search.engines import MOST_OPERATIONS
from verify.search.exact import Decision
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible, Problem
from verify.search.refute import _sweeps
from verify.search.shave import Shaving
from verify.search.solve import PACE, Aim, _Search
from verify.search.standing import Standing, Turn, ask

BEGIN = Aim.BOTH.value.begin
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
        shown: dict[int, Narrowed] = {}
        for _ in range(12):
            if not search.done:
                refute.refute(search, shown, part_of(search, work), BEGIN)
            assert search.low <= least
        reached += lower_bound(search.model).value < search.low == least
    assert reached > 1


def test_a_limit_left_open_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a problem too large for a turn; and what is shown of it holds for orders that were found otherwise."""
    problem = uneven(4, 6, 16, TIMES)
    search = _Search(problem, Budget(40), 0, None, None, None, None)
    search.take(search.model.rows(solve(problem, budget=Budget(0.2)).orders), "start")
    shown: dict[int, Narrowed] = {}
    refute.refute(search, shown, part_of(search, 0.2), 0.95)
    left = [limit for limit in shown if limit >= search.low]
    assert left
    assert all(search.low <= limit < search.value for limit in left)
    limits, made = list[int](), list[Shaving]()

    class Noticed(Shaving):
        def __init__(self, standing: _Search, narrowed: Narrowed, limit: int) -> None:
            limits.append(limit)
            super().__init__(standing, narrowed, limit)
            made.append(self)

        def lower(self, limit: int) -> None:
            limits.append(limit)
            assert limit < self.limit
            super().lower(limit)
            assert self.low <= search.low  # and no window is wider than the limit leaves it

    monkeypatch.setattr(refute, "Shaving", Noticed)
    low = search.low
    refute.refute(search, shown, part_of(search, 0.2), BEGIN)
    assert limits[0] == min(left)
    assert max(each.low for each in made) <= search.low
    assert low <= search.low <= search.value


def test_a_limit_with_too_little_work_left_is_lowered_until_it_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimum cannot be; what is below it is, though the work is only enough for that."""
    made: list[Shaving] = []

    class Noticed(Shaving):
        def __init__(self, standing: _Search, narrowed: Narrowed, limit: int) -> None:
            made.append(self)
            super().__init__(standing, narrowed, limit)

    monkeypatch.setattr(refute, "Shaving", Noticed)
    search, least = settled(uneven(4, 6, 16, TIMES))
    search.value = least + 40
    refutation = refute._Refutation(search, Turn(search, part_of(search, 0.5)), {}, least + 30)
    held = refutation.holds()
    assert held == (search.low == refutation.limit + 1)
    assert made[0].limit == refutation.limit < least + 30
    assert refutation.limit in refutation.shown or held
    assert search.low <= least


def test_what_is_shown_of_a_limit_is_used_for_it_and_for_lower_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Narrowed, int]] = []

    class Noticed(Shaving):
        def __init__(self, standing: _Search, narrowed: Narrowed, limit: int) -> None:
            made.append((narrowed, limit))
            super().__init__(standing, narrowed, limit)

    search, least = settled(uneven(3, 3, 4, TIMES))
    monkeypatch.setattr(refute, "Shaving", Noticed)
    high, low = (Narrowed(starts=((0, 0), (row, 1)), ends=((row, 2),)) for row in (1, 2))
    for limit, expected in ((least - 1, low), (least, high), (least + 1, Narrowed())):
        made.clear()
        search.value = limit + 1
        search.low = min(search.low, limit)
        refute._Refutation(search, Turn(search, part_of(search, 0.01)), {least: high, least - 1: low}, limit).holds()
        assert made[0] == (expected, limit)


def part_of(search: Standing, work: float) -> float:
    """Of what is left."""
    return min(1.0, work / search.left) if search.left else 1.0


@pytest.mark.parametrize("seed", range(4))
def test_what_is_shown_of_a_limit_holds_for_every_order_within_it(seed: int) -> None:
    """Also where the limit was lowered since, and what is shown of the lower one says more."""
    problem = uneven(seed, 2, 3, TIMES)
    model, runs = model_of(problem), all_there_are(problem)
    least = min(ran.value for ran in runs)
    search = _Search(problem, Budget(40), 0, None, None, None, None)
    search.rows, search.value = [[], []], max(ran.value for ran in runs) + 1  # as if no good order were found
    shown: dict[int, Narrowed] = {}
    for work in (0.01, 0.1, 0.5):
        refute.refute(search, shown, part_of(search, work), BEGIN)
        assert search.low <= least
    assert len(shown) > 1
    for limit, narrowed in shown.items():
        assert all(holds_for(model, ran, narrowed, limit) for ran in runs if ran.value <= limit)


def test_the_ends_refute_limits_below_the_optimum_alone() -> None:
    """Up to the one that windows are known of; and some are refuted."""
    raised = 0
    for seed, early, above in product(range(8), (True, False), (-1, 20)):
        search, least = settled(uneven(seed, 3, 4, TIMES))
        low, limit = search.low, least + above
        if low > limit:
            continue
        refutation = refute._Refutation(search, Turn(search, part_of(search, 20)), {limit: NOTHING}, limit)
        try:
            refutation._ask_end(3, early)
            assert search.low <= limit
        except Infeasible:
            assert search.low == limit + 1
        assert low <= search.low <= least
        raised += search.low > low
    assert raised


def test_a_goal_that_is_refuted_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no higher limit is asked about."""
    limits: list[int] = []

    class Noticed(Shaving):
        def __init__(self, standing: _Search, narrowed: Narrowed, limit: int) -> None:
            limits.append(limit)
            super().__init__(standing, narrowed, limit)

    monkeypatch.setattr(refute, "Shaving", Noticed)
    refuted = 0
    for seed in range(8):
        search, least = settled(uneven(seed, 3, 4, TIMES))
        if search.low < least:
            limits.clear()
            search.goal, search.value = search.low, least + 30
            refute.refute(search, {}, part_of(search, 20), BEGIN)
            assert max(limits) == search.goal
            refuted += search.low > search.goal
    assert refuted


def test_a_clock_that_runs_out_at_once_ends_a_turn() -> None:
    search, _ = settled(uneven(3, 3, 4, TIMES))
    search.stop = 0.0
    assert not Turn(search, part_of(search, 1)).more()


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

    shaving = Noticed(search, Narrowed(), least)
    for early, asked, microbatches in product((True, False), (0, 2), (1, 2, 3, 4)):
        cut.clear()
        shaving.sweep(microbatches, early, lambda: True, asked)
        seen = [each for each, _, _ in cut]
        assert seen[::2] == seen[1::2] == (list(range(asked, 5)) if early else list(range(5 - asked))[::-1])
        for each, first, side in cut:
            assert side is early
            assert 0 <= first <= each < first + microbatches <= 5
            # As much before it, or behind it, as a question has, but for one.
            known = each - first if early else first + microbatches - 1 - each
            assert known >= min(each if early else 4 - each, microbatches - 2)


def test_a_turn_ends_by_work_or_by_the_clock() -> None:
    search, _ = settled(uneven(3, 3, 4, TIMES))
    turn = Turn(search, part_of(search, 8))
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


def test_more_is_shown_than_by_chains() -> None:
    """Both engines agree by themselves that the optimum of these is 93.4."""
    speed = [Fraction(value, 10) for value in (12, 10, 10, 11, 9, 10, 10, 14)]
    costs = Costs(tuple(speed), tuple(2 * v for v in speed), tuple(speed), tuple(speed), (Fraction(1, 10),) * 8)
    problem = make_problem(placement=range(8), microbatches=16, costs=costs, cap=4)
    search = _Search(problem, Budget(8), 0, None, None, None, None)
    search.take(search.model.rows(solve(problem, budget=Budget(0.1)).orders), "start")
    refute.refute(search, {}, part_of(search, 5), BEGIN)
    assert lower_bound(search.model).value < search.low <= 934


def test_what_is_too_large_for_one_question_is_bounded_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noticed(standing: Standing, model: Model, *rest: Any, **options: Any) -> Decision:
        asked.append(len(model))
        return ask(standing, model, *rest, **options)

    monkeypatch.setitem(MOST_OPERATIONS, "z3", 450)
    monkeypatch.setattr(shave, "ask", noticed)
    problem = linear(4, 40, {"F": "1", "I": "1.3", "W": "0.7", "send": "0.1"}, 2)
    whole, found = lower_bound(model_of(problem)).value, solve(problem, budget=Budget(20))
    assert whole * problem.time_unit < found.bound <= found.value
    assert found.argument == "refutation by z3"
    assert 0 < max(asked) <= 450


def test_shares_are_of_what_the_clock_leaves() -> None:
    """Else a turn that is a part of the work may take all of the time, and what comes after it has none."""
    problem = linear(4, 40, EQUAL, 3)
    search = _Search(problem, Budget(1000, 5), 0, None, None, None, None)
    assert 0 < search.left <= 5 * PACE
    assert _Search(problem, Budget(1000), 0, None, None, None, None).left == 1000
