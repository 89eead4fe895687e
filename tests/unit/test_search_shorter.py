"""Problems of fewer microbatches: what does well there does well on all of them."""

from __future__ import annotations

from problems import EQUAL, linear, vee

from verify.search import lower_bound, model_of
from verify.search.model import run
from verify.search.shorter import good_manners, short_models
from verify.search.tune import tune

NO_END = float("inf")


def test_have_three_microbatches_for_two_ranks_or_twice_as_many() -> None:
    for ranks, microbatches, expected in ((4, 48, [6, 12]), (4, 24, [6, 12]), (4, 23, [6]), (4, 12, [6]), (4, 11, [])):
        whole = model_of(linear(ranks, microbatches, EQUAL, cap=4))
        shorts = short_models(whole)
        assert [short.problem.microbatches for short in shorts] == expected
        assert all(short.room == whole.room for short in shorts)


def test_the_longer_one_finds_how_a_v_never_waits_at_the_memory_of_1f1b() -> None:
    """Two chunks in a V, each rank with room for as many microbatches as there are ranks: 3m, as published."""
    problem = vee(16, 128, EQUAL, 16, "span")
    whole = model_of(problem)
    _, short = short_models(whole)
    goal = lower_bound(short).value
    assert goal * problem.time_unit == 3 * 48
    manners, _ = good_manners(short, goal, 400, 0, NO_END)
    found = tune(whole, 0, 1, 0, NO_END, manners[0])
    assert found is not None
    after = run(whole, found.rows)
    assert after is not None
    assert after.value * problem.time_unit == 3 * 128
