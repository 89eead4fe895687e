"""Every program that one edit away from a given one: what a slip of the pen makes of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pipedsl.program import Ints, Kind, Program

_OTHER_END = {
    Kind.SEND_F: Kind.RECV_F,
    Kind.RECV_F: Kind.SEND_F,
    Kind.SEND_B: Kind.RECV_B,
    Kind.RECV_B: Kind.SEND_B,
}


@dataclass(frozen=True)
class Mutant:
    """`edit` is one of `EDITS`; `name` says what it did, as in `drop rank 1 step 4: F stage 1 microbatch 2`."""

    edit: str
    name: str
    program: Program = field(repr=False)


EDITS = ("swap", "drop", "duplicate", "move", "shift", "flip")


def mutants(program: Program) -> Iterator[Mutant]:
    """Each single edit of each operation, rank by rank, in the order of `EDITS`; the same for the same program.

    swap: with the next operation of its rank. drop. duplicate: right after itself. move: to the next rank, at the same
    step. shift: to the next microbatch (the last to the first). flip: SEND to RECV and back. Placement, and numbers of
    stages and microbatches stay; no mutant equals the program.
    """
    for rank in range(program.ranks):
        rows = program.rows(rank)
        for row in rows:
            for edit in EDITS:
                mutated = edited(program, edit, rank, row)
                if mutated is not None:
                    name = f"{edit} rank {rank} step {row - rows.start}: {program.label(row)}"
                    yield Mutant(edit, name, mutated)


def edited(program: Program, edit: str, rank: int, row: int) -> Program | None:
    """The program after one edit, or None where the edit would not change it."""
    rows = program.rows(rank)
    order = np.arange(len(program))
    lengths = np.diff(program.offsets)
    match edit:
        case "swap":
            if row + 1 == rows.stop or _same(program, row, row + 1):
                return None
            order[row], order[row + 1] = row + 1, row
        case "drop":
            order = np.delete(order, row)
            lengths[rank] -= 1
        case "duplicate":
            order = np.insert(order, row + 1, row)
            lengths[rank] += 1
        case "move":
            if program.ranks == 1:
                return None
            other = (rank + 1) % program.ranks
            there = program.rows(other)
            target = there.start + min(row - rows.start, len(there))
            order = np.insert(np.delete(order, row), target - (target > row), row)
            lengths[rank] -= 1
            lengths[other] += 1
        case "shift":
            if program.microbatches == 1:
                return None
            microbatch = program.microbatch.copy()
            microbatch[row] = (microbatch[row] + 1) % program.microbatches
            return replace(program, microbatch=microbatch)
        case "flip":
            if Kind(program.kind[row]) not in _OTHER_END:
                return None
            kind = program.kind.copy()
            kind[row] = _OTHER_END[Kind(kind[row])]
            return replace(program, kind=kind)
    return _reordered(program, order, lengths)


def _same(program: Program, one: int, other: int) -> bool:
    columns = (program.kind, program.stage, program.microbatch, program.replica)
    return all(column[one] == column[other] for column in columns)


def _reordered(program: Program, order: Ints, lengths: Ints) -> Program:
    return replace(
        program,
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(program.offsets.dtype),
        kind=program.kind[order],
        stage=program.stage[order],
        microbatch=program.microbatch[order],
        replica=program.replica[order],
        span=program.span[order],
    )
