"""REDUCE in a search: the search orders the computations alone, and each REDUCE is then put where it may stand.

A REDUCE meets those of other ranks and holds its rank until they are there, of which the search knows what that adds at
least (`search_closing`). What an answer takes is what the simulator says of it with every REDUCE.

A span is no shorter for it. A REDUCE that takes time or waits ends after every B of every copy of its stage, and
so after every F of all copies: each rank has begun by then, at the same time as without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label
from pipedsl.open_words import OpenProgram
from pipedsl.program import Ints, Kind, Program
from pipedsl.simulate import Stuck, measure, simulate


@dataclass(frozen=True)
class Reduction:
    """`row`: of the program; `after`: the rows of its rank that have to come before it."""

    row: int
    after: frozenset[int]


Reductions = tuple[tuple[Reduction, ...], ...]
"""Those of every rank, in an order in which they may stand."""


def without_reductions(each: OpenProgram) -> tuple[OpenProgram, Reductions]:
    """The same with every REDUCE left out of its strands, and what it comes after: all that the text has before it, and
    all that it sums. Raises PD601 where something is to come after one."""
    program = each.program
    reduces = program.kind == Kind.REDUCE
    if not reduces.any():
        return each, ((),) * program.ranks
    after: dict[int, set[int]] = {row: _summed(program, row) for row in np.flatnonzero(reduces).tolist()}
    pairs = [pair for strands in each.strands for strand in strands for pair in pairwise(strand)]
    for x, y in [*pairs, *each.fences]:
        if reduces[y]:
            after[y].add(x)
        elif reduces[x]:
            raise _followed(program, x, y)
    fences = [(x, y) for x, y in each.fences if not reduces[y]]
    strands = tuple(tuple(tuple(row for row in strand if not reduces[row]) for strand in of) for of in each.strands)
    turns = _turns(program, after)
    found = tuple(_in_turn(program, [row for row in program.rows(rank) if reduces[row]], after, turns)
                  for rank in range(program.ranks))  # fmt: skip
    return replace(each, strands=strands, fences=tuple(fences)), found


def with_reductions(
    program: Program, rows: Sequence[Sequence[int]], reductions: Reductions, objective: str
) -> list[list[int]]:
    """Every rank's rows with those of its REDUCEs: all at its end, or each as soon as may be where that is better."""
    late = [[*own, *(each.row for each in found)] for own, found in zip(rows, reductions, strict=True)]
    if not any(reductions):
        return late
    early = [_early(own, found) for own, found in zip(rows, reductions, strict=True)]

    def value(chosen: list[list[int]]) -> Fraction | None:
        ordered = in_order(program, chosen)
        try:
            found: Fraction = getattr(measure(ordered, simulate(ordered)), objective)
        except Stuck:
            return None
        return found

    at_end, soon = value(late), value(early)
    return early if soon is not None and (at_end is None or soon < at_end) else late


def in_order(program: Program, rows: Sequence[Sequence[int]]) -> Program:
    """The program with every rank's rows in this order."""
    order: Ints = np.array([row for own in rows for row in own], np.int64)
    return replace(
        program,
        kind=program.kind[order],
        stage=program.stage[order],
        microbatch=program.microbatch[order],
        replica=program.replica[order],
        span=program.span[order],
    )


def _summed(program: Program, row: int) -> set[int]:
    """The backwards whose gradients a REDUCE sums."""
    own = np.isin(program.kind, (Kind.B, Kind.W)) & (program.stage == program.stage[row])
    return set(np.flatnonzero(own & (program.replica == program.replica[row])).tolist())


def _turns(program: Program, after: dict[int, set[int]]) -> dict[int, int]:
    """The turn of each stage that has a REDUCE: the lowest first, where no rank has them in another order."""
    stage = {row: int(program.stage[row]) for row in after}
    before: dict[int, set[int]] = {each: set() for each in sorted(stage.values())}
    for row, rows in after.items():
        before[stage[row]] |= {stage[other] for other in rows & stage.keys()} - {stage[row]}
    turns, left = dict[int, int](), list(before)
    while left:
        first = next((each for each in left if before[each].isdisjoint(left)), left[0])
        left.remove(first)
        turns[first] = len(turns)
    return turns


def _in_turn(
    program: Program, rows: list[int], after: dict[int, set[int]], turns: dict[int, int]
) -> tuple[Reduction, ...]:
    """In the order of the turns where the text leaves it open: the same on all ranks, where none waits for another."""
    left = sorted(rows, key=lambda row: (turns[int(program.stage[row])], int(program.replica[row])))
    found: list[Reduction] = []
    while left:
        row = next((row for row in left if after[row].isdisjoint(left)), left[0])
        left.remove(row)
        found.append(Reduction(row, frozenset(after[row])))
    return tuple(found)


def _early(rows: Sequence[int], reductions: Sequence[Reduction]) -> list[int]:
    placed = list(rows)
    for each in reductions:
        last = max((at for at, row in enumerate(placed) if row in each.after), default=-1)
        placed.insert(last + 1, each.row)
    return placed


def _followed(program: Program, row: int, other: int) -> DiagnosticError:
    """PD601: something after a REDUCE."""
    message = "a search puts each `REDUCE` after all that stands before it, so nothing else can come after one"
    label = Label(program.span_of(row), "the `REDUCE`")
    help_ = "move the `REDUCE` to the end of its word; where it may stand sooner, search puts it there"
    return DiagnosticError([Diagnostic("PD601", message, program.span_of(other), (label,), help=help_)])
