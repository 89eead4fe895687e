"""Claims about time for every cost: the facts that a proof rests on.

The makespan f is a maximum of linear forms in the costs with coefficients >= 0: one for every path through the
dependencies, REDUCEs that meet being one node. So it is convex, and f(t * c) = t * f(c). From that, for all costs
c >= 0, with e_k the cost vector that is 1 at k and 0 elsewhere:

* f(c) <= sum of c_k * f(e_k); hence `f <= L` for a linear form L holds everywhere iff f(e_k) <= L(e_k) for all k;
* f is linear iff f(1, ..., 1) is the sum of the f(e_k): the difference of the two sides of the line above is concave
  and >= 0, so where it is 0 at a point inside it is 0 everywhere;
* at a point c inside, let u_k = (f(c + h e_k) - f(c)) / h for some h > 0. No subgradient at c has a larger k-th
  entry, and each gives f(c) at c; so where the sum of c_k * u_k is f(c), u itself is a subgradient, and
  f(x) >= sum of x_k * u_k for all x.

The largest span is the same kind of function where every rank's start is one path (`starts_are_paths`): a maximum of
linear forms, less a linear form. The costs that a claim does not name keep the file's values; together they are one
more direction, the last, whose factor is 1 in the claim (and, for a closed inequality, anything by scaling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from pipedsl.program import WORK, Costs, Kind, Program
from pipedsl.simulate import Metrics
from pipedsl.symbolic import Ratio

Vector = tuple[Fraction, ...]
"""A value for every named cost, then the factor of all others."""

STEP = Fraction(1, 1 << 20)
INSIDE: tuple[tuple[int, ...], ...] = (
    (1009, 701, 433, 293, 587, 349),
    (401, 1013, 89, 7, 59, 17),
    (97, 211, 1021, 31, 61, 5),
    (503, 499, 509, 11, 521, 127),
)
"""Points where subgradients are taken; the first entries of each are used. Few paths are equally long there."""


@dataclass(frozen=True)
class Domain:
    """The costs that a claim leaves open, each >= 0 and the same for every stage; the others are as the file has them.

    `names` are the independent ones. `split`: B means I + W, as the program or the claim has I or W. `kinds`: those of
    the program's work.
    """

    names: tuple[str, ...]
    split: bool
    own: Costs
    stages: int
    kinds: tuple[Kind, ...]

    @staticmethod
    def of(program: Program, named: set[str]) -> Domain:
        split = bool(named & {"I", "W"} or np.isin(program.kind, (Kind.I, Kind.W)).any())
        if split and "B" in named:
            named = (named - {"B"}) | {"I", "W"}
        names = tuple(name for name in ("F", "B", "I", "W", "send", "REDUCE") if name in named)
        kinds = tuple(kind for kind in WORK if (program.kind == kind).any())
        return Domain(names, split, program.costs, program.stages, kinds)

    @cached_property
    def others(self) -> bool:
        """Whether any cost that the claim does not name is more than 0; else their factor changes nothing."""
        costs = self.costs((*(Fraction(0) for _ in self.names), Fraction(1)))
        return any(any(costs.of(kind)) for kind in self.kinds) or any(costs.send)

    def own_of(self, name: str) -> tuple[Fraction, ...]:
        """The file's own cost of this name, a value for each stage."""
        return self.own.send if name == "send" else self.own.of(Kind[name])

    @property
    def directions(self) -> int:
        return len(self.names) + 1

    def unit(self, k: int) -> Vector:
        return tuple(Fraction(int(i == k)) for i in range(self.directions))

    def costs(self, at: Vector) -> Costs:
        """The costs of every stage at a point."""
        rest = at[-1]

        def of(name: str, own: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
            if name in self.names:
                return (at[self.names.index(name)],) * self.stages
            return tuple(value * rest for value in own)

        backward_input = of("I", self.own.backward_input)
        backward_weight = of("W", self.own.backward_weight)
        backward = of("B", self.own.backward)
        if self.split and ("I" in self.names or "W" in self.names):
            backward = tuple(i + w for i, w in zip(backward_input, backward_weight, strict=True))
        send, reduce = of("send", self.own.send), of("REDUCE", self.own.reduce)
        return Costs(of("F", self.own.forward), backward, backward_input, backward_weight, send, reduce)


@dataclass
class Facts:
    """What is known about a program's metrics over a domain; every run is made once."""

    program: Program
    domain: Domain
    resimulate: Callable[[Costs], Metrics]
    runs: dict[Vector, Metrics] = field(default_factory=dict)

    def metrics(self, at: Vector) -> Metrics:
        if not self.domain.others:
            at = (*at[:-1], Fraction(0))
        known = self.runs.get(at)
        if known is None:
            known = self.runs[at] = self.resimulate(self.domain.costs(at))
        return known

    def value(self, metric: str, at: Vector) -> Fraction:
        return self.metrics(at).makespan if metric == "makespan" else self.metrics(at).span

    def convex(self, metric: str) -> bool:
        """Whether the facts above hold for `makespan` or `span`."""
        return metric == "makespan" or (metric == "span" and starts_are_paths(self.program))

    def upper(self, metric: str) -> Vector:
        """The least linear form above the metric: its value in every direction."""
        return tuple(self.value(metric, self.domain.unit(k)) for k in range(self.domain.directions))

    def linear(self, metric: str) -> Vector | None:
        """The metric's coefficients where it is proved linear."""
        if not self.convex(metric):
            return None
        upper = self.upper(metric)
        ones = (Fraction(1),) * self.domain.directions
        return upper if self.value(metric, ones) == sum(upper) else None

    def lower(self, metric: str) -> Iterator[Vector]:
        """Linear forms proved to be below the metric everywhere."""
        if not self.convex(metric):
            return
        for point in INSIDE:
            at = tuple(Fraction(point[k]) for k in range(self.domain.directions))
            value = self.value(metric, at)
            form = tuple((self.value(metric, beside) - value) / STEP for beside in _steps(at))
            if sum(x * u for x, u in zip(at, form, strict=True)) == value:
                yield form

    def origin(self) -> bool:
        """Whether the claim is about the point too where every named cost is 0: something else takes time there, or
        nothing does and so the file has it."""
        return self.idle or self.metrics(self.domain.unit(self.domain.directions - 1)).makespan > 0

    @cached_property
    def idle(self) -> bool:
        """Whether nothing takes time under the file's own costs."""
        own = self.domain.own
        return not any(any(own.of(kind)) for kind in self.domain.kinds) and self.resimulate(own).makespan == 0

    def busy(self) -> tuple[Vector, ...]:
        """The busy time of every rank, which is always linear."""
        by_direction = [self.metrics(self.domain.unit(k)).busy for k in range(self.domain.directions)]
        return tuple(zip(*by_direction, strict=True))

    def most_busy(self) -> Vector | None:
        """The largest busy time, where one rank has it whatever the costs."""
        busy = self.busy()
        most = tuple(max(column) for column in zip(*busy, strict=True))
        return most if most in busy else None


def _steps(at: Vector) -> Iterator[Vector]:
    """The points beside one, a step up in each direction."""
    for k in range(len(at)):
        yield tuple(x + STEP if i == k else x for i, x in enumerate(at))


def starts_are_paths(program: Program) -> bool:
    """Whether every rank starts with an F that waits for nothing but a chain of other ranks' first F."""
    if program.explicit_communication:
        return False
    rows = [rows.start for rows in map(program.rows, range(program.ranks)) if len(rows)]
    first = {(int(program.stage[row]), int(program.microbatch[row])) for row in rows}
    return all(
        program.kind[row] == Kind.F
        and (program.stage[row] == 0 or (int(program.stage[row]) - 1, int(program.microbatch[row])) in first)
        for row in rows
    )


def bounded(facts: Facts, metric: str, op: str, form: Vector) -> bool:
    """Whether `metric op form` is proved for all costs of the domain; `metric` is `makespan` or `span`."""
    if not facts.convex(metric):
        return False
    match op:
        case "<=":
            return _below(facts.upper(metric), form)
        case "<":
            return _strictly_below(facts.upper(metric), form, facts.origin())
        case ">=":
            return any(_below(form, lower) for lower in facts.lower(metric))
        case ">":
            return any(_strictly_below(form, lower, facts.origin()) for lower in facts.lower(metric))
        case _:
            return False


def _below(small: Vector, large: Vector) -> bool:
    return all(x <= y for x, y in zip(small, large, strict=True))


def _strictly_below(small: Vector, large: Vector, origin: bool) -> bool:
    """Below by more than 0 at all costs of the domain; `origin` as in `Facts`."""
    if not _below(small, large):
        return False
    if small[-1] < large[-1]:
        return True
    return not origin and all(x < y for x, y in zip(small[:-1], large[:-1], strict=True))


def compared(op: str, left: Ratio, right: Ratio, origin: bool) -> bool:
    """Whether `left op right` is proved for all costs where both are defined; `origin` as in `Facts`."""
    if op in (">", ">="):
        left, right, op = right, left, {">": "<", ">=": "<="}[op]
    difference = right - left
    above, below = difference.numerator, difference.denominator
    if op == "==":
        return not above.terms
    if not below.never_negative():
        above, below = -above, -below
    if not below.never_negative():
        return False
    if op == "<=":
        return above.never_negative()
    if op == "!=":
        return above.positive(origin) or (-above).positive(origin)
    return above.positive(origin)
