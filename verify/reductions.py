"""Whether reductions come together: REDUCE operations of a program, and the `reduce` calls that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Kind, Program
from verify.naming import span_of
from verify.wording import counted_list, first_few, rank_span

_MOST_FINDINGS = 20


# ------------------------------------------------------------------ of a program


def check_reductions(program: Program) -> list[Diagnostic]:
    """PD206 where one copy of a stage has a REDUCE and another has none: it would wait for ever."""
    found: list[Diagnostic] = []
    rows = np.flatnonzero(program.kind == Kind.REDUCE)
    copies = program.placement.shape[0]
    for stage in np.unique(program.stage[rows]).tolist() if copies > 1 else ():
        own = rows[program.stage[rows] == stage]
        there = sorted(set(program.replica[own].tolist()))
        absent = sorted(set(range(copies)) - set(there))
        if not absent:
            continue
        ranks = [int(program.placement[replica, stage]) for replica in absent]
        message = (
            f"REDUCE of stage {stage} runs for {_replicas(program, there, stage)}, but never for "
            f"{_replicas(program, absent, stage)}"
        )
        first = int(own[0])
        rank = program.placement[program.replica[first], stage]
        label = Label(program.span_of(first), f"rank {rank} sums the gradients of stage {stage} here")
        help_ = "write a REDUCE for all copies of a stage, or for none: then they are summed at the end of the step"
        found.append(Diagnostic("PD206", message, rank_span(program, ranks[0]), (label,), help=help_))
    return found[:_MOST_FINDINGS]


def _replicas(program: Program, numbers: Sequence[int], stage: int) -> str:
    """`replica up on rank 1`."""
    named = [f"{program.replica_name(k)} on rank {program.placement[k, stage]}" for k in numbers]
    return f"replica {first_few(named, len(named))}"


# --------------------------------------------------------------------- of calls


@dataclass(frozen=True, eq=False)
class Meeting:
    """Rows of `reduce` calls that meet, one for each of `ranks`, in order; or as many of them as there are."""

    rows: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def complete(self) -> bool:
        return len(self.rows) == len(self.ranks)


def meetings_of(calls: Calls) -> list[Meeting]:
    """Which reductions meet: the k-th of every rank of what is summed under one name by the same ranks."""
    if calls.reductions is None:
        return []
    rank_of, met = calls.rank_of(), dict[tuple[int, int], list[int]]()
    count = dict[tuple[int, int], int]()
    for row in np.flatnonzero(calls.kind == CallKind.REDUCE).tolist():
        of_rank = int(calls.reductions.group[row]), int(rank_of[row])
        count[of_rank] = number = count.get(of_rank, -1) + 1
        met.setdefault((of_rank[0], number), []).append(row)
    return [Meeting(tuple(rows), tuple(calls.reductions.ranks[group])) for (group, _), rows in sorted(met.items())]


def check_meetings(calls: Calls, program: Program | None) -> list[Diagnostic]:
    """PD303 for reductions that some rank never comes to."""
    rank_of, found = calls.rank_of(), []
    for meeting in meetings_of(calls):
        if not meeting.complete:
            row = meeting.rows[0]
            came = {int(rank_of[each]) for each in meeting.rows}
            absent = [rank for rank in meeting.ranks if rank not in came]
            verb = "comes" if len(absent) == 1 else "come"
            message = f"rank {rank_of[row]}: {counted_list('rank', absent)} never {verb} to its `{calls.label(row)}`"
            help_ = "write it on every rank that it names, with the same name and ranks"
            found.append(Diagnostic("PD303", message, span_of(program, calls, row), help=help_))
    return found[:_MOST_FINDINGS]
