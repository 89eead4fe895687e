"""Whether reductions come together: REDUCE operations of a program, and the `reduce` calls that they become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Ints, Kind, Program
from verify.matching import RECEIVES, SENDS
from verify.naming import span_of
from verify.wording import counted_list, rank_span

_MOST_FINDINGS = 20


# ------------------------------------------------------------------ of a program


def check_reductions(program: Program) -> list[Diagnostic]:
    """PD206 where one copy of a stage has a REDUCE and another has none: it would wait for ever."""
    found: list[Diagnostic] = []
    rows = np.flatnonzero(program.kind == Kind.REDUCE)
    copies = program.placement.shape[0]
    for stage in np.unique(program.stage[rows]).tolist() if copies > 1 else ():
        own = rows[program.stage[rows] == stage]
        absent = sorted(set(range(copies)) - set(program.replica[own].tolist()))
        if not absent:
            continue
        of = ", ".join(program.replica_name(replica) for replica in absent)
        ranks = sorted({int(program.placement[replica, stage]) for replica in absent})
        there = sorted(set(program.rank_of()[own].tolist()))
        has = "has" if len(there) == 1 else "have"
        message = (
            f"REDUCE of stage {stage} of replica {of} never runs on {counted_list('rank', ranks)}, where "
            f"{counted_list('rank', there)} {has} one"
        )
        label = Label(program.span_of(int(own[0])), f"rank {there[0]} sums the gradients of stage {stage} here")
        help_ = "write a REDUCE for all copies of a stage, or for none: then they are summed at the end of the step"
        found.append(Diagnostic("PD206", message, rank_span(program, ranks[0]), (label,), help=help_))
    return found[:_MOST_FINDINGS]


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


def misplaced(calls: Calls) -> list[tuple[int, int]]:
    """Pairs of rows that meet at different places among the messages of their ranks; the first of each meeting.

    What is summed goes over the same channels as messages do. Where order alone counts, it must stand between the same
    messages on both ends.
    """
    found = []
    rank_of = calls.rank_of()
    for meeting in meetings_of(calls):
        for a, b in [(a, b) for a in meeting.rows for b in meeting.rows if a < b]:
            ranks = int(rank_of[a]), int(rank_of[b])
            before = [_before(calls, row, peer) for row, peer in zip((a, b), ranks[::-1], strict=True)]
            if before[0] != before[1][::-1]:
                found.append((a, b))
                break
    return found


def _before(calls: Calls, row: int, peer: int) -> tuple[int, int]:
    """How many messages a rank has sent to a peer before one of its rows, and received from it."""
    first = int(calls.offsets[int(np.searchsorted(calls.offsets, row, "right")) - 1])
    kinds = calls.kind[first:row][calls.peer[first:row] == peer]
    return int(np.isin(kinds, SENDS).sum()), int(np.isin(kinds, RECEIVES).sum())


def check_places(calls: Calls, program: Program | None) -> list[Diagnostic]:
    """PD302 for reductions that stand between other messages on one end than on the other."""
    rank_of: Ints = calls.rank_of()
    found = []
    for a, b in misplaced(calls)[:_MOST_FINDINGS]:
        message = (
            f"rank {rank_of[a]} comes to `{calls.label(a)}` between other messages with rank {rank_of[b]} than that "
            "one does: NCCL goes by order alone"
        )
        there = span_of(program, calls, b)
        labels = () if there is None else (Label(there, f"rank {rank_of[b]} comes to it here"),)
        help_ = "let both ranks send and receive the same messages before it"
        found.append(Diagnostic("PD302", message, span_of(program, calls, a), labels, help=help_))
    return found
