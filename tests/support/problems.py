"""Search problems for tests: plain pipelines, two chunks in a V, and random ones."""

from __future__ import annotations

import random
from fractions import Fraction

from pipedsl.program import Costs, Kind
from verify.search import Objective, Operation, Problem, make_problem, uniform_costs

EQUAL = {"F": "1", "I": "1", "W": "1", "send": "0"}


def linear(
    p: int, m: int, costs: dict[str, str], cap: object, held: object = 1, objective: str = "makespan"
) -> Problem:
    return make_problem(
        placement=range(p),
        microbatches=m,
        costs=uniform_costs(p, costs["F"], costs["I"], costs["W"], costs["send"]),
        cap=None if cap is None else Fraction(str(cap)),
        held_by_w=Fraction(str(held)),
        objective=Objective(objective),
    )


def vee(p: int, m: int, costs: dict[str, str], cap: object, objective: str = "makespan") -> Problem:
    """Two half stages a rank, activations of a half each."""
    half = {name: str(Fraction(value) / 2) for name, value in costs.items()}
    return make_problem(
        placement=[*range(p), *reversed(range(p))],
        microbatches=m,
        costs=uniform_costs(2 * p, half["F"], half["I"], half["W"], costs["send"]),
        activation=Fraction(1, 2),
        cap=Fraction(str(cap)),
        objective=Objective(objective),
    )


Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def uneven(
    seed: int, p: int, m: int, times: Times = ((7, 10, 13), (10, 11, 20), (3, 10, 14)), whole: bool = False
) -> Problem:
    """Costs for each stage, of F, I and W drawn from `times` in tenths; messages that take time; what W holds, all with
    `whole`; a cap for each rank, some tight."""
    draw = random.Random(seed)

    def values(*options: int) -> tuple[Fraction, ...]:
        return tuple(Fraction(draw.choice(options), 10) for _ in range(p))

    forward, inputs, weights = (values(*each) for each in times)
    both = tuple(a + b for a, b in zip(inputs, weights, strict=True))
    return make_problem(
        placement=range(p),
        microbatches=m,
        costs=Costs(forward, both, inputs, weights, values(0, 1, 5)),
        cap=[draw.choice((Fraction(3, 2), Fraction(2), Fraction(5, 2), Fraction(p))) for _ in range(p)],
        held_by_w=Fraction(1) if whole else draw.choice((Fraction(0), Fraction(1, 2), Fraction(1))),
    )


def random_problem(seed: int) -> Problem:
    """One to three ranks, two chunks on one or two of them now and then, sketches, any costs, sizes and caps."""
    draw = random.Random(seed)
    shape = draw.choice(((1, 3), (2, 2), (2, 3), (3, 2), (2, 2), "vee", "one", "whole"))
    split = shape not in ("vee", "whole")
    if shape == "vee":
        placement, m = [0, 1, 1, 0], 2
    elif shape == "one":
        placement, m = [0, 0], 2
    elif shape == "whole":
        placement, m = [0, 1, 2], draw.choice((2, 3))
    else:
        placement, m = list(range(shape[0])), shape[1]
    stages, ranks = len(placement), max(placement) + 1
    kind_of_time = draw.choice(((1, 1), (0, 3), (1, 9)))

    def times() -> tuple[Fraction, ...]:
        same = draw.randint(*kind_of_time)
        return tuple(Fraction(same if draw.random() < 0.5 else draw.randint(*kind_of_time), 2) for _ in range(stages))

    forward, inputs, weights = times(), times(), times()
    send = tuple(Fraction(draw.choice((0, 0, 1, 2)), 4) for _ in range(stages))
    activation = tuple(Fraction(draw.choice((1, 1, 2))) for _ in range(stages))
    held = tuple(a * draw.choice((Fraction(1), Fraction(1, 2), Fraction(0))) for a in activation)
    strands = None
    if split and draw.random() < 0.25:
        strands = sketch(placement, m, draw)
    return make_problem(
        placement=placement,
        microbatches=m,
        ranks=ranks,
        costs=Costs(forward, tuple(map(sum, zip(inputs, weights, strict=True))), inputs, weights, send),
        activation=activation,
        held_by_w=held,
        cap=[draw.choice((None, Fraction(draw.randint(1, 7)), Fraction(draw.randint(2, 12), 2))) for _ in range(ranks)],
        objective=draw.choice(tuple(Objective)),
        split=split,
        strands=strands,
    )


def sketch(placement: list[int], m: int, draw: random.Random) -> tuple[tuple[tuple[Operation, ...], ...], ...]:
    """F and I of each rank in a fixed order, W open; or W in another order of microbatches."""
    found = []
    for rank in range(max(placement) + 1):
        stages = [s for s, r in enumerate(placement) if r == rank]
        order, ahead = [], draw.randint(1, m)
        for i in range(m + ahead):
            if i < m:
                order += [Operation(Kind.F, s, i) for s in stages]
            if i >= ahead:
                order += [Operation(Kind.I, s, i - ahead) for s in reversed(stages)]
        weights = [Operation(Kind.W, s, i) for i in range(m) for s in stages]
        if draw.random() < 0.3:
            weights.reverse()
        found.append((tuple(order), tuple(weights)))
    return tuple(found)
