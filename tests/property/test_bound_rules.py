"""Every rule that the checker of bounds argues with, held to all orders of small problems and not to the best alone."""

from __future__ import annotations

import random
from itertools import product

import pytest
from brute import fits, interleavings
from small_problems import small_problem

from pipedsl.program import Kind
from verify.bound import arguments as checker
from verify.bound.problem import Op, read_problem
from verify.bound.problem import Problem as Subject
from verify.search import Operation, Problem, model_of
from verify.search.model import run
from verify.search.problem_json import problem_json

MOST_ORDERS, SAMPLE = 400, 60


def named(operation: Operation) -> Op:
    return operation.kind.name, operation.stage, operation.microbatch


def orders_of(problem: Problem) -> list[list[tuple[Operation, ...]]]:
    """Per rank the orders that it may choose."""
    return [
        [order for order in interleavings(strands, problem.depth) if fits(problem, rank, order)]
        for rank, strands in enumerate(problem.strands)
    ]


def small(seed: int) -> tuple[Problem, Subject, list[list[tuple[Operation, ...]]]] | None:
    """A problem with its orders; None where there are none, or too many."""
    _, problem = small_problem(seed)
    if max(sum(map(len, strands)) for strands in problem.strands) > 12:
        return None
    orders = orders_of(problem)
    if not all(0 < len(options) <= MOST_ORDERS for options in orders):
        return None
    return problem, read_problem(problem_json(problem)), orders


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_what_memory_forces_is_so_in_every_order(first: int) -> None:
    forced = 0
    for seed in range(first, first + 100):
        found = small(seed)
        if found is None:
            continue
        _, subject, orders = found
        for rank, options in enumerate(orders):
            places = [{operation: n for n, operation in enumerate(order)} for order in options]
            for x, y in product(options[0], options[0]):
                if y.kind == Kind.F and x.kind != Kind.F and checker.frees(subject, rank, named(x), named(y)):
                    forced += 1
                    assert all(place[x] < place[y] for place in places), (seed, x, y)
    assert forced > 20


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_times_are_so_in_every_order(first: int) -> None:
    """Idle times, and when a rank begins."""
    idled = begun = 0
    for seed in range(first, first + 100):
        found = small(seed)
        if found is None:
            continue
        problem, subject, orders = found
        model, draw = model_of(problem), random.Random(seed)
        tick = problem.time_unit.numerator
        for _ in range(SAMPLE):
            chosen = tuple(draw.choice(options) for options in orders)
            rows = model.rows(chosen)
            timeline = run(model, rows)
            if timeline is None:
                continue
            start = {named(model.operations[row]): timeline.start[row] * tick for order in rows for row in order}
            end = {op: time + subject.lasts(op) for op, time in start.items()}
            for rank, order in enumerate(chosen):
                own = [place for place, holder in enumerate(subject.placement) if holder == rank]
                if len(own) == 1 and subject.ordered[rank]:
                    for i in range(problem.microbatches):
                        a, b = end["F", own[0], i], start[subject.release(own[0], i)]
                        busy = sum(subject.lasts(named(op)) for op in order if a <= start[named(op)] < b)
                        least = checker.idle_once(subject, rank, own[0], i)
                        idled += least > 0
                        assert b - a - busy >= least, (seed, rank, i)
                chain = checker.forced(subject, rank)
                if chain:
                    begun += 1
                    assert named(order[0]) == chain[-1], (seed, rank)
                    assert start[chain[-1]] == checker.begin(subject, chain, ""), (seed, rank)
    assert idled > 50
    assert begun > 50
