"""Interleaved 1F1B as orders that a search starts from: they are those of the shipped schedule."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipedsl.api import load, parse_text, verify
from pipedsl.search_answer import orders_of
from pipedsl.search_problem import tasks
from pipedsl.searching import search
from verify.search import Objective, Problem, judge, make_problem, uniform_costs
from verify.search.interleave import interleaved
from verify.search.model import model_of

pytest.importorskip("z3")


def looped(p: int, m: int, v: int, split: bool, **more: object) -> Problem:
    costs = uniform_costs(p * v, 1, 1, 1)
    return make_problem(
        placement=[s % p for s in range(p * v)], microbatches=m, costs=costs, split=split, **more  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (3, 6, 2), (4, 8, 3), (1, 3, 2)])
def test_orders_are_those_of_the_shipped_schedule(p: int, m: int, v: int) -> None:
    model = model_of(looped(p, m, v, split=False))
    rows = interleaved(model)
    assert rows is not None
    shipped = verify(load("interleaved_1f1b"), {"p": p, "m": m, "v": v}).program
    assert model.orders(rows) == orders_of(shipped)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (3, 6, 3)])
def test_w_follows_its_i(p: int, m: int, v: int) -> None:
    problem = looped(p, m, v, split=True)
    rows = interleaved(model_of(problem))
    assert rows is not None
    orders = model_of(problem).orders(rows)
    whole = looped(p, m, v, split=False)
    together = interleaved(model_of(whole))
    assert together is not None
    one, other = judge(problem, orders), judge(whole, model_of(whole).orders(together))
    assert one.memory == other.memory
    assert one.value(Objective.MAKESPAN) <= other.value(Objective.MAKESPAN)  # W need not be over for the next rank


def test_other_placements_and_words_have_none() -> None:
    vee = make_problem(placement=[0, 1, 1, 0], microbatches=4, costs=uniform_costs(4, 1, 1, 1))
    line = make_problem(placement=[0, 1], microbatches=4, costs=uniform_costs(2, 1, 1, 1))
    copies = looped(2, 4, 1, split=True, replicas=2)
    sketch = "schedule x(p, m)\nstages 2 * p\nplace s -> s % p\nrank r { F@0 * m || (F@1 B@1) * m || B@0 * m }\n"
    [task] = tasks(parse_text(sketch), {"p": 2, "m": 2})
    for problem in (vee, line, copies, task.problem):
        assert interleaved(model_of(problem)) is None


def test_under_its_own_caps_nothing_worse_is_found() -> None:
    """Habits alone came to 118 within the usual budget."""
    metrics = verify(load("interleaved_1f1b"), {"p": 8, "m": 16}).metrics
    assert metrics is not None
    words = "F@0 * m || B@0 * m || F@1 * m || B@1 * m"
    cap = "cap(r) = min(2 * (p - 1 - r) + p, 2 * m) + 1"
    text = f"schedule x(p, m)\nstages 2 * p\nplace s -> s % p\nrank r {{ {words} }}\nmemory {{ {cap} }}\n"
    result = search(parse_text(text), {"p": 8, "m": 16}, budget=1.0)
    assert list(result.caps) == list(metrics.peak_activations)
    assert result.value <= metrics.makespan == Fraction(117)
