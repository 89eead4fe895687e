"""Open words: which operations of a rank form strands that any interleaving may mix, each in its own order.

`A || B` gives the strands of A beside those of B. In `A (B || C) D` the word goes on before and after: one strand is
A B D, the other C, and C has to keep between A and D: it has a *fence* to the end of A, and D one to the end of C.
Often they follow from what the operations need; else a search knows them as what an operation needs of its own rank, of
which each has at most one. Where one does not say all that an operation has to wait for, the word is refused (PD601).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label
from pipedsl.evaluate import fail
from pipedsl.program import Ints, Kind, Program
from pipedsl.syntax import Op
from pipedsl.words import CLOSE, NEXT, OPEN, Operations

_BACKWARD = (Kind.B, Kind.I)
_HELP = "put one of them in order: beside `||`, an operation may wait for the end of one word, not of several"


@dataclass(frozen=True)
class Strands:
    """The strands of one rank, as row numbers. `fences`: (x, y), where the text puts x before y and no strand does."""

    strands: tuple[tuple[int, ...], ...]
    fences: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class OpenProgram:
    """A program whose rows have no order but within their strand. `strands[r]`: rows of the program.

    Rows stand as the text has them. `placement`: the name of the one that was chosen for `place ?`, or None. `fences`:
    (x, y) of one rank, y after x, which implies what y needs of its own rank otherwise; at most one for each y. Of a
    REDUCE they are all that it waits for.
    """

    program: Program
    strands: tuple[tuple[tuple[int, ...], ...], ...] = field(repr=False)
    placement: str | None = None
    fences: tuple[tuple[int, int], ...] = field(default=(), repr=False)


Chains = list[list[int]]


def strands_of(operations: Operations, names: Sequence[object]) -> Strands:
    """The strands of a rank. `names[row]`: its kind and chunk; words with the same names go on in one strand."""
    if operations.marks is None:
        return Strands((tuple(range(len(operations.op))),))
    fences: list[tuple[int, int]] = []
    # Of every open parenthesis: the operands before, and what stands before it in its own sequence.
    outside: list[tuple[Chains, Chains]] = []
    current: Chains = []
    run: list[int] = []
    for mark in operations.marks.tolist():
        if mark >= 0:
            run.append(mark)
            continue
        if run:
            current, run = _follow(current, [run], names, fences), []
        if mark == OPEN:
            outside.append(([], current))
            current = []
        elif mark == NEXT:
            outside[-1][0].extend(current)
            current = []
        elif mark == CLOSE:
            operands, before = outside.pop()
            current = _follow(before, operands + current, names, fences)
    if run:
        current = _follow(current, [run], names, fences)
    return Strands(tuple(tuple(chain) for chain in current), tuple(fences))


def _follow(before: Chains, after: Chains, names: Sequence[object], fences: list[tuple[int, int]]) -> Chains:
    """The chains of a word and the next one. Each chain goes on in at most one, by the names that both have.

    With none in common, in the last: `F || I || W` is written in the order of their dependencies.
    """
    if not before or not after:
        return before or after
    own = [{names[row] for row in chain} for chain in before]
    free = set(range(len(before)))
    longer = [list(chain) for chain in before]
    for chain in after:
        theirs = {names[row] for row in chain}
        partner = max(free, key=lambda k: (len(own[k] & theirs), k), default=None)
        fences.extend((other[-1], chain[0]) for k, other in enumerate(before) if k != partner)
        if partner is None:
            longer.append(chain)
        else:
            free.remove(partner)
            longer[partner].extend(chain)
    return longer


def check_strands(
    program: Program, rank: int, found: Strands, ops: Sequence[Op], counted: Ints
) -> list[tuple[int, int]]:
    """The fences that do not follow from anything else, as those of an OpenProgram.

    Refuses (PD601) what those cannot say, and one kind and chunk counted in two strands. Rows are those of the rank,
    numbered from 0. `ops[row]`: the operation that wrote it; `counted[row]`: whether its microbatch was counted.
    """
    rows = program.rows(rank)
    strand_of: dict[tuple[int, int], tuple[int, int]] = {}
    kinds, stages = program.kind[rows.start : rows.stop], flat_stages(program, slice(rows.start, rows.stop))
    for number, strand in enumerate(found.strands):
        for row in strand:
            if not counted[row]:
                continue
            name = (int(kinds[row]), int(stages[row]))
            other, where = strand_of.setdefault(name, (number, row))
            if other != number:
                label = Label(ops[where].span, "and here")
                message = f"`{ops[row].kind}` is counted in two strands: which microbatch each takes would be open too"
                help_ = "give one of them indices, as in `F[i]`, or count in one strand alone"
                raise DiagnosticError([Diagnostic("PD601", message, ops[row].span, (label,), help=help_)])
    return _needed(program, rank, found, ops) if found.fences else []


def _needed(program: Program, rank: int, found: Strands, ops: Sequence[Op]) -> list[tuple[int, int]]:
    place = {row: (k, at) for k, strand in enumerate(found.strands) for at, row in enumerate(strand)}
    without = _clock(program, rank, found.strands, ())
    clock = _clock(program, rank, found.strands, found.fences)

    def knows(row: int, other: int, by: list[list[int]]) -> bool:
        k, at = place[other]
        return by[row][k] >= at

    missing: dict[int, list[int]] = {}
    for before, after in found.fences:
        if not knows(after, before, without):
            missing.setdefault(after, []).append(before)
    own = _own_needs(program, rank)
    needed = []
    for row, waits in missing.items():
        if program.kind[program.rows(rank).start + row] == Kind.REDUCE:
            needed += [(x, row) for x in waits]  # which a search puts after all of them
            continue
        every = waits + ([own[row]] if row in own else [])
        last = next((x for x in every if all(knows(x, other, clock) for other in every)), None)
        if last is None:
            message = "this would have to wait for the ends of several words, which search cannot hold it to"
            label = Label(ops[waits[0]].span, "for this")
            raise DiagnosticError([Diagnostic("PD601", message, ops[row].span, (label,), help=_HELP)])
        if last in waits:
            needed.append((last, row))
    return needed


def _own_needs(program: Program, rank: int) -> dict[int, int]:
    """What a row needs of the same stage and microbatch: F before I or B, I before W. Rows of the rank."""
    where = _rows_by_name(program, rank)
    before = {Kind.B: Kind.F, Kind.I: Kind.F, Kind.W: Kind.I}
    return {
        row: where[before[Kind(kind)], stage, i]
        for (kind, stage, i), row in where.items()
        if kind in before and (before[Kind(kind)], stage, i) in where
    }


def _rows_by_name(program: Program, rank: int) -> dict[tuple[int, int, int], int]:
    """Row of the rank by kind, stage (of all replicas) and microbatch."""
    rows = program.rows(rank)
    own = slice(rows.start, rows.stop)
    columns = (program.kind[own].tolist(), flat_stages(program, own).tolist(), program.microbatch[own].tolist())
    return {key: row for row, key in enumerate(zip(*columns, strict=True))}


def flat_stages(program: Program, rows: slice = slice(None)) -> Ints:
    """The stage of each of the rows, numbered through all replicas: (operations,)."""
    return program.replica[rows].astype(np.int64) * program.stages + program.stage[rows]


def _clock(
    program: Program, rank: int, strands: Sequence[Sequence[int]], fences: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Per row and strand, the place in the strand of the last operation that is before the row in every order.

    Rows that wait for each other in a circle know nothing; the circle is found elsewhere.
    """
    count = len(program.rows(rank))
    before: list[list[int]] = [[] for _ in range(count)]
    for strand in strands:
        for k in range(1, len(strand)):
            before[strand[k]].append(strand[k - 1])
    for x, y in fences:
        before[y].append(x)
    where = _rows_by_name(program, rank)
    by_replica: dict[int, list[int]] = {}
    for replica, stage in program.chunks(rank):
        by_replica.setdefault(replica, []).append(replica * program.stages + stage)
    for (kind, stage, i), row in where.items():
        stages = by_replica[stage // program.stages]
        at = stages.index(stage)
        needs: list[tuple[Kind, int]] = []
        if kind == Kind.F and at:
            needs = [(Kind.F, stages[at - 1])]
        elif kind in _BACKWARD:
            needs = [(Kind.F, stage)]
            needs += [(each, stages[at + 1]) for each in _BACKWARD if at + 1 < len(stages)]
        elif kind == Kind.W:
            needs = [(Kind.I, stage)]
        before[row].extend(where[(each, s, i)] for each, s in needs if (each, s, i) in where)
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [len(items) for items in before]
    for row, items in enumerate(before):
        for x in items:
            after[x].append(row)
    clock = [[-1] * len(strands) for _ in range(count)]
    place = {row: (k, at) for k, strand in enumerate(strands) for at, row in enumerate(strand)}
    order = [row for row in range(count) if not waits[row]]
    for row in order:
        k, at = place[row]
        known = clock[row]
        for x in before[row]:
            for each, value in enumerate(clock[x]):
                known[each] = max(known[each], value)
        known[k] = at  # after what came before: its own place is the last
        for y in after[row]:
            waits[y] -= 1
            if not waits[y]:
                order.append(y)
    return clock


def check_possible(open_program: OpenProgram) -> None:
    """PD209 where no order of all ranks' strands runs to its end."""
    program = open_program.program
    count = len(program)
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    columns = (program.kind.tolist(), flat_stages(program).tolist(), program.microbatch.tolist())
    where = {key: row for row, key in enumerate(zip(*columns, strict=True))}
    depth = program.stages

    def need(row: int, kinds: Sequence[Kind], stage: int, i: int) -> None:
        for kind in kinds:
            other = where.get((kind, stage, i))
            if other is not None:
                after[other].append(row)
                waits[row] += 1

    for (kind, stage, i), row in where.items():
        if kind == Kind.F:
            if stage % depth:
                need(row, (Kind.F,), stage - 1, i)
        elif kind in _BACKWARD:
            need(row, (Kind.F,), stage, i)
            if (stage + 1) % depth:
                need(row, _BACKWARD, stage + 1, i)
        else:
            need(row, (Kind.I,), stage, i)
    for strands in open_program.strands:
        for strand in strands:
            for k in range(1, len(strand)):
                after[strand[k - 1]].append(strand[k])
                waits[strand[k]] += 1
    for x, y in open_program.fences:
        after[x].append(y)
        waits[y] += 1
    order = [row for row in range(count) if not waits[row]]
    for row in order:
        for y in after[row]:
            waits[y] -= 1
            if not waits[y]:
                order.append(y)
    if len(order) < count:
        stuck = next(row for row in range(count) if waits[row])
        fail(
            "PD209",
            f"no order of these words runs to its end: {program.label(stuck)} waits for what comes after it",
            program.span_of(stuck),
            help="the words beside `||` keep their own order: change it, or open it too",
        )
