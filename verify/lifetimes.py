"""That calls carry out a program: in its order, on data that has arrived, and with no buffer freed too soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipedsl.calls import CallKind, Calls, MessageTags
from pipedsl.dependencies import cell_of, cells, dependencies, rows_by_cell
from pipedsl.diagnostics import Diagnostic
from pipedsl.lower import reductions_of
from pipedsl.occupancy import requests_waited
from pipedsl.program import COMPUTE, WORK, Ints, Kind, Program
from verify.matching import SENDS


def check_correspondence(program: Program, calls: Calls) -> list[Diagnostic]:
    """Whether the calls run this program's operations, on its ranks and in its order, and name its messages."""
    rows = np.flatnonzero(np.isin(program.kind, WORK))
    computes = np.flatnonzero(np.isin(calls.kind, (CallKind.COMPUTE, CallKind.REDUCE)))
    if (
        calls.ranks == program.ranks
        and bool((calls.op < len(program)).all())
        and np.array_equal(calls.op[computes], rows)
        and np.array_equal(calls.rank_of()[computes], program.rank_of()[rows])
        and np.array_equal(calls.kind[computes] == CallKind.REDUCE, program.kind[rows] == Kind.REDUCE)
        and _sums(calls) == _sums(replace(calls, reductions=reductions_of(program, calls.kind, calls.op)))
        and isinstance(calls.tags, MessageTags)
        and len(calls.tags) == 2 * cells(program)
    ):
        return []
    return [Diagnostic("PD209", "these are not calls of this program", program.header_span)]


def _sums(calls: Calls) -> list[tuple[str, tuple[int, ...]]]:
    """What every REDUCE call sums, and over which ranks."""
    made = calls.reductions
    rows = np.flatnonzero(calls.kind == CallKind.REDUCE)
    groups = [-1] * len(rows) if made is None else made.group[rows].tolist()
    return [("", ()) if made is None or group < 0 else (made.names[group], made.ranks[group]) for group in groups]


def check_lifetimes(program: Program, calls: Calls) -> list[Diagnostic]:
    """What is wrong with calls that correspond to the program and wait once for every request."""
    rows = np.flatnonzero(np.isin(program.kind, COMPUTE))
    at: Ints = np.full(len(program), -1, np.int64)  # the call of each operation
    at[rows] = np.flatnonzero(calls.kind == CallKind.COMPUTE)
    wait, issue = requests_waited(calls)
    done: Ints = np.full(len(calls), -1, np.int64)  # the wait for each request
    done[issue] = wait
    return [*_unready(program, calls, at, done), *_freed(program, calls, at, done)]


def _unready(program: Program, calls: Calls, at: Ints, done: Ints) -> list[Diagnostic]:
    """Sends before their data is there, and computations before theirs is."""
    needs, rank = dependencies(program), program.rank_of()
    users = np.flatnonzero((needs.upstream >= 0) & (rank[needs.upstream] != rank) & np.isin(program.kind, COMPUTE))
    send = needs.upstream[users]
    maker = np.where(np.isin(program.kind[send], COMPUTE), send, needs.local[send])
    backward = program.kind[users] != Kind.F
    tags = MessageTags(program.stages, program.microbatches, int(program.placement.shape[0]))
    tag = tags.number(backward, program.replica[users], program.stage[users], program.microbatch[users])
    sent, received = (_row_of_tag(calls, kind)[tag] for kind in (CallKind.ISEND, CallKind.IRECV))
    ready = (received >= 0) & (sent >= 0)
    ready &= (done[received] >= 0) & (done[received] < at[users]) & (sent > at[maker])
    return [
        Diagnostic(
            "PD209",
            f"{program.label(row)} runs before its data has been waited for, or that is sent before it is made",
            program.span_of(row),
        )
        for row in users[~ready][:1].tolist()
    ]


def _freed(program: Program, calls: Calls, at: Ints, done: Ints) -> list[Diagnostic]:
    """Activations that B or I frees while they are being sent."""
    cell, rank = cell_of(program), program.rank_of()
    backward = rows_by_cell(program, cell, Kind.B, Kind.I)
    sends = np.flatnonzero(np.isin(calls.kind, SENDS) & (calls.op >= 0))
    made_by = calls.op[sends]
    sends = sends[np.isin(program.kind[made_by], (Kind.F, Kind.SEND_F))]
    freeing = backward[cell[calls.op[sends]]]
    blocking = calls.kind[sends] == CallKind.SEND
    bad = ~blocking & (rank[freeing] == calls.rank_of()[sends]) & ((done[sends] < 0) | (done[sends] > at[freeing]))
    return [
        Diagnostic(
            "PD305",
            f"{program.label(int(freeing[k]))} frees what `{calls.label(int(sends[k]))}` may still be sending",
            program.span_of(int(freeing[k])),
        )
        for k in np.flatnonzero(bad)[:1].tolist()
    ]


def _row_of_tag(calls: Calls, kind: CallKind) -> Ints:
    """The call of this kind for every tag, -1 for none: (tags,)."""
    table: Ints = np.full(len(calls.tags), -1, np.int64)
    rows = np.flatnonzero(calls.kind == kind)
    table[calls.tag[rows]] = rows
    return table
