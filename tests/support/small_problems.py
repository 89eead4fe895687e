"""Search problems small enough for brute force, of every shape there is: what `random_problem` draws, and more."""

from __future__ import annotations

import random
from fractions import Fraction

from problems import random_problem

from pipedsl.program import Costs, Kind
from verify.search import Objective, Operation, Problem, make_problem

# Placement, microbatches, replicas: chunks, the V, looped, two pipelines the other way round, one rank, a long one.
SHAPES: dict[str, tuple[list[int], int, int]] = {
    "V": ([0, 1, 1, 0], 1, 1),
    "V of three": ([0, 1, 2, 2, 1, 0], 1, 1),
    "looped": ([0, 1, 0, 1], 1, 1),
    "three chunks": ([0, 0, 0], 1, 1),
    "neighbours": ([0, 0, 1], 1, 1),
    "replicas": ([0, 1, 1, 0], 1, 2),
    "replicas of one": ([0, 0], 2, 2),
    "one": ([0], 3, 1),
    "two": ([0, 1], 3, 1),
    "long": ([0, 1, 2, 3], 2, 1),
    "one microbatch": ([0, 1, 2, 3], 1, 1),
}


def small_problem(seed: int) -> tuple[str, Problem]:
    """A problem and the name of its shape. Every third is one of `random_problem`."""
    if seed % 3 == 0:
        return "random", random_problem(seed)
    draw = random.Random(seed)
    name = draw.choice(sorted(SHAPES))
    placement, m, replicas = SHAPES[name]
    depth, ranks = len(placement) // replicas, max(placement) + 1

    def values(*options: object) -> tuple[Fraction, ...]:
        """One a stage, the same in every replica; now and then the same everywhere."""
        same = draw.choice(options)
        own = [same if draw.random() < 0.5 else draw.choice(options) for _ in range(depth)]
        return tuple(Fraction(str(value)) for value in own * replicas)

    forward, inputs, weights = (values(*draw.choice(((1,), (0, 1, 2), ("0.7", "1.1", 1), (1, 5)))) for _ in range(3))
    whole = tuple(a + b for a, b in zip(inputs, weights, strict=True))
    if draw.random() < 0.3:
        whole = tuple(value + draw.choice((0, 1)) for value in whole[:depth]) * replicas
    activation = values(1, 1, 2)
    share = draw.choice((0, Fraction(1, 2), 1))
    backwards = draw.choice(("split", "whole", "by stage", "by microbatch"))
    cost = Costs(forward, whole, inputs, weights, values(0, 0, "0.5"))
    problem = make_problem(
        placement=placement,
        microbatches=m,
        ranks=ranks,
        costs=cost,
        activation=activation,
        held_by_w=[value * share for value in activation],
        cap=[draw.choice((None, *map(Fraction, range(1, 6)))) for _ in range(ranks)],
        objective=draw.choice(tuple(Objective)),
        strands=_strands(placement, m, backwards, draw),
        replicas=replicas,
    )
    return f"{name}, {backwards}", problem


def _strands(
    placement: list[int], m: int, backwards: str, draw: random.Random
) -> tuple[tuple[tuple[Operation, ...], ...], ...]:
    """Per rank strands of F, of B and I, and of W for each stage; which of them are whole is said by `backwards`."""

    def is_whole(stage: int, i: int) -> bool:
        parity = {"split": 1, "whole": 0, "by stage": stage % 2, "by microbatch": i % 2}
        return parity[backwards] == 0

    found: list[tuple[tuple[Operation, ...], ...]] = []
    for rank in range(max(placement) + 1):
        strands: list[list[Operation]] = []
        for stage in (stage for stage, holder in enumerate(placement) if holder == rank):
            back = [Operation(Kind.B if is_whole(stage, i) else Kind.I, stage, i) for i in range(m)]
            late = [Operation(Kind.W, stage, i) for i in range(m) if not is_whole(stage, i)]
            if len(late) > 1 and draw.random() < 0.2:
                late.reverse()
            strands += [[Operation(Kind.F, stage, i) for i in range(m)], back, late]
        if draw.random() < 0.2:  # each microbatch for itself
            strands = [[operation] for strand in strands for operation in strand] if m == 1 else strands
        found.append(tuple(tuple(strand) for strand in strands if strand))
    return tuple(found)
