"""Whether a program that places its own communication sends and receives every message once, and no other (PD210)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Ints, Kind, Program
from verify.wording import first_few

MOST_FINDINGS = 20
_DIRECTIONS = (
    (Kind.SEND_F, 0, 1, "the activation"),
    (Kind.RECV_F, -1, 0, "the activation"),
    (Kind.SEND_B, 0, -1, "the gradient"),
    (Kind.RECV_B, 1, 0, "the gradient"),
)


def check_communication(program: Program) -> list[Diagnostic]:
    """Missing and needless SEND and RECV operations; one finding per kind and pair of stages."""
    if not program.explicit_communication:
        return []
    m = program.microbatches
    cell = (program.replica.astype(np.int64) * program.stages + program.stage) * m + program.microbatch
    needless: list[Diagnostic] = []
    found: list[Diagnostic] = []
    for kind, source, target, what in _DIRECTIONS:
        rows = np.flatnonzero(program.kind == kind)
        crosses = _crossing(program, source, target)
        needless += _needless(program, rows[~crosses[program.replica[rows], program.stage[rows]]], target + source)
        present = np.zeros((*crosses.shape, m), bool).reshape(-1)
        present[cell[rows]] = True
        absent = crosses[..., None] & ~present.reshape((*crosses.shape, m))
        for replica, stage in np.argwhere(absent.any(axis=2)).tolist()[: MOST_FINDINGS - len(found)]:
            found.append(_missing(program, kind, what, (replica, stage, target + source), absent[replica, stage]))
    return (needless + found)[:MOST_FINDINGS]


def _crossing(program: Program, source: int, target: int) -> NDArray[np.bool_]:
    """For each (replica, stage): whether its message from `source` to `target` (relative stages) changes rank."""
    crosses = np.zeros(program.placement.shape, bool)
    step = source + target
    stages = np.arange(program.stages)
    inside = (stages + step >= 0) & (stages + step < program.stages)
    here, there = stages[inside], stages[inside] + step
    crosses[:, here] = program.placement[:, here] != program.placement[:, there]
    return crosses


def _needless(program: Program, rows: Ints, step: int) -> list[Diagnostic]:
    if not len(rows):
        return []
    row = int(rows[0])
    other = int(program.stage[row]) + step
    ends = not 0 <= other < program.stages
    why = "there is no stage beyond it" if ends else f"stage {other} is on the same rank"
    more = f" (and {len(rows) - 1} more like it)" if len(rows) > 1 else ""
    message = f"{program.label(row)} is needless: {why}{more}"
    return [Diagnostic("PD210", message, program.span_of(row), help="remove it")]


def _missing(
    program: Program, kind: Kind, what: str, where: tuple[int, int, int], absent: NDArray[np.bool_]
) -> Diagnostic:
    """At the computation that makes the message, or needs it."""
    replica, stage, step = where
    microbatches = np.flatnonzero(absent)
    sends = kind in (Kind.SEND_F, Kind.SEND_B)
    names = f"microbatch{'es' if len(microbatches) > 1 else ''} {first_few(microbatches.tolist(), len(microbatches))}"
    copy = f" of replica {replica}" if program.placement.shape[0] > 1 else ""
    toward = f"{'to' if sends else 'from'} stage {stage + step}"
    message = f"{kind.name} of stage {stage}{copy} is missing for {names}: {what} {toward}"
    kinds = (Kind.F,) if kind in (Kind.SEND_F, Kind.RECV_F) else (Kind.B, Kind.I)
    rows = np.flatnonzero(np.isin(program.kind, kinds) & (program.stage == stage) & (program.replica == replica))
    row = int(rows[program.microbatch[rows] == microbatches[0]][0])
    return Diagnostic(
        "PD210",
        message,
        program.span_of(row),
        (Label(program.span_of(row), "made here" if sends else "needed here"),),
        help=f"write {kind.name} {'after' if sends else 'before'} it: all communication is by hand where some is",
    )
