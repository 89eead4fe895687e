"""Design section 5.1: every operation runs once, where it belongs, in an order that its dependencies allow.

The most fundamental findings come alone: what is out of range hides what is missing, that hides wrong orders, and those
hide cycles over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from pipedsl.dependencies import cell_of, cells, dependencies
from pipedsl.diagnostics import Diagnostic, Label, Span
from pipedsl.program import COMPUTE, Ints, Kind, Program
from pipedsl.reductions import meetings
from pipedsl.simulate import Stuck, Timeline, simulate
from verify.communication import check_communication
from verify.counterexample import REDUCE_HELP
from verify.reductions import check_reductions
from verify.wording import and_more, counted_list, first_few, rank_span, there_are

MOST_FINDINGS = 20


def check_structure(program: Program) -> tuple[list[Diagnostic], Timeline | None]:
    """What is wrong with the program, and its timeline if nothing is."""
    checks: tuple[Callable[[Program], list[Diagnostic]], ...] = (
        _out_of_range,
        _missing_or_repeated,
        check_communication,
        check_reductions,
        _wrong_order,
    )
    for check in checks:
        found = check(program)
        if found:
            return found, None
    try:
        return [], simulate(program)
    except Stuck as stuck:
        return [_cycle(program, stuck)], None


def _out_of_range(program: Program) -> list[Diagnostic]:
    """Stages, microbatches and ranks that do not exist, and operations on a rank that does not hold their stage."""
    placement = program.placement
    stray = np.argwhere((placement < 0) | (placement >= program.ranks))
    if len(stray):
        replica, stage = stray[0].tolist()
        of = f" of replica {program.replica_name(replica)}" if len(placement) > 1 else ""
        where = f"stage {stage}{of} is placed on rank {placement[replica, stage]}, but there are {program.ranks} ranks"
        return [Diagnostic("PD202", where, program.header_span)]
    no_stage = (program.stage < 0) | (program.stage >= program.stages)
    no_stage |= (program.replica < 0) | (program.replica >= placement.shape[0])
    no_microbatch = (program.microbatch < 0) | (program.microbatch >= program.microbatches)
    no_microbatch &= program.kind != Kind.REDUCE
    elsewhere = np.zeros(len(program), bool)
    known = ~no_stage
    elsewhere[known] = placement[program.replica[known], program.stage[known]] != program.rank_of()[known]
    found = []
    for bad, code, what in (
        (no_stage, "PD204", f"does not exist: {there_are(program.stages, 'stage')}"),
        (no_microbatch, "PD205", f"does not exist: {there_are(program.microbatches, 'microbatch')}"),
        (elsewhere, "PD204", "runs on a rank that does not hold its stage"),
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            message = f"{program.label(int(rows[0]))} {what}{and_more(len(rows) - 1)}"
            found.append(Diagnostic(code, message, program.span_of(int(rows[0]))))
    return found


def _missing_or_repeated(program: Program) -> list[Diagnostic]:
    """F once, and B or both I and W once, of every stage and microbatch; REDUCE once of a stage, or not at all."""
    if _complete(program):
        return []
    width = int(program.microbatch.max(initial=0)) + 1
    group = program.replica.astype(np.int64) * program.stages + program.stage
    key = group * width + program.microbatch
    of_kind = {kind: np.unique(key[program.kind == kind]) for kind in COMPUTE}
    whole, inputs, weights = of_kind[Kind.B], of_kind[Kind.I], of_kind[Kind.W]
    both = np.intersect1d(whole, np.union1d(inputs, weights))
    found = [_both_forms(program, key, both)] if len(both) else []
    found += _repeated(program, key)
    absent = _Absences(program, width)
    absent.all_but("F", of_kind[Kind.F])
    absent.all_but("B (or I and W)", np.union1d(whole, np.union1d(inputs, weights)))
    absent.those("W", np.setdiff1d(np.setdiff1d(inputs, weights), whole))
    absent.those("I", np.setdiff1d(np.setdiff1d(weights, inputs), whole))
    return _limited(found + absent.diagnostics())


def _complete(program: Program) -> bool:
    """Whether nothing is missing or repeated: the quick answer for a program of computations that is right."""
    size, cell = cells(program), cell_of(program)
    if size > len(program) or program.explicit_communication:
        return False
    reduces = program.kind == Kind.REDUCE
    chunk = program.replica[reduces].astype(np.int64) * program.stages + program.stage[reduces]
    if (np.bincount(chunk) > 1).any():
        return False
    forward, whole, inputs, weights = (np.bincount(cell[program.kind == kind], minlength=size) for kind in COMPUTE)
    once = (forward == 1) & (whole + inputs == 1) & (inputs == weights)
    return bool(once.all())


def _both_forms(program: Program, key: Ints, both: Ints) -> Diagnostic:
    rows = np.flatnonzero(np.isin(key, both[:1]))
    whole = int(rows[program.kind[rows] == Kind.B][0])
    part = int(rows[np.isin(program.kind[rows], (Kind.I, Kind.W))][0])
    name = Kind(program.kind[part]).name
    message = f"{program.label(whole)} runs, and {name} of the same microbatch too{and_more(len(both) - 1)}"
    label = Label(program.span_of(part), f"{name} runs here")
    return Diagnostic("PD208", message, program.span_of(whole), (label,), help="write either B, or I and W")


def _repeated(program: Program, key: Ints) -> list[Diagnostic]:
    """One finding per kind and stage that runs some microbatch twice."""
    full = key * len(Kind) + program.kind
    order = np.argsort(full, kind="stable")
    again = np.flatnonzero(full[order[1:]] == full[order[:-1]]) + 1
    group = (program.kind.astype(np.int64) * program.placement.shape[0] + program.replica) * program.stages
    group = (group + program.stage)[order[again]]
    found = []
    for value in np.unique(group)[: MOST_FINDINGS + 1]:
        members = again[group == value]
        first, second = int(order[members[0] - 1]), int(order[members[0]])
        message = f"{program.label(second)} runs a second time{and_more(len(members) - 1)}"
        label = Label(program.span_of(first), "the first time is here")
        labels = () if program.span[first] == program.span[second] else (label,)
        found.append(Diagnostic("PD207", message, program.span_of(second), labels))
    return found


class _Absences:
    """Collects what never runs, and groups stages that lack the same microbatches into one finding."""

    def __init__(self, program: Program, width: int) -> None:
        self.program, self.width = program, width
        self.groups: dict[tuple[str, tuple[int, ...], int, int], list[int]] = {}

    def all_but(self, what: str, present: Ints) -> None:
        """`what` runs for the keys of `present`, and should for every stage and microbatch."""
        m = self.program.microbatches
        groups = self.program.placement.shape[0] * self.program.stages
        count = np.bincount(present // self.width, minlength=groups)
        ends = np.cumsum(count)
        for group in np.flatnonzero(count < m).tolist():
            there = present[ends[group] - count[group] : ends[group]] % self.width
            # Of the first `there + 4` microbatches at least four are absent, if that many are at all.
            some = np.setdiff1d(np.arange(min(m, len(there) + 4)), there)[:4]
            self._add(what, some, m - len(there), group)

    def those(self, what: str, keys: Ints) -> None:
        """`what` is absent for `keys`."""
        for group in np.unique(keys // self.width).tolist():
            absent = keys[keys // self.width == group] % self.width
            self._add(what, absent[:4], len(absent), group)

    def _add(self, what: str, microbatches: Ints, count: int, group: int) -> None:
        key = (what, tuple(microbatches.tolist()), count, group // self.program.stages)
        self.groups.setdefault(key, []).append(group)

    def diagnostics(self) -> list[Diagnostic]:
        found = []
        for (what, microbatches, count, replica), groups in self.groups.items():
            where = counted_list("stage", sorted(group % self.program.stages for group in groups))
            where += f" of replica {self.program.replica_name(replica)}" if self.program.placement.shape[0] > 1 else ""
            missing = f"microbatch{'es' if count > 1 else ''} {first_few(microbatches, count)}"
            message = f"{what} of {where} never runs for {missing}"
            found.append(Diagnostic("PD206", message, self._span(groups[0])))
        return found

    def _span(self, group: int) -> Span | None:
        replica, stage = divmod(group, self.program.stages)
        return rank_span(self.program, int(self.program.placement[replica, stage]))


def _wrong_order(program: Program) -> list[Diagnostic]:
    """Operations that come before one of their own rank that they need; one finding a rank."""
    needs, rank, rows = dependencies(program), program.rank_of(), np.arange(len(program))
    found: list[Diagnostic] = []
    all_needs = (needs.local, needs.upstream, needs.posted)
    bad = [(need > rows) & (rank[need] == rank) for need in all_needs]
    at = np.flatnonzero(bad[0] | bad[1] | bad[2])
    if not len(at):
        return []
    ranks, firsts, counts = np.unique(rank[at], return_index=True, return_counts=True)
    for number, first, count in zip(ranks.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        row = int(at[first])
        need = next(int(need[row]) for need, wrong in zip(all_needs, bad, strict=True) if wrong[row])
        message = f"rank {number} runs {program.label(row)} before {program.label(need)}, which it needs"
        label = Label(program.span_of(need), f"{program.label(need)} runs only here")
        labels = (label,) if program.span[need] != program.span[row] else ()
        found.append(Diagnostic("PD209", message + and_more(count - 1), program.span_of(row), labels))
    return _limited(found)


def _cycle(program: Program, stuck: Stuck) -> Diagnostic:
    """Ranks that wait for each other even if every message is buffered."""
    needs, met, rank_of = dependencies(program), meetings(program), program.rank_of()
    stands = {int(rank_of[row]): row for row in stuck.rows}

    def wanted(row: int) -> int:
        """What a row waits for: the data that it needs, or the REDUCE of a rank that has not come to it."""
        if met.stage[row] < 0:
            return int(needs.upstream[row])
        return next(each for each in met.rows[int(met.stage[row])] if stands[int(rank_of[each])] != each)

    rank, seen = next(iter(stands)), dict[int, int]()
    while rank not in seen:
        seen[rank] = len(seen)
        rank = int(rank_of[wanted(stands[rank])])
    cycle = [number for number, place in seen.items() if place >= seen[rank]]
    labels = []
    for number in cycle:
        row, need = stands[number], wanted(stands[number])
        other = int(rank_of[need])
        text = f"rank {number} waits here, at {program.label(row)}, for {program.label(need)}"
        after = f"; rank {other} runs that only after {program.label(stands[other])}"
        labels.append(Label(program.span_of(row), text + after))
    message = f"ranks {first_few(cycle, len(cycle))} wait for each other, whatever the transport"
    if any(met.stage[stands[number]] >= 0 for number in cycle):
        return Diagnostic("PD301", f"deadlock: {message}", labels[0].span, tuple(labels), help=REDUCE_HELP)
    return Diagnostic("PD209", message, labels[0].span, tuple(labels))


def _limited(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    return list(found)[:MOST_FINDINGS]
