"""Search where messages take memory, held to all orders of small problems: each one lowered, its memory summed up."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import pytest
from brute import cost, interleavings

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.lower import lower
from pipedsl.occupancy import memory_used
from pipedsl.search_answer import program_of
from pipedsl.search_problem import Task, tasks
from pipedsl.searching import NothingFound, search
from pipedsl.simulate import simulate
from pipedsl.syntax import Schedule
from verify import Verdict
from verify.search import judge

pytest.importorskip("z3")


def drawn(seed: int) -> tuple[Schedule, dict[str, int]]:
    """Two or three ranks, or two with two chunks in a V; what messages, activations and inputs take."""
    draw = random.Random(seed)
    p, m = draw.choice(((2, 2), (3, 2), (2, 3)))
    words, stages, place = draw.choice(("F * m || I * m || W * m", "F * m || B * m")), "p", "s -> s"
    if draw.random() < 0.35:
        p, m, stages, place = 2, draw.choice((1, 2)), "2 * p", "s -> s if s < p else 2 * p - 1 - s"
        words = "F@0 * m || F@1 * m || B@0 * m || B@1 * m"
    activation = draw.randint(1, 4)
    text = f"""
schedule x(p, m)
stages {stages}
place {place}
rank r {{ {words} }}
cost {{ F = {draw.randint(1, 4)} I = {draw.randint(1, 4)} W = {draw.randint(1, 4)} send = {draw.choice((0, 0.5, 1))} }}
memory {{
    activation(s) = {activation}  held_by_w(s) = {draw.choice(("", "1 / 2 * "))}{activation}
    output(s) = {draw.choice(("1", "2", "1 + s % 2"))}  input(s) = {draw.choice((0, 0, 1))}
}}
minimize {draw.choice(("makespan", "span"))}
"""
    return parse_text(text), {"p": p, "m": m}


def every_order(task: Task) -> list[tuple[Fraction, tuple[Fraction, ...]]]:
    """What each choice of orders costs, and the most that each rank holds."""
    problem, found = task.problem, []
    for orders in product(*(interleavings(strands, problem.depth) for strands in problem.strands)):
        value = cost(problem, orders)
        if value is not None:
            program = program_of(task, orders, (None,) * problem.ranks)
            held = memory_used(program, lower(program, simulate(program))).peaks()
            found.append((value * problem.time_unit, held))
    return found


@pytest.mark.parametrize("first", range(0, 18, 6))
def test_an_order_is_found_where_there_is_one(first: int) -> None:
    best_found = several = 0
    for seed in range(first, first + 6):
        schedule, params = drawn(seed)
        orders = [(value, max(held)) for value, held in every_order(tasks(schedule, params)[0])]
        sizes = sorted({held for _, held in orders})
        for cap in {sizes[0] - 1, sizes[0], sizes[len(sizes) // 2]}:
            best = min((value for value, held in orders if held <= cap), default=None)
            try:
                result = search(schedule, params, cap=cap, budget=1)
            except (NothingFound, DiagnosticError):
                assert best is None, (seed, cap)
                continue
            assert best is not None, (seed, cap)
            assert result.verdict is Verdict.VERIFIED
            assert result.bound <= best <= result.value, (seed, cap)
            assert not result.least
            several, best_found = several + 1, best_found + (result.value == best)
    assert best_found > several * 3 / 4


PLACES = ("linear", "looped", "v")


@pytest.mark.parametrize(
    ("m", "cap", "cost", "memory", "place"),
    [
        (1, 7, "F = 2 B = 3 send = 2", "activation(s) = 2 output(s) = 1 + s % 2", "v"),
        (2, 12, "F = 3 B = 2 send = 1", "activation(s) = 2 output(s) = 2", "linear"),
    ],
)
def test_the_placement_is_the_best_of_those_that_have_room(
    m: int, cap: int, cost: str, memory: str, place: str
) -> None:
    """What is quickest before all buffers are counted has no room for them, or is slower with it."""
    schedule = parse_text(f"""
schedule x(p, m)
stages 2 * p
place ? in {", ".join(PLACES)}
rank r {{ F@0 * m || F@1 * m || B@0 * m || B@1 * m }}
cost {{ {cost} }}
memory {{ {memory} }}
""")
    found = tasks(schedule, {"p": 2, "m": m})
    orders = [(value, max(held), task.placement) for task in found for value, held in every_order(task)]
    best, _, quickest = min(order for order in orders if order[1] <= cap)
    result = search(schedule, {"p": 2, "m": m}, cap=cap, budget=3)
    assert (result.value, result.placement) == (best, quickest)
    assert quickest == place
    assert result.bound < best, "a quicker one of another placement is not refuted: its buffers are not counted"
    assert not result.optimal


def test_an_order_is_found_that_smaller_caps_do_not_lead_to() -> None:
    """Under any smaller caps what is found has no room for what rank 0 receives; two swaps lead to what has."""
    schedule = parse_text("""
schedule x(p, m)
stages p
place s -> s
rank r { F * m || B * m }
cost s { F = 3 - s  B = 3 + s  send = 1 }
memory {
    activation(s) = 2 - s  held_by_w(s) = s / 2  output(s) = 3 / 2 * (1 - s)
    cap(r) = 13 - 9 * r
}
""")
    [task] = tasks(schedule, {"p": 2, "m": 3})
    best = min(value for value, held in every_order(task) if held[0] <= 13 and held[1] <= 4)
    result = search(schedule, {"p": 2, "m": 3}, budget=1)
    assert (result.value, result.verdict) == (best, Verdict.VERIFIED)


@pytest.mark.parametrize(("one", "other", "whole"), [("0", "s", (1, 1, 5, 1)), ("s", "0", (5, 1, 1, 1))])
def test_copies_that_are_placed_otherwise_hold_otherwise(one: str, other: str, whole: tuple[int, ...]) -> None:
    """Only the copy whose stages are on two ranks has a buffer of what its first stage sends, whichever it is."""
    schedule = parse_text(f"""
schedule x(p, m)
stages 2
replica a {{ place s -> {one} }}
replica b {{ place s -> {other} }}
rank r where r == 0 {{ F@0 || F@1 || F@2 || B@0 || B@1 || B@2 }}
rank r where r == 1 {{ F || B }}
cost s {{ F = 1 + s  B = 3 - s  send = 2 }}
memory {{ activation(s) = 1  output(s) = 4 }}
""")
    [task] = tasks(schedule, {"p": 2, "m": 1})
    assert task.problem.activation == whole
    alone = set()
    for orders in product(*(interleavings(strands, task.problem.depth) for strands in task.problem.strands)):
        if cost(task.problem, orders) is not None:
            alone.add(judge(task.problem, orders).memory[0])
            # Of what the search knows nothing of is only what comes back to stage 0 and is held while B waits for it.
            program = program_of(task, orders, (None, None))
            held = memory_used(program, lower(program, simulate(program))).peaks()[0]
            assert judge(task.problem, orders).memory[0] <= held
    assert alone == {5, 6, 7}
    every = [(value, max(held)) for value, held in every_order(task)]
    found = 0
    for cap in range(3, 13):
        best = min((value for value, held in every if held <= cap), default=None)
        try:
            result = search(schedule, {"p": 2, "m": 1}, cap=cap, budget=1)
        except (NothingFound, DiagnosticError):
            assert best is None, cap
            continue
        assert result.value == best, cap
        found += 1
    assert found
