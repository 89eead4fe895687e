"""Which counts of a word grow with m: where the middle of every rank repeats by whole microbatches.

A period of `period` microbatches more runs, on each rank, one term so many times more that every kind and chunk has as
many operations more. Whether the longer schedule is right is not known from that; it is proved, or not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from pipedsl.folding import Term, expand_term
from pipedsl.rank_classes import RankClass


@dataclass(frozen=True)
class Growth:
    """`terms[c]`: which term of class c grows. `rounds[c]`: by how many rounds for a period. `shortest`: m at least.

    `microbatches`: of the words; `default`: what m is where nothing is said, which differs by whole periods.
    """

    period: int
    microbatches: int
    terms: tuple[int, ...]
    rounds: tuple[int, ...]
    shortest: int
    default: int

    @property
    def remainder(self) -> int:
        """What m leaves by the period."""
        return self.microbatches % self.period

    def count(self, which: int, slope: int, base: int) -> str:
        """The count of the term that grows, of class `which`; `slope * r + base` at `microbatches`."""
        rounds, period = self.rounds[which], self.period
        less = rounds * (self.microbatches // period) - base
        text = "m" if period == 1 else f"m // {period}"
        if rounds > 1:
            text = f"{rounds} * m" if period == 1 else f"{rounds} * ({text})"
        if less:
            text += f" {'-' if less > 0 else '+'} {abs(less)}"
        if slope:
            size = "r" if abs(slope) == 1 else f"{abs(slope)} * r"
            text += f" {'+' if slope > 0 else '-'} {size}"
        return text if text == "m" else f"({text})"


def growth_of(classes: Sequence[RankClass], microbatches: int) -> Growth | None:
    """None where some rank has no such term."""
    found = [_largest(each) for each in classes]
    terms = [each for each in found if each is not None]
    if len(terms) < len(found) or not terms:
        return None
    period = lcm(*(size for _, size in terms))
    if period > microbatches:
        return None
    rounds = [period // size for _, size in terms]
    fewer = min(
        each.terms[term].at(rank) // more
        for each, (term, _), more in zip(classes, terms, rounds, strict=True)
        for rank in range(each.first, each.last + 1)
    )
    shortest = microbatches - period * min(fewer, (microbatches - 1) // period)
    return Growth(period, microbatches, tuple(term for term, _ in terms), tuple(rounds), shortest, microbatches)


def _largest(found: RankClass) -> tuple[int, int] | None:
    """The term that runs most of the operations and has all kinds equally often, and how often."""
    bodies = [Counter(expand_term(Term(term.body, 1))) for term in found.terms]
    names = set().union(*bodies)
    if any("[" in name for name in names):
        return None
    best = None
    for number, (term, body) in enumerate(zip(found.terms, bodies, strict=True)):
        times = set(body.values())
        if len(times) > 1 or set(body) != names:
            continue
        weight = min(term.at(found.first), term.at(found.last)) * body.total()
        if weight and (best is None or weight > best[0]):
            best = (weight, number, times.pop())
    return None if best is None else best[1:]
