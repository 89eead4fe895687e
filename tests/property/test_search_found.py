"""What z3 finds keeps to all that was asked, as it stands: nothing is left for orders, run anew, to mend."""

from __future__ import annotations

from itertools import pairwise

import pytest
from problems import uneven

from verify.search import lower_bound, model_of
from verify.search.exact import Answer, decide
from verify.search.model import Model, fits

SHORT = ((1, 2, 3), (1, 2, 3), (1, 2, 3))  # where windows often end a unit apart


@pytest.mark.parametrize("seed", range(40))
def test_starts_that_are_found_hold(seed: int) -> None:
    """At the least limit that can be kept, and one and two above."""
    model = model_of(uneven(seed, 3, 5, SHORT))
    limit, found = lower_bound(model).value, 0
    while found < 3:
        decision = decide(model, limit, work=20)
        assert decision.answer is not Answer.UNKNOWN
        if decision.answer is Answer.FOUND:
            assert decision.start is not None
            assert decision.rows is not None
            check(model, decision.start, decision.rows, limit)
            found += 1
        limit += 1


def check(model: Model, start: list[int], rows: list[list[int]], limit: int) -> None:
    ends = [at + time for at, time in zip(start, model.duration, strict=True)]
    assert min(start) >= 0
    assert max(ends) <= limit
    for row in range(len(model)):
        source, own = model.upstream[row], model.local[row]
        assert source < 0 or start[row] >= ends[source] + model.lag[row]
        assert own < 0 or start[row] >= ends[own]
    for order in rows:
        assert all(ends[x] <= start[y] for x, y in pairwise(order))
    assert fits(model, rows)
