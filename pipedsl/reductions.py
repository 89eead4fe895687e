"""Which REDUCE operations of a program meet: those of the copies of one stage, over ranks.

A rank that holds several copies of a stage has a REDUCE for each. Only the last of them meets the other ranks; those
before it take no time and say that their copy's gradients are complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipedsl.program import Ints, Kind, Program


@dataclass(frozen=True, eq=False)
class Meetings:
    """`stage[row]`: of a REDUCE that meets those of other ranks, or stands for all copies of its stage; else -1.

    `rows[stage]`: those that meet, one a rank, in the order of ranks.
    """

    stage: Ints
    rows: dict[int, list[int]]


def meetings(program: Program) -> Meetings:
    """Those of a program whose stages are in range."""
    stage: Ints = np.full(len(program), -1, np.int64)
    reduces = np.flatnonzero(program.kind == Kind.REDUCE)
    rank = program.rank_of()
    last: dict[tuple[int, int], int] = {}  # of a stage on a rank
    for row in reduces.tolist():
        last[int(program.stage[row]), int(rank[row])] = row
    rows: dict[int, list[int]] = {}
    for (each, _), row in sorted(last.items()):
        stage[row] = each
        rows.setdefault(each, []).append(row)
    return Meetings(stage, rows)
