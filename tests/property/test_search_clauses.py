"""What is told to z3 holds for every order that fits: each line of the text, for the times the simulator gives.

The lines are read by the few operators they consist of, and nothing of the search. That they leave no order too good is
for `test_search`: there z3 answers, and brute force agrees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product

import pytest
from every_order import idle_times
from problems import uneven

from pipedsl.program import Costs
from verify.search import Infeasible, Objective, Problem, make_problem, model_of, uniform_costs
from verify.search.exact import without_instants
from verify.search.formula import Formula
from verify.search.load import Load, load_clauses, lost_anyway
from verify.search.lost import Lost
from verify.search.model import Model, fits, run
from verify.search.windows import narrow

# Placement and microbatches.
SHAPES = (
    ([0], 4),
    ([0, 1], 4),
    ([0, 1, 2], 4),
    ([0, 1, 1, 0], 2),
    ([0, 1, 0, 1], 2),
    ([0, 0, 1], 2),
    ([0, 1, 2, 3], 5),
)
TIMES = ((6, 10, 17), (8, 11, 20), (5, 10, 14))
TRIES = 60  # random orders of which the best is kept


def problem_of(seed: int) -> Problem:
    draw = random.Random(seed)
    placement, m = draw.choice(SHAPES)
    lengths = draw.choice(((1,), (0, 1), (1, 2, 3), (Fraction(7, 10), 1, Fraction(13, 10))))

    def values() -> tuple[Fraction, ...]:
        same = draw.random() < 0.5
        first = draw.choice(lengths)
        return tuple(Fraction(first if same else draw.choice(lengths)) for _ in placement)

    forward, inputs, weights = values(), values(), values()
    whole = tuple(a + b for a, b in zip(inputs, weights, strict=True))
    send = (Fraction(draw.choice((0, 0, 1, 3)), 10),) * len(placement)
    activation = tuple(Fraction(draw.choice((1, 1, 2))) for _ in placement)
    held = draw.choice((Fraction(0), Fraction(1, 2), Fraction(1)))
    ranks = max(placement) + 1
    return make_problem(
        placement=placement,
        microbatches=m,
        costs=Costs(forward, whole, inputs, weights, send),
        activation=activation,
        held_by_w=tuple(held * value for value in activation),
        cap=[draw.choice((None, *map(Fraction, range(2, 7)))) for _ in range(ranks)],
        objective=draw.choice(tuple(Objective)),
        split=draw.random() < 0.9,
    )


def random_orders(model: Model, draw: random.Random) -> list[list[int]] | None:
    """An operation at a time, any that may come next on its rank; None where the caps leave none."""
    rows: list[list[int]] = [[] for _ in model.strands]
    heads = [[first for first, _ in pairs] for pairs in model.strands]
    held = [0] * len(rows)
    done: set[int] = set()
    hurry = draw.random()
    while len(done) < len(model):
        options = []
        for r, pairs in enumerate(model.strands):
            for k, (_, last) in enumerate(pairs):
                row, room = heads[r][k], model.room[r]
                ready = row < last and all(x < 0 or x in done for x in (model.local[row], model.upstream[row]))
                if ready and (room is None or held[r] + model.take[row] <= room):
                    options.append((r, k))
        if not options:
            return None
        # In turns, so that ranks work side by side; at times deepest first, which ends sooner than any.
        best = max(options, key=lambda at: (-len(rows[at[0]]), heads[at[0]][at[1]]))
        r, k = best if draw.random() < hurry else draw.choice(options)
        row = heads[r][k]
        rows[r].append(row)
        done.add(row)
        held[r] += model.take[row] - model.give[row]
        heads[r][k] += 1
    return rows


def good_orders(model: Model, draw: random.Random) -> list[list[int]] | None:
    """The best of many: near the optimum the windows are narrow, and what follows from them says most."""
    found = [rows for rows in (random_orders(model, draw) for _ in range(TRIES)) if rows is not None]
    values = [(ran.value, rows) for rows in found if (ran := run(model, rows)) is not None]
    return min(values, default=(0, None), key=lambda one: one[0])[1]


def tokens(text: str) -> Iterator[str]:
    yield from text.replace("(", " ( ").replace(")", " ) ").split()


def holds(text: str, values: dict[str, int | bool]) -> bool:
    """The value of one `(assert ...)`."""
    stack: list[list[object]] = [[]]
    for token in tokens(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            name, *items = stack.pop()
            stack[-1].append(apply(str(name), items))
        elif not stack[-1] and len(stack) > 1:
            stack[-1].append(token)
        elif token in values:
            stack[-1].append(values[token])
        else:
            stack[-1].append({"true": True, "false": False}[token] if token in ("true", "false") else int(token))
    return bool(stack[0][0])


def apply(name: str, items: list) -> object:  # type: ignore[type-arg]
    if name == "assert":
        return items[0]
    if name in ("or", "and", "not"):
        return {"or": any(items), "and": all(items), "not": not items[0]}[name]
    if name == "ite":
        return items[1] if items[0] else items[2]
    if name in ("<=", ">="):
        pairs = pairwise(items)
        return all(a <= b if name == "<=" else a >= b for a, b in pairs)
    if name == "+":
        return sum(items)
    assert name == "-", name
    return -items[0] if len(items) == 1 else items[0] - sum(items[1:])


def facts(model: Model, formula: Formula, rows: list[list[int]]) -> dict[str, int | bool]:
    """What the names of a text stand for, if the ranks run these orders."""
    ran = run(model, rows)
    assert ran is not None
    place = {row: at for order in rows for at, row in enumerate(order)}
    found: dict[str, int | bool] = dict(zip(formula.names, ran.start, strict=True))
    for x, y in ((x, y) for order in rows for pair in combinations(order, 2) for x, y in (pair, pair[::-1])):
        found[f"{formula.names[x]}<{formula.names[y]}"] = place[x] < place[y]
    for r, first in enumerate(ran.first):
        found[f"begin.{r}"] = first
    return found


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_every_line_holds_for_orders_that_fit(first: int) -> None:
    asked = told = 0
    for seed in range(first, first + 40):
        draw = random.Random(seed)
        problem = problem_of(seed)
        model = model_of(problem)
        rows = good_orders(model, draw)
        if rows is None:
            continue
        ran = run(model, rows)
        assert ran is not None
        assert fits(model, rows)
        model, limit = without_instants(model, ran.value + draw.choice((0, 0, 1, 5)))
        try:
            window = narrow(model, limit)
        except Infeasible:
            pytest.fail(f"seed {seed}: there is an order within {limit}")
        formula = Formula(model, window)
        values = facts(model, formula, rows)
        for line in formula.lines:
            assert holds(line, values), f"seed {seed}: {line}"
        asked += 1
        told += len(load_clauses(model, window, formula.literal, dict(enumerate(formula.names))))
        # What an order that does not fit breaks is kept by every order that does.
        for r in formula.lazy:
            other = random_orders(model_of(problem.with_cap(None)), draw)
            assert other is not None
            for clause in formula.overfull(r, other[r]):
                text = f"(assert (or false {' '.join(str(literal) for literal in clause if literal is not True)}))"
                assert True in clause or holds(text, values), f"seed {seed}: {text}"
    assert asked > 10
    assert told > 100


def test_what_is_too_good_breaks_a_line() -> None:
    """The same lines for a limit below the value of the orders do not all hold."""
    for seed in range(30):
        problem = problem_of(seed).with_objective(Objective.MAKESPAN)
        model = model_of(problem)
        rows = good_orders(model, random.Random(seed))
        ran = None if rows is None else run(model, rows)
        if rows is None or ran is None or not all(model.duration):
            continue
        try:
            formula = Formula(model, narrow(model, ran.value - 1))
        except Infeasible:
            continue
        values = facts(model, formula, rows)
        assert not all(holds(line, values) for line in formula.lines), f"seed {seed}"


def test_numbers_of_a_strand_are_counted_from_the_nearer_end() -> None:
    """As many as come before an operation if the last of them does; as many as come after it if the first does."""
    model = model_of(make_problem(placement=[0], microbatches=4, costs=uniform_costs(1, 1, 1, 1)))
    formula = Formula(model, narrow(model, model.horizon), loads=False)
    window, names = formula.window, dict(enumerate(formula.names))
    load = Load(model, window, formula.literal, names, 0, lost_anyway(window, 0, window.limit), window.limit)
    forwards, _, weights = load.strands
    asked = 0
    for x, first in product(range(*forwards), (True, False)):
        rows = [y for y in range(*weights) if formula.literal(x, y) not in (True, False)]
        expected = [(y - weights[0] + 1 if first else weights[1] - y) for y in (rows if first else rows[::-1])]
        counts = load._counts(weights, x, first)
        assert [number for number, _ in counts.open] == expected
        assert expected == list(range(counts.sure + 1, counts.most + 1))
        asked += len(expected)
    assert asked


@pytest.mark.parametrize("seed", range(12))
def test_lines_about_a_part_hold_for_orders_of_the_whole(seed: int) -> None:
    """Of some microbatches in a row, with what is lost in the order itself: so much before and after each row, and no
    more where that is asked. One less is too much to ask of all that there are, and somewhere of fewer."""
    problem = uneven(seed, 3, 7, TIMES)
    model, draw = model_of(problem), random.Random(seed)
    rows = good_orders(model, draw)
    assert rows is not None
    ran = run(model, rows)
    assert ran is not None
    limit = ran.value + draw.choice((0, 3, 20))
    window = narrow(model, limit)
    formula = Formula(model, window, loads=False)
    values = facts(model, formula, rows)
    told = denied = 0
    for r, (first, count) in product(range(3), ((0, 2), (0, 4), (1, 2), (3, 4), (0, 7))):
        names = {
            row: name
            for row, name in enumerate(formula.names)
            if first <= model.operations[row].microbatch < first + count
        }
        lost = Lost(*idle_times(model, ran.start, r, limit))
        load = Load(model, window, formula.literal, names, r, lost, limit)
        assert load.rows == [row for row in names if model.rank[row] == r]
        for row, side in product(load.rows, (True, False)):
            lines = [*load.at_least(row, side)]
            asked = [f"(assert {clause})" for clause in load.at_most(row, side, lost.of(row, side))]
            less = [f"(assert {clause})" for clause in load.at_most(row, side, lost.of(row, side) - 1)]
            assert all(holds(line, values) for line in (*lines, *asked)), (r, row, side)
            told += len(lines)
            broken = not all(holds(line, values) for line in less)
            assert broken or count < 7, (r, row, side)
            denied += broken
    assert told > 20
    assert denied > 20
