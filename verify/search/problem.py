"""A search problem: what every rank runs, in which orders it may, and what an order costs. Knows no language.

Times and sizes are integers in a common unit (`time_unit`, `size_unit` turn them back into the file's), so that every
comparison is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from math import floor, gcd, lcm
from typing import NamedTuple

from pipedsl.program import COMPUTE, Costs, Kind


class Operation(NamedTuple):
    """One computation of one stage for one microbatch."""

    kind: Kind
    stage: int
    microbatch: int


Strand = tuple[Operation, ...]
Orders = tuple[tuple[Operation, ...], ...]


class Objective(Enum):
    """What is made small: the end of the last operation, or the longest time that one rank is at it."""

    MAKESPAN = "makespan"
    SPAN = "span"


class Infeasible(Exception):
    """No order keeps to the caps. `rank` cannot; -1: several together. It needs at least `needed`; 0: unknown."""

    def __init__(self, rank: int, needed: int, reason: str) -> None:
        self.rank, self.needed, self.reason = rank, needed, reason
        super().__init__(reason)


@dataclass(frozen=True)
class Problem:
    """Orders of operations to choose from, and what they cost.

    `placement`: stage -> rank. With `replicas`, stages are numbered through all of them, the same number in each;
    nothing goes from the last of one to the first of the next. `strands[r]`: sequences that rank r interleaves, each in
    its own order; together every computation of the rank once: F and B, or F, I and W, of every stage it holds and
    every microbatch. `duration[k]`: per stage, for each kind k of computation, in multiples of `time_unit`. `send[s]`:
    from stage s to a neighbour on another rank. `activation[s]` is taken from the start of F to the end of B or W; I
    gives back all but `held_by_w[s]`. `cap[r]`: what rank r may hold of them at once; None is no cap. `fences`: (x, y)
    of one rank: y runs after x, which implies what y needs of the same stage; at most one for each y.

    `closing[s]`: what passes at least from the end of the last operation of stage s to the end of everything (of its
    rank, for spans); `beside[r]`: how long rank r is busy with other things after some of its operations, and ends
    after those too. Both as of a rank's sums of gradients; nothing where they are left out.
    """

    ranks: int
    microbatches: int
    placement: tuple[int, ...]
    strands: tuple[tuple[Strand, ...], ...] = field(repr=False)
    duration: dict[Kind, tuple[int, ...]]
    send: tuple[int, ...]
    activation: tuple[int, ...]
    held_by_w: tuple[int, ...]
    cap: tuple[int | None, ...]
    objective: Objective = Objective.MAKESPAN
    time_unit: Fraction = Fraction(1)
    size_unit: Fraction = Fraction(1)
    replicas: int = 1
    fences: tuple[tuple[Operation, Operation], ...] = field(default=(), repr=False)
    closing: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.closing:
            object.__setattr__(self, "closing", (0,) * len(self.placement))
        if not self.beside:
            object.__setattr__(self, "beside", (0,) * self.ranks)

    @property
    def stages(self) -> int:
        """Of all replicas together."""
        return len(self.placement)

    @property
    def depth(self) -> int:
        """Stages of one replica: stages s and s + 1 are neighbours unless s + 1 is a multiple of it."""
        return len(self.placement) // self.replicas

    @cached_property
    def chains(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per rank, its stages, for each replica that it has any of."""
        found: list[dict[int, list[int]]] = [{} for _ in range(self.ranks)]
        for stage, rank in enumerate(self.placement):
            found[rank].setdefault(stage // self.depth, []).append(stage)
        return tuple(tuple(map(tuple, replicas.values())) for replicas in found)

    @property
    def operations(self) -> int:
        return sum(len(strand) for rank in self.strands for strand in rank)

    def with_cap(self, cap: Fraction | int | Sequence[Fraction | int | None] | None) -> Problem:
        """The same problem under another cap, in the file's unit; one for all ranks or one for each.

        What does not fit anyway is rounded down.
        """
        caps = list(cap) if isinstance(cap, Sequence) else [cap] * self.ranks
        return replace(self, cap=tuple(None if c is None else floor(Fraction(c) / self.size_unit) for c in caps))

    @cached_property
    def longest_close(self) -> int:
        """No rank ends later than this after the last operation of all."""
        return max(*self.closing, *self.beside, 0)

    def with_closing(self, closing: Sequence[Fraction]) -> Problem:
        """The same problem with other times for `closing`, in the file's unit."""
        return replace(self, closing=tuple(int(value / self.time_unit) for value in closing))

    def with_objective(self, objective: Objective) -> Problem:
        return replace(self, objective=objective)


def open_strands(
    placement: Sequence[int], ranks: int, microbatches: int, split: bool = True
) -> tuple[tuple[Strand, ...], ...]:
    """The fully open orders: per rank and stage on it one strand of F, one of I and one of W (of F and of B)."""
    kinds = (Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B)
    strands: list[list[Strand]] = [[] for _ in range(ranks)]
    for stage, rank in enumerate(placement):
        strands[rank] += (tuple(Operation(kind, stage, i) for i in range(microbatches)) for kind in kinds)
    return tuple(map(tuple, strands))


def make_problem(
    *,
    placement: Sequence[int],
    microbatches: int,
    costs: Costs,
    cap: Fraction | int | Sequence[Fraction | int | None] | None = None,
    activation: Fraction | int | Sequence[Fraction] = 1,
    held_by_w: Fraction | int | Sequence[Fraction] | None = None,
    objective: Objective = Objective.MAKESPAN,
    strands: tuple[tuple[Strand, ...], ...] | None = None,
    split: bool = True,
    ranks: int | None = None,
    replicas: int = 1,
    fences: tuple[tuple[Operation, Operation], ...] = (),
    closing: Sequence[Fraction] = (),
    beside: Sequence[Fraction] = (),
) -> Problem:
    """A problem from exact rationals, scaled to integers. Fully open where no strands are given.

    Raises ValueError for sizes that make no sense: `held_by_w` not between 0 and `activation`, a negative duration,
    stages that are not as many in every replica.
    """
    stages = len(placement)
    if replicas < 1 or stages % replicas:
        raise ValueError("every replica has the same number of stages")
    ranks = max(placement) + 1 if ranks is None else ranks
    activations = _per_stage(activation, stages)
    held = activations if held_by_w is None else _per_stage(held_by_w, stages)
    if any(h < 0 or h > a for a, h in zip(activations, held, strict=True)):
        raise ValueError("held_by_w is between nothing and the whole activation")
    sizes = (*activations, *held)
    size_unit = _unit(sizes)
    times = [value for kind in COMPUTE for value in costs.of(kind)] + list(costs.send)
    if any(closing) or any(beside):
        times += [*costs.reduce, *closing, *beside]
    if any(value < 0 for value in times):
        raise ValueError("a duration is negative")
    time_unit = _unit(times)
    problem = Problem(
        ranks=ranks,
        microbatches=microbatches,
        placement=tuple(placement),
        strands=open_strands(placement, ranks, microbatches, split) if strands is None else strands,
        duration={kind: tuple(int(value / time_unit) for value in costs.of(kind)) for kind in COMPUTE},
        send=tuple(int(value / time_unit) for value in costs.send),
        activation=tuple(int(value / size_unit) for value in activations),
        held_by_w=tuple(int(value / size_unit) for value in held),
        cap=(None,) * ranks,
        objective=objective,
        time_unit=time_unit,
        size_unit=size_unit,
        replicas=replicas,
        fences=fences,
        closing=tuple(int(value / time_unit) for value in closing),
        beside=tuple(int(value / time_unit) for value in beside),
    )
    return problem.with_cap(cap)


def uniform_costs(stages: int, forward: object, inputs: object, weights: object, send: object = 0) -> Costs:
    """The same durations for every stage; B is I and W."""
    f, i, w, s = (Fraction(str(value)) for value in (forward, inputs, weights, send))
    return Costs((f,) * stages, (i + w,) * stages, (i,) * stages, (w,) * stages, (s,) * stages)


def _unit(values: Iterable[Fraction]) -> Fraction:
    """The largest unit that makes integers of all values."""
    found = list(values)
    common = lcm(*(value.denominator for value in found))
    return Fraction(gcd(*(int(value * common) for value in found)) or 1, common)


def _per_stage(value: Fraction | int | Sequence[Fraction], stages: int) -> tuple[Fraction, ...]:
    if isinstance(value, Sequence):
        return tuple(Fraction(one) for one in value)
    return (Fraction(value),) * stages
