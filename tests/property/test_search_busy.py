"""Windows by what ranks run before and after: every order within the limit stays inside, and they say all they can.

Held against every order of small problems, and against the same figures from all sets of what comes before.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations

import pytest
from every_order import all_there_are, latest_starts
from problems import uneven

from pipedsl.program import Costs
from verify.search import Budget, make_problem, model_of, solve
from verify.search.busy import busy_ranks, later_starts, sooner_starts
from verify.search.windows import Window, narrow

TIMES = ((6, 10, 17), (8, 11, 20), (5, 10, 14))


@pytest.mark.parametrize(
    ("seed", "p", "m"), [*((seed, 2, 3) for seed in range(8)), *((seed, 3, 2) for seed in range(8))]
)
def test_no_order_within_the_limit_is_outside(seed: int, p: int, m: int) -> None:
    problem = uneven(seed, p, m, TIMES)
    model = model_of(problem)
    runs = all_there_are(problem)
    least = min(ran.value for ran in runs)
    for limit in (least, least + 3, least + 11):
        window = narrow(model, limit)
        within = [ran for ran in runs if ran.value <= limit]
        lates = [latest_starts(model, ran, limit) for ran in within]
        for r in range(p):
            assert all(ran.start[row] >= time for row, time in later_starts(window, r) for ran in within)
            assert all(late[row] <= time for row, time in sooner_starts(window, r) for late in lates)


def closure(window: Window, r: int) -> set[tuple[int, int]]:
    """(x, y) of a rank: x before y, by way of the rank's own operations."""
    model = window.model
    found = {(x, y) for y, items in enumerate(window.before) for x, _ in items if model.rank[x] == r == model.rank[y]}
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


@pytest.mark.parametrize("seed", range(12))
def test_as_all_sets_say(seed: int) -> None:
    """The latest of all sets of what comes before: the earliest start among it, and all its work."""
    problem = uneven(seed, 3, 3, TIMES)
    model = model_of(problem)
    limit = int(solve(problem, budget=Budget(5)).value / problem.time_unit) + seed % 3
    window, said = narrow(model, limit), 0
    for r in range(3):
        before = closure(window, r)
        starts, ends = dict(later_starts(window, r)), dict(sooner_starts(window, r))
        for row in (row for row in range(len(model)) if model.rank[row] == r):
            ahead, behind = ([x for x, y in before if y == row], [y for x, y in before if x == row])
            sets = chain.from_iterable(combinations(ahead, n) for n in range(1, len(ahead) + 1))
            least = max(
                (min(window.earliest[x] for x in each) + sum(model.duration[x] for x in each) for each in sets),
                default=0,
            )
            assert starts.get(row, window.earliest[row]) == max(least, window.earliest[row])
            sets = chain.from_iterable(combinations(behind, n) for n in range(1, len(behind) + 1))
            most = (
                min(
                    (
                        max(window.latest[x] + model.duration[x] for x in each) - sum(model.duration[x] for x in each)
                        for each in sets
                    ),
                    default=window.latest[row] + model.duration[row],
                )
                - model.duration[row]
            )
            assert ends.get(row, window.latest[row]) == min(most, window.latest[row])
            said += (row in starts) + (row in ends)
    assert said or seed


def test_those_with_the_most_to_do() -> None:
    time = tuple(map(Fraction, (10, 9, 8, 10)))
    costs = Costs(time, tuple(2 * each for each in time), time, time, (Fraction(0),) * 4)
    assert busy_ranks(model_of(make_problem(placement=range(4), microbatches=3, costs=costs))) == [0, 1, 3]
