"""Orders that may run a part more often: the longer ones are judged, for as many microbatches as one likes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from problems import EQUAL, linear, random_problem, vee

from verify.search import Budget, Infeasible, NothingFound, Operation, judge, solve
from verify.search.repeat import Repeat, repeat_of, repeating

pytest.importorskip("z3")


def check(found: Repeat) -> None:
    """The longer orders end, fit, run every operation once, and are the old ones but for the part."""
    problem = found.problem
    for rounds in (1, 2, 7):
        longer, orders = found.longer(rounds)
        assert longer.microbatches == problem.microbatches + rounds * found.period
        judgement = judge(longer, orders)  # raises where anything is wrong
        assert all(
            cap is None or held <= cap * problem.size_unit
            for held, cap in zip(judgement.memory, problem.cap, strict=True)
        )
    for order, first, length, rounds in zip(found.orders, found.first, found.length, found.rounds, strict=True):
        names = [operation[:2] for operation in order]
        part = names[first : first + length]
        assert names[first : first + rounds * length] == part * rounds
        assert rounds >= 1 or not length
        assert all(part.count(name) == found.period for name in part)


@pytest.mark.parametrize(
    ("p", "m", "cap", "best"), [(3, 6, 3, 20), (4, 8, 1, 72), (4, 8, 2, 41), (4, 8, 3, 31), (4, 8, 4, 27)]
)
def test_the_optimum_itself_repeats(p: int, m: int, cap: int, best: int) -> None:
    found = repeating(linear(p, m, EQUAL, cap), budget=Budget(work=10))
    assert found is not None
    assert found.solution.value == best
    # The work of a rank; and rank 0 holds each microbatch for 2 p + 1, `cap` of them at once.
    assert max(Fraction(3), Fraction(2 * p + 1, cap)) <= found.repeat.slope < best
    check(found.repeat)


def test_the_slope_is_what_more_microbatches_cost() -> None:
    found = repeating(linear(3, 9, EQUAL, 2), budget=Budget(work=4))
    assert found is not None
    repeat = found.repeat
    ends = [judge(*repeat.longer(rounds)).makespan for rounds in (6, 7, 12)]
    assert ends[1] - ends[0] == repeat.slope * repeat.period
    assert ends[2] - ends[0] == repeat.slope * repeat.period * 6
    assert repeat.slope >= Fraction(7, 2)  # a microbatch stays for seven on rank 0, and two may be there


def test_two_chunks_repeat_too() -> None:
    found = repeating(vee(3, 9, EQUAL, 2), budget=Budget(work=1))
    assert found is not None
    check(found.repeat)


def test_whatever_is_found_for_any_problem_may_be_made_longer() -> None:
    seen = 0
    for seed in range(120):
        problem = random_problem(seed)
        try:
            orders = solve(problem, budget=Budget(work=0.2), seed=seed).orders
        except (Infeasible, NothingFound):
            continue
        found = repeat_of(problem, orders)
        if found is not None:
            check(found)
            seen += 1
    assert seen > 40


def test_none_where_microbatches_are_out_of_order() -> None:
    orders = solve(linear(2, 4, EQUAL, 4), budget=Budget(work=1)).orders
    swapped = {Operation(k, s, i): Operation(k, s, (1, 0, 2, 3)[i]) for rank in orders for k, s, i in rank}
    assert repeat_of(linear(2, 4, EQUAL, 4), orders) is not None
    assert (
        repeat_of(
            linear(2, 4, EQUAL, 4),
            tuple(tuple(swapped[op] if op.kind == 3 else op for op in rank) for rank in orders),
        )
        is None
    )
