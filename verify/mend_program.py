"""A program whose own SEND and RECV operations are put where the safe recipe of `pipedsl.lower` has its messages.

The computations stay as they are. Their messages are in one global order, and every SEND and RECV stands at its
message's place in that order, so both ends of every two ranks list their common messages alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipedsl.calls import CallKind, Calls, MessageTags
from pipedsl.lower import lower
from pipedsl.program import COMMUNICATION, WORK, Ints, Kind, Program
from verify.matching import SENDS
from verify.structure import check_structure
from verify.transports import BY_NAME
from verify.waiting import check_waiting


@dataclass(frozen=True, eq=False)
class MendedProgram:
    """The mended program, or why there is none."""

    program: Program | None
    reason: str | None = None


def mend_program(program: Program) -> MendedProgram:
    """The program with its communication placed anew, proved safe on all transports.

    One that leaves its communication to pipedsl is safe already, and returned as it is if its structure is right.
    """
    if not np.isin(program.kind, WORK + COMMUNICATION).all():
        return MendedProgram(None, "it has operations that are neither computation nor communication nor REDUCE")
    explicit = program.explicit_communication
    bare = _rows(program, np.flatnonzero(np.isin(program.kind, WORK))) if explicit else program
    found, timeline = check_structure(bare)
    if timeline is None:
        return MendedProgram(None, found[0].message)
    if not explicit:
        return MendedProgram(program)
    mended = _placed(program, bare, lower(bare, timeline))
    found, timeline = check_structure(mended)
    if timeline is not None:
        found = check_waiting(lower(mended, timeline), tuple(BY_NAME.values()), mended)[0]
    return MendedProgram(None, found[0].message) if found else MendedProgram(mended)


def _rows(program: Program, rows: Ints) -> Program:
    """The program with these of its rows alone."""
    return replace(
        program,
        offsets=np.searchsorted(rows, program.offsets).astype(np.int64),
        kind=program.kind[rows],
        stage=program.stage[rows],
        microbatch=program.microbatch[rows],
        replica=program.replica[rows],
        span=program.span[rows],
    )


def _placed(program: Program, bare: Program, calls: Calls) -> Program:
    """The computations and REDUCEs of `bare`, with a SEND or RECV for each message where `calls` issue it."""
    kept = np.flatnonzero(calls.kind != CallKind.WAIT)
    call, op = calls.kind[kept], calls.op[kept]
    compute, sends = np.isin(call, (CallKind.COMPUTE, CallKind.REDUCE)), np.isin(call, SENDS)
    assert isinstance(calls.tags, MessageTags)
    rest, microbatch = np.divmod(np.where(compute, 0, calls.tag[kept]), program.microbatches)
    rest, to = np.divmod(rest, program.stages)
    backward, replica = np.divmod(rest, calls.tags.replicas)
    kind = np.where(sends, np.where(backward, Kind.SEND_B, Kind.SEND_F), np.where(backward, Kind.RECV_B, Kind.RECV_F))
    stage = np.where(sends, to + np.where(backward, 1, -1), to)
    columns = [
        np.where(compute, own[op], new)
        for own, new in ((bare.kind, kind), (bare.stage, stage), (bare.microbatch, microbatch), (bare.replica, replica))
    ]
    mended = replace(
        bare,
        offsets=np.searchsorted(kept, calls.offsets).astype(np.int64),
        kind=columns[0].astype(np.int8),
        stage=columns[1].astype(np.int32),
        microbatch=columns[2].astype(np.int32),
        replica=columns[3].astype(np.int32),
        span=bare.span[op],
    )
    return replace(mended, span=_spans(program, mended))


def _spans(program: Program, mended: Program) -> Ints:
    """Where the text has each operation; of one that it lacks, the computation that it goes with."""
    here, there = _names(mended), _names(program)
    order = np.argsort(there, kind="stable")
    at = np.searchsorted(there[order], here)
    found = order[np.minimum(at, len(order) - 1)]
    span: Ints = np.where(there[found] == here, program.span[found], mended.span)
    return span


def _names(program: Program) -> Ints:
    """A number for the kind, replica, stage and microbatch of every row."""
    group = program.kind.astype(np.int64) * program.placement.shape[0] + program.replica
    names: Ints = (group * program.stages + program.stage) * program.microbatches + program.microbatch
    return names
