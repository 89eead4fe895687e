"""A solver kept for many questions: the same answers as a new one for each, whatever was asked before."""

from __future__ import annotations

import random

import pytest
from problems import uneven

from pipedsl.program import Kind
from verify.search import Budget, exact, model_of, solve
from verify.search.exact import Answer
from verify.search.kept import Kept
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.press import press
from verify.search.windows import narrow


def within(model: Model, limit: int, earliest: list[int], latest: list[int]) -> Narrowed:
    """What says that every start is in its window."""
    tails = (limit - at - time for at, time in zip(latest, model.duration, strict=True))
    return Narrowed(starts=tuple(enumerate(earliest)), ends=tuple(enumerate(tails)))


def settled(seed: int, microbatches: int = 5) -> tuple[Model, int]:
    problem = uneven(seed, 3, microbatches)
    best = solve(problem, budget=Budget(20))
    assert best.proof is not None
    return model_of(problem), int(best.value / problem.time_unit)


@pytest.mark.parametrize("seed", range(6))
def test_the_answers_are_those_of_a_new_solver(seed: int) -> None:
    """Windows of one operation that are assumed, and windows that become narrower for good, in turn."""
    model, least = settled(seed)
    draw, limit = random.Random(seed), least + 1
    window = narrow(model, limit)
    earliest, latest = list(window.earliest), list(window.latest)
    kept = Kept(model, window, 0)
    answers = dict.fromkeys(Answer, 0)
    for _ in range(60):
        row = draw.randrange(len(model))
        first = draw.randint(earliest[row], latest[row])
        last = draw.randint(first, min(latest[row], first + 2))
        inside = [first if y == row else at for y, at in enumerate(earliest)]
        until = [last if y == row else at for y, at in enumerate(latest)]
        narrowed = within(model, limit, inside, until)
        found, plain = (
            decide(model, limit, work=20, narrowed=narrowed, loads=False) for decide in (kept.decide, exact.decide)
        )
        assert found.answer is plain.answer
        answers[found.answer] += 1
        if found.start is not None:
            assert all(a <= at <= b for a, at, b in zip(inside, found.start, until, strict=True))
            assert press(model, found.start, inside, until, True) is not None
        elif draw.random() < 0.5:  # the part of a window in which nothing starts is cut off, where it is at an end
            if first == earliest[row] and last < latest[row]:
                earliest[row] = last + 1
            elif last == latest[row] and first > earliest[row]:
                latest[row] = first - 1
            kept.narrow(earliest, latest)
            assert (kept.earliest, kept.latest) == (earliest, latest)
    assert answers[Answer.FOUND]
    assert answers[Answer.REFUTED]
    assert not answers[Answer.UNKNOWN]


@pytest.mark.parametrize("seed", range(4))
def test_what_was_only_assumed_is_forgotten(seed: int) -> None:
    """The whole is found after every part of it was refuted or found."""
    model, least = settled(seed)
    window = narrow(model, least)
    kept = Kept(model, window, 0)
    whole = within(model, least, window.earliest, window.latest)
    for row in (row for row, each in enumerate(model.operations) if each[:2] == (Kind.F, 0)):
        for at in range(window.earliest[row], window.latest[row] + 1, 3):
            inside = [at if y == row else a for y, a in enumerate(window.earliest)]
            until = [at if y == row else b for y, b in enumerate(window.latest)]
            kept.decide(model, least, work=20, narrowed=within(model, least, inside, until))
        assert kept.decide(model, least, work=20, narrowed=whole).answer is Answer.FOUND


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_starts_to_look_near_do_no_harm_where_some_are_known(seed: int) -> None:
    """Under the tightest limit some windows are a single time. Of all others the first and the last are asked about."""
    model, least = settled(seed)
    window = narrow(model, least)
    like = exact.decide(model, least).start
    assert like is not None
    assert 0 < sum(a == b for a, b in zip(window.earliest, window.latest, strict=True)) < len(model)
    kept = Kept(model, window, 0, like)
    for row in (row for row in range(len(model)) if window.earliest[row] < window.latest[row]):
        for at in (window.earliest[row], window.latest[row]):
            inside = [at if y == row else a for y, a in enumerate(window.earliest)]
            until = [at if y == row else b for y, b in enumerate(window.latest)]
            narrowed = within(model, least, inside, until)
            found = kept.decide(model, least, work=20, narrowed=narrowed)
            plain = exact.decide(model, least, work=20, narrowed=narrowed, like=like, loads=False)
            alone = exact.decide(model, least, work=20, narrowed=narrowed)
            assert found.answer is plain.answer is alone.answer
            if found.start is not None:
                assert press(model, found.start, inside, until, True) is not None


def test_a_lower_limit_may_be_asked_about() -> None:
    model, least = settled(3)
    kept = Kept(model, narrow(model, least + 5), 0)
    assert kept.decide(model, least, work=20).answer is Answer.FOUND
    window = narrow(model, least + 5)
    below = [at - 6 for at in window.latest]
    narrowed = within(model, least - 1, window.earliest, below)
    assert kept.decide(model, least - 1, work=20, narrowed=narrowed).answer is Answer.REFUTED


def test_without_work_nothing_is_known() -> None:
    """And what z3 counts is divided by what makes a second."""
    model, least = settled(4, 7)
    window = narrow(model, least)
    kept = Kept(model, window, 0)
    asked = kept.decide(model, least, work=1e-6, narrowed=NOTHING)
    assert asked.answer is Answer.UNKNOWN
    assert asked.start is None
    found = kept.decide(model, least, work=20, narrowed=NOTHING)
    assert found.answer is Answer.FOUND
    assert 0 < found.work < 20


def test_less_work_than_with_new_solvers() -> None:
    """z3 counts its own work, the same in every run."""
    problem = uneven(1, 5, 9)
    model = model_of(problem)
    limit = int(solve(problem, budget=Budget(1)).value / problem.time_unit)
    window = narrow(model, limit)
    kept = Kept(model, window, 0)
    alone = together = 0.0
    for row in (row for row, each in enumerate(model.operations) if each[:2] == (Kind.F, 0)):
        for part in (6, 3, 2):
            until = list(window.latest)
            until[row] -= (until[row] - window.earliest[row]) * (part - 1) // part
            narrowed = within(model, limit, window.earliest, until)
            found = kept.decide(model, limit, work=20, narrowed=narrowed)
            plain = exact.decide(model, limit, work=20, narrowed=narrowed, loads=False)
            assert found.answer is plain.answer
            together, alone = together + found.work, alone + plain.work
    assert 0 < together < alone
