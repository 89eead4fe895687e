"""Which rows of a Program each row needs, as arrays; found by looking (replica, stage, microbatch) up in tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipedsl.program import Ints, Kind, Program


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The rows that each row needs; (operations,) each, -1 for none.

    `local`: of the same stage and microbatch. B and I need F, W needs I, SEND_F needs F, SEND_B needs B or I.
    REDUCE needs the last B or W of its stage, and so all of them, as they run one after another.
    `upstream`: the neighbouring stage's. F(s) needs F(s - 1), B and I of s need B or I of s + 1; where the program
    places communication itself, the SEND that carries it. `posted`: the RECV that the data arrives in, if written.
    """

    local: Ints
    upstream: Ints
    posted: Ints


def cells(program: Program) -> int:
    """How many (replica, stage, microbatch) there are."""
    return int(program.placement.shape[0]) * program.stages * program.microbatches


def cell_of(program: Program) -> Ints:
    """The number of every row's (replica, stage, microbatch): (operations,), int64."""
    stage = program.replica.astype(np.int64) * program.stages + program.stage
    cell: Ints = stage * program.microbatches + program.microbatch
    return cell


def rows_by_cell(program: Program, cell: Ints, *kinds: Kind) -> Ints:
    """The row that runs one of `kinds` for each cell, -1 where none does: (cells,)."""
    table: Ints = np.full(cells(program), -1, np.int64)
    rows = np.flatnonzero(np.isin(program.kind, kinds))
    table[cell[rows]] = rows
    return table


def dependencies(program: Program) -> Dependencies:
    """Those of a program whose stages and microbatches are in range and which has about as many rows as cells."""
    cell = cell_of(program)
    local, upstream, posted = (np.full(len(program), -1, np.int64) for _ in range(3))
    forward = rows_by_cell(program, cell, Kind.F)
    backward = rows_by_cell(program, cell, Kind.B, Kind.I)
    is_forward = program.kind == Kind.F
    is_backward = np.isin(program.kind, (Kind.B, Kind.I))
    is_weights = program.kind == Kind.W
    local[is_backward] = forward[cell[is_backward]]
    local[is_weights] = rows_by_cell(program, cell, Kind.I)[cell[is_weights]]

    reduces = np.flatnonzero(program.kind == Kind.REDUCE)
    if len(reduces):
        place = program.replica.astype(np.int64) * program.stages + program.stage
        ends = np.flatnonzero(np.isin(program.kind, (Kind.B, Kind.W)))
        last: Ints = np.full(program.placement.size, -1, np.int64)
        np.maximum.at(last, place[ends], ends)
        local[reduces] = last[place[reduces]]

    has_previous = is_forward & (program.stage > 0)
    has_next = is_backward & (program.stage < program.stages - 1)
    m = program.microbatches
    upstream[has_previous] = forward[cell[has_previous] - m]
    upstream[has_next] = backward[cell[has_next] + m]

    if program.explicit_communication:
        rank = program.rank_of()
        for wants, step, send, recv in (
            (has_previous, -m, Kind.SEND_F, Kind.RECV_F),
            (has_next, m, Kind.SEND_B, Kind.RECV_B),
        ):
            sends = program.kind == send
            local[sends] = (forward if send == Kind.SEND_F else backward)[cell[sends]]
            crosses = wants & (upstream >= 0) & (rank[upstream] != rank)
            written = rows_by_cell(program, cell, send)[cell[crosses] + step]
            upstream[crosses] = np.where(written >= 0, written, upstream[crosses])
            posted[crosses] = rows_by_cell(program, cell, recv)[cell[crosses]]
    return Dependencies(local, upstream, posted)


def arrives_late(program: Program, upstream: Ints) -> NDArray[np.bool_]:
    """Which rows wait for data from another rank: (operations,)."""
    rank = program.rank_of()
    late: NDArray[np.bool_] = (upstream >= 0) & (rank[upstream] != rank)
    return late
