"""Searches with REDUCEs that take time, held to every order and every place of each: bounds, answers, evidence."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction

import numpy as np
import pytest
from brute_sums import smallest

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand
from pipedsl.render.expansion import program_json
from pipedsl.search_problem import Task, tasks
from pipedsl.search_reductions import in_order
from pipedsl.search_sums import timed
from pipedsl.search_with_reduce import rows_of, sums_of
from pipedsl.searching import search
from pipedsl.simulate import Stuck, measure, simulate
from verify.bound.certificate import check
from verify.search.problem_json import problem_json

CHUNKS = "F@0 * m || F@1 * m || B@0 * m || B@1 * m"
SPLIT = "F@0 * m || F@1 * m || I@0 * m || I@1 * m || W@0 * m REDUCE@0 || W@1 * m REDUCE@1"
LOOSE = (
    f"{CHUNKS} || REDUCE@0 || REDUCE@1",
    "F@0 * m || F@1 * m || B@0 * m REDUCE@0 || B@1 * m REDUCE@1",
    f"({CHUNKS}) REDUCE@1 REDUCE@0",
    f"({CHUNKS}) REDUCE@0 || REDUCE@1",
    SPLIT,
)
WAYS = "F@down * m || B@down * m || F@up * m || B@up * m"
SHAPES: dict[str, tuple[str, tuple[str, ...], tuple[tuple[int, int], ...]]] = {
    "plain": (
        "stages p\nplace s -> s\n",
        ("(F * m || B * m) REDUCE", "F * m || I * m || W * m REDUCE", "F * m || B * m || REDUCE"),
        ((2, 1), (2, 2), (2, 3), (3, 2)),
    ),
    "looped": ("stages 2 * p\nplace s -> s % p\n", LOOSE, ((2, 1), (2, 2), (1, 2), (3, 1))),
    "v": ("stages 2 * p\nplace s -> min(s, 2 * p - 1 - s)\n", LOOSE, ((2, 1), (3, 1), (2, 2))),
    "copies": (
        "stages p\nreplica down { place s -> s }\nreplica up { place s -> p - 1 - s }\n",
        (
            f"{WAYS} || REDUCE@down || REDUCE@up",
            f"({WAYS}) if r == 0 {{ REDUCE@down REDUCE@up }} else {{ REDUCE@up REDUCE@down }}",
            "F@down * m || B@down * m REDUCE@down || F@up * m || B@up * m REDUCE@up",
        ),
        ((2, 1), (3, 1)),
    ),
    "the same": (
        "stages p\nreplica down { place s -> s }\nreplica up { place s -> s }\n",
        (f"{WAYS} || REDUCE@down || REDUCE@up",),
        ((2, 1), (1, 1), (1, 2)),
    ),
    "shifted": (
        "stages 2\nreplica down { place s -> s }\nreplica up { place s -> s + 1 }\n",
        ("if r < 2 { F@down * m || B@down * m || REDUCE@down } || if r > 0 { F@up * m || B@up * m || REDUCE@up }",),
        ((3, 1), (3, 2)),
    ),
}


def drawn(seed: int) -> tuple[str, dict[str, int], str]:
    """A text, its parameters, and what it minimizes."""
    draw = random.Random(seed)
    head, words, sizes = SHAPES[draw.choice(sorted(SHAPES))]
    (p, m), word = draw.choice(sizes), draw.choice(words)
    forward, inputs, whole, weights, send, reduce = (
        draw.choice(options)
        for options in (
            ("1", "1 + s", "3 - s / 2"),
            ("1", "1 + s", "3 - s / 2"),
            ("2", "1 + s", "6 - s"),
            ("1", "s", "3 - s / 2"),
            ("0", "0", "1 / 2", "2"),
            ("1", "s", "6 - s", "3 / 2", "5"),
        )
    )
    backward = f"I = {inputs}  W = {weights}" if "I" in word else f"B = {whole}"
    aim, cap = draw.choice(("makespan", "span")), draw.choice(("", "", 1, 2, 3, 4))
    memory = f"memory {{ activation(s) = 1  cap(r) = {cap} }}\n" if cap else ""
    costs = f"cost s {{ F = {forward}  {backward}  send = {send}  REDUCE = {reduce} }}\n"
    text = f"schedule x(p, m)\n{head}rank r {{ {word} }}\n{costs}{memory}minimize {aim}\n"
    return text, {"p": p, "m": m}, aim


@pytest.mark.parametrize("first", range(1000, 1090, 30))
def test_held_to_all_orders(first: int) -> None:
    """No bound is above the best of all orders and places, what is called the smallest is, and so is most of what is
    found beside; and the small checker accepts what it is told of the bound."""
    tried = proved = missed = 0
    for seed in range(first, first + 30):
        text, params, aim = drawn(seed)
        asked = parse_text(text)
        best = smallest(asked, params, 2500)
        if best is None:
            continue
        value = getattr(best, aim)
        if value is None:
            with pytest.raises(DiagnosticError):
                search(asked, params, budget=0.3)
            continue
        tried += 1
        result = search(asked, params, budget=0.3)
        assert result.bound <= value <= result.value, text
        assert not result.optimal or result.value == value, text
        proved, missed = proved + result.optimal, missed + (result.value > value)
        again = expand(parse_text(result.text), {})
        assert np.array_equal(again.kind, result.program.kind)
        evidence = result.evidence
        assert evidence.proved <= value, text
        assert evidence.refutation is None or evidence.proved < result.bound, text
        program = json.loads("".join(program_json(again)))
        subject = json.loads(json.dumps(problem_json(result.problem)))
        said = check(json.loads(json.dumps(evidence.certificate)), subject, program)
        least = re.match(rf"this order has a {aim} of at least (\S+) with every REDUCE; no order", said)
        assert least is not None, said
        assert Fraction(least[1]) <= result.value, text
    assert (tried > 12, proved > 0.7 * tried, missed <= 1) == (True, True, True), (tried, proved, missed)


def mixed(task: Task, draw: random.Random) -> list[list[int]]:
    """Every rank's rows in an order that the text allows; most in the order of the data, some not."""
    program, orders = task.program, []

    def natural(row: int) -> tuple[int, int, int]:
        kind, stage = int(program.kind[row]), int(program.stage[row])
        return int(program.microbatch[row]), min(kind, 1), stage if kind == 0 else kind - stage * 3

    for strands, reductions in zip(task.open_program.strands, task.reductions, strict=True):
        left, order = [list(strand) for strand in strands if strand], list[int]()
        while left:
            strand = draw.choice(left) if draw.random() < 0.2 else min(left, key=lambda each: natural(each[0]))
            order.append(strand.pop(0))
            left = [each for each in left if each]
        for each in reductions:
            first = max((at + 1 for at, row in enumerate(order) if row in each.after), default=0)
            order.insert(draw.randint(first, len(order)), each.row)
        orders.append(order)
    return orders


def test_the_clock_of_moves_is_that_of_the_simulator() -> None:
    """Of any orders and places: the same times, and the same that hang."""
    ran = hung = 0
    for seed in range(2000, 2150):
        text, params, aim = drawn(seed)
        [task] = tasks(parse_text(text), params)
        names, sums = sums_of(task)
        number, draw = {row: at for at, row in enumerate(names)}, random.Random(seed)
        for _ in range(6):
            rows = mixed(task, draw)
            program = in_order(task.program, rows)
            assert rows_of(task, program) == rows
            try:
                expected = getattr(measure(program, simulate(program)), aim)
            except Stuck:
                expected = None
            found = timed(sums, [[number[row] for row in own] for own in rows])
            assert (None if found is None else found.value * task.problem.time_unit) == expected, text
            ran, hung = ran + (found is not None), hung + (found is None)
    assert (ran > 50, hung > 50) == (True, True), (ran, hung)
