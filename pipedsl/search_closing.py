"""What REDUCE adds to the time of orders of computations, wherever it is put: no order escapes it.

A search orders the computations alone. Every REDUCE comes after some of them, takes its time on each rank that has a
copy of its stage, and may have others behind it; so at least that long passes after these computations. Where each can
only stand last, in one order, that is all of it, and what is shown of the computations is shown of the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from pipedsl.open_words import OpenProgram, flat_stages
from pipedsl.program import Kind, Program
from pipedsl.search_reductions import Reductions

Followers = Mapping[int, Collection[int]]
"""Of each stage that has a REDUCE those whose REDUCE comes after it."""


@dataclass(frozen=True)
class Closing:
    """Times in the file's unit, a place (replica * stages + stage) or a rank each. Empty without any REDUCE.

    `least`: what passes at least from the end of a place's last operation to the end of everything (of its rank, for
    spans). `last`: what passes so where every REDUCE stands last; None where ranks then wait for each other for ever.
    `beside`: how long all REDUCEs of a rank take. `hangs`: ranks wait for each other's, whatever the order.
    """

    least: tuple[Fraction, ...] = ()
    last: tuple[Fraction, ...] | None = None
    beside: tuple[Fraction, ...] = ()
    hangs: bool = False


def closing_of(each: OpenProgram, reductions: Reductions, span: bool) -> Closing:
    """`each`: without REDUCE in its strands. `span`: whether the objective is the span, and not the makespan."""
    program = each.program
    if not any(reductions):
        return Closing()
    before = _neighbours_before(each, reductions)
    sums = [_sums(program, [reduction.row for reduction in own], before) for own in reductions]
    forced = _Chains(program, [{stage: {other for other, (rows, _) in own.items() if other != stage and rows <= known}
                                for stage, (_, known) in own.items()} for own in sums], span)  # fmt: skip
    at_end = _Chains(program, [_in_turn(program, [each.row for each in own]) for own in reductions], span)
    completing = _completing(program)
    least, last = [Fraction(0)] * len(completing), [Fraction(0)] * len(completing)
    for place, rank in enumerate(program.placement.ravel().tolist()):
        first = [stage for stage, (_, known) in sums[rank].items() if completing[place] <= known]
        least[place] = forced.after(rank, first)
        last[place] = at_end.after(rank, list(sums[rank]))
    beside = tuple(sum((program.costs.reduce[stage] for stage in own), Fraction(0)) for own in sums)
    if forced.turns is None:  # the verifier says so
        return Closing((Fraction(0),) * len(least), None, beside, hangs=True)
    return Closing(tuple(least), None if at_end.turns is None else tuple(last), beside)


class _Chains:
    """REDUCEs that follow each other. `before[rank][stage]`: those that come before that of `stage` on the rank.

    `turns`: the stages in an order that keeps to that; None where there is none.
    """

    def __init__(self, program: Program, before: Sequence[Followers], span: bool) -> None:
        self.cost, self.span = program.costs.reduce, span
        self.holds = [set(own) for own in before]
        stages = sorted({stage for own in before for stage in own})
        self.followers = {stage: {other for own in before for other, rows in own.items() if stage in rows}
                          for stage in stages}  # fmt: skip
        self.turns = self._topological(stages)
        ends = [set(own) for own in before] if span else [set(stages)]
        self.down = [self._down(each) for each in ends]

    def after(self, rank: int, first: Sequence[int]) -> Fraction:
        """How long it takes at least until all REDUCEs are over that come after the start of these of a rank."""
        down = self.down[rank if self.span else 0]
        reached, left = set[int](), list(first)
        while left:
            stage = left.pop()
            if stage not in reached:
                reached.add(stage)
                left += self.followers[stage]
        ranks = [self.holds[rank]] if self.span else self.holds
        alone = max(sum((self.cost[stage] for stage in own & reached), Fraction(0)) for own in ranks)
        return max([alone, *(down[stage] for stage in first if stage in down)])

    def _topological(self, stages: Sequence[int]) -> list[int] | None:
        waits = dict.fromkeys(stages, 0)
        for later in self.followers.values():
            for stage in later:
                waits[stage] += 1
        found = [stage for stage in stages if not waits[stage]]
        for stage in found:
            for other in sorted(self.followers[stage]):
                waits[other] -= 1
                if not waits[other]:
                    found.append(other)
        return found if len(found) == len(stages) else None

    def _down(self, ends: set[int]) -> dict[int, Fraction]:
        """From the start of each to the end of the last of `ends` that comes after it; those alone that have one."""
        found: dict[int, Fraction] = {}
        for stage in reversed(self.turns or ()):
            later = [found[other] for other in self.followers[stage] if other in found]
            if later or stage in ends:
                found[stage] = self.cost[stage] + max(later, default=Fraction(0))
        return found


def _neighbours_before(each: OpenProgram, reductions: Reductions) -> dict[int, list[int]]:
    """Of every row some of its rank that come before it in every order; all others follow from these, one by one."""
    program = each.program
    before: dict[int, list[int]] = {reduction.row: list(reduction.after) for own in reductions for reduction in own}
    pairs = [pair for strands in each.strands for strand in strands for pair in pairwise(strand)]
    for x, y in [*pairs, *each.fences]:
        before.setdefault(y, []).append(x)
    # Backwards of later stages come first, whichever ranks are between.
    kinds, places = program.kind.tolist(), flat_stages(program).tolist()
    microbatches = program.microbatch.tolist()
    rows = {(places[row], microbatches[row]): row for row, kind in enumerate(kinds) if kind in (Kind.B, Kind.I)}
    next_of = _next_on_rank(program)
    for (place, i), row in rows.items():
        if place in next_of:
            before.setdefault(row, []).append(rows[next_of[place], i])
    for row, kind in enumerate(kinds):
        if kind == Kind.W:
            before.setdefault(row, []).append(rows[places[row], microbatches[row]])
    return before


def _next_on_rank(program: Program) -> dict[int, int]:
    """Of every place the next one of its replica on the same rank; of those alone that have one."""
    found: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    for place, rank in enumerate(program.placement.ravel().tolist()):
        replica = place // program.stages
        if (replica, rank) in last:
            found[last[replica, rank]] = place
        last[replica, rank] = place
    return found


def _sums(
    program: Program, rows: Sequence[int], before: Mapping[int, Sequence[int]]
) -> dict[int, tuple[set[int], set[int]]]:
    """The stages that a rank has a REDUCE of: its rows, and those that come before one of them in every order.

    Ranks meet at the last of several of a stage, so what comes before any comes before they meet.
    """
    found: dict[int, tuple[set[int], set[int]]] = {}
    for row in rows:
        own, known = found.setdefault(int(program.stage[row]), (set(), set()))
        own.add(row)
        left = list(before[row])
        while left:
            other = left.pop()
            if other not in known:
                known.add(other)
                left += before.get(other, ())
    return found


def _in_turn(program: Program, rows: Sequence[int]) -> dict[int, set[int]]:
    """Of the stages of a rank's REDUCEs, in this order, that before each; of several of a stage the last counts."""
    stages = [int(program.stage[row]) for row in rows]
    last = [stage for at, stage in enumerate(stages) if stage not in stages[at + 1 :]]
    return {stage: set(last[at - 1 : at]) if at else set() for at, stage in enumerate(last)}


def _completing(program: Program) -> list[set[int]]:
    """Of every place the operations that come last: B, and W."""
    found: list[set[int]] = [set() for _ in range(program.placement.size)]
    for row, (kind, place) in enumerate(zip(program.kind.tolist(), flat_stages(program).tolist(), strict=True)):
        if kind in (Kind.B, Kind.W):
            found[place].add(row)
    return found
