"""Orders pressed to one end of their windows: within them, and as early or late as anything in that order can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from problems import uneven

from verify.search import Budget, model_of, solve
from verify.search.model import Model, run
from verify.search.press import press

EARLY = pytest.mark.parametrize("early", [True, False])


def ran(seed: int, microbatches: int = 4) -> tuple[Model, list[int], int]:
    problem = uneven(seed, 3, microbatches)
    model = model_of(problem)
    found = run(model, model.rows(solve(problem, budget=Budget(0.05)).orders))
    assert found is not None
    return model, found.start, found.value


def windows(model: Model, limit: int) -> tuple[list[int], list[int]]:
    return [0] * len(model), [limit - time for time in model.duration]


def holds(model: Model, start: list[int]) -> bool:
    """By the definition: what an operation needs has ended and come, and no two of a rank run at once."""
    end = [at + time for at, time in zip(start, model.duration, strict=True)]
    for row, (local, source) in enumerate(zip(model.local, model.upstream, strict=True)):
        if local >= 0 and end[local] > start[row]:
            return False
        if source >= 0 and end[source] + model.lag[row] > start[row]:
            return False
    for r in range(len(model.strands)):
        rows = sorted((row for row in range(len(model)) if model.rank[row] == r), key=start.__getitem__)
        if any(end[x] > start[y] for x, y in pairwise(rows)):
            return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_as_early_as_they_run(seed: int) -> None:
    model, start, value = ran(seed)
    late = press(model, start, *windows(model, value + 5), False)
    assert late is not None
    assert press(model, late, *windows(model, value), True) == start


@pytest.mark.parametrize("seed", range(4))
def test_as_late_as_the_last_end_allows(seed: int) -> None:
    """No operation alone could be later, and the whole takes no longer."""
    model, start, value = ran(seed)
    late = press(model, start, *windows(model, value), False)
    assert late is not None
    assert holds(model, late)
    assert all(a <= b for a, b in zip(start, late, strict=True))
    for row in range(len(model)):
        later = [at + (row == other) for other, at in enumerate(late)]
        assert not holds(model, later) or late[row] + model.duration[row] == value
    assert press(model, start, *windows(model, value - 1), False) is None


@EARLY
@pytest.mark.parametrize("seed", range(4))
def test_windows_are_kept(seed: int, early: bool) -> None:
    """One operation may not start before, or after, a time: the others make way, or there is no answer."""
    model, start, value = ran(seed)
    made = 0
    for row in range(len(model)):
        for shift in (-2, -1, 0, 1, 2):
            earliest, latest = windows(model, value + 2)
            earliest[row] = latest[row] = at = max(0, start[row] + shift)
            found = press(model, start, earliest, latest, early)
            if found is None:
                assert shift
                continue
            made += shift != 0
            assert found[row] == at
            assert holds(model, found)
            assert all(a <= x <= b for a, x, b in zip(earliest, found, latest, strict=True))
    assert made


@EARLY
def test_what_comes_before_what_it_needs_is_no_order(early: bool) -> None:
    model, start, value = ran(1)
    for row in range(len(model)):
        for other in (model.local[row], model.upstream[row]):
            if other >= 0:
                turned = list(start)
                turned[row], turned[other] = start[other], start[row] + 1
                assert press(model, turned, *windows(model, 3 * value), early) is None


@EARLY
def test_caps_are_kept(early: bool) -> None:
    """Every F before all else needs room for all."""
    model, start, value = ran(0, 6)
    forwards = [at - 100 * value * (model.kind[row] == 0) for row, at in enumerate(start)]
    assert press(model, forwards, *windows(model, 9 * value), early) is None
