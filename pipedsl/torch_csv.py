"""torch pipelining CSV from and to a Program: the files of `_PipelineScheduleRuntime._load_csv` and `_dump_csv`.

The file says neither how many stages and microbatches there are nor which rank holds a stage; all of it is derived.
One wrong number must not turn the rest of a file into errors, so what most of the file agrees on counts. What torch
takes silently (junk after an operation, operations twice) is a finding here, the latter by the verifier.

`(0F1;3B0)OVERLAP_F_B` becomes its two computations in the order written: a run of the Program then takes as long as
one that overlaps nothing. REDUCE_GRAD is a REDUCE: of a stage with one copy, over data-parallel ranks. UNSHARD and
RESHARD move no data between stages: they are checked and left out.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipedsl.calls import CallKind, Calls, MessageTags
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Source, Span
from pipedsl.names import as_name
from pipedsl.program import COMMUNICATION, COMPUTE, WORK, Costs, Ints, Kind, Memory, Program
from pipedsl.torch_cells import MOST_FINDINGS, Cells, Sharding, read_cells, shown
from pipedsl.torch_sharding import check_sharding

_BYTES_PER_OPERATION = 24  # of `123RECV_F4567,` and the idle cells around it


def text_limits(limits: Limits) -> Limits:
    """The limits to read the file with: the text of a CSV grows with its operations."""
    return replace(limits, source_bytes=max(limits.source_bytes, _BYTES_PER_OPERATION * limits.operations))


def read_csv(source: Source, limits: Limits = Limits()) -> Program:
    """The program that the file writes; every F, I and W costs 1, as where a `.sched` says nothing.

    `params` has `p` and `m`. Raises DiagnosticError with every mistake of the most fundamental kind: cells (PD104,
    PD120, PD121, PD123), then numbers and ranks (PD122, PD202, PD204, PD205), then sharding (PD124). What needs the
    whole program (PD206 and on) is left to the verifier.
    """
    cells = read_cells(source, limits)
    operations = cells.select(cells.kind >= 0)
    ranks = len(cells.lines)
    if not np.isin(operations.kind, COMPUTE).any():
        raise DiagnosticError([Diagnostic("PD123", "the file holds no computations", Span(source, 0, 0))])
    stages, microbatches = _stages(operations), _microbatches(operations)
    if 2 * stages * microbatches > limits.operations:
        needs = f"{stages:,} stages and {microbatches:,} microbatches need {2 * stages * microbatches:,} operations"
        message = f"{needs} or more, the limit is {limits.operations:,}"
        raise DiagnosticError([Diagnostic("PD104", message, Span(source, 0, 0), help="raise the limit on operations")])
    placement = _placement(operations, stages, ranks)
    _raise(
        [
            *_out_of_range(operations, stages, microbatches),
            *_absent_stages(source, placement),
            *_strays(operations, placement),
        ]
    )
    _raise(check_sharding(cells, placement))
    operations = cells.select((cells.kind >= 0) | (cells.kind == Sharding.REDUCE_GRAD))
    zero, one = (Fraction(0),) * stages, (Fraction(1),) * stages
    return Program(
        name=as_name(Path(source.name).stem),
        params={"p": ranks, "m": microbatches},
        ranks=ranks,
        stages=stages,
        microbatches=microbatches,
        placement=placement.astype(np.int32).reshape(1, -1),
        offsets=np.searchsorted(operations.rank, np.arange(ranks + 1)).astype(np.int64),
        kind=np.where(operations.kind < 0, Kind.REDUCE, operations.kind).astype(np.int8),
        stage=operations.stage,
        microbatch=operations.microbatch,
        replica=np.zeros(len(operations.kind), np.int32),
        span=np.arange(len(operations.kind), dtype=np.int32),
        spans=operations.spans,
        costs=Costs(one, (Fraction(2),) * stages, one, one, zero),
        memory=Memory(one, one, zero, zero, zero, (None,) * ranks),
        header_span=cells.lines[0],
        rank_spans=cells.lines,
    )


def _raise(found: list[Diagnostic]) -> None:
    if found:
        raise DiagnosticError(found[:MOST_FINDINGS])


# ------------------------------------------------------------------ what the file is about


def _stages(cells: Cells) -> int:
    """How many stages: a number that hardly ever occurs, and on no rank most often, is taken for a wrong one."""
    passes = cells.select(np.isin(cells.kind, (Kind.F, Kind.B, Kind.I)))
    stages, number = np.unique(passes.stage, return_inverse=True)
    count = np.bincount(number, minlength=len(stages))
    real = 4 * count >= count.max(initial=0)
    pairs, times = np.unique(passes.rank.astype(np.int64) * len(stages) + number, return_counts=True)
    by_rank = np.lexsort((times, pairs // max(len(stages), 1)))
    pairs = pairs[by_rank]
    last = np.append(np.diff(pairs // max(len(stages), 1)) != 0, True)[: len(pairs)]
    real[pairs[last] % max(len(stages), 1)] = True
    return _counted_from_0(stages[real])


def _microbatches(cells: Cells) -> int:
    """How many microbatches: those that more than half of the stages run."""
    compute = np.isin(cells.kind, COMPUTE)
    pairs = np.unique(cells.microbatch[compute].astype(np.int64) << 32 | cells.stage[compute])
    microbatches, count = np.unique(pairs >> 32, return_counts=True)
    common = 2 * count > len(np.unique(pairs & 0xFFFFFFFF))
    return _counted_from_0(microbatches[common] if common.any() else microbatches)


def _counted_from_0(numbers: Ints) -> int:
    """The largest n for which `numbers` (sorted) has n - 1 and at least half of what is below n; 0 if there is none."""
    dense = numbers[numbers < 2 * np.arange(1, len(numbers) + 1)]
    return int(dense[-1]) + 1 if len(dense) else 0


def _placement(cells: Cells, stages: int, ranks: int) -> NDArray[np.int64]:
    """The rank that runs most of each stage, -1 where none does: (stages,)."""
    known = cells.stage < stages
    pairs, times = np.unique(cells.stage[known].astype(np.int64) * ranks + cells.rank[known], return_counts=True)
    by_times = pairs[np.lexsort((-pairs, times))]  # of equals the lower rank wins, as the last to be written
    placement = np.full(stages, -1, np.int64)
    placement[by_times // ranks] = by_times % ranks
    return placement


# ------------------------------------------------------------------ what is wrong with it


def _out_of_range(cells: Cells, stages: int, microbatches: int) -> list[Diagnostic]:
    """One finding for each number that does not exist."""
    found = []
    for code, what, column, count in (
        ("PD204", "stage", cells.stage, stages),
        ("PD205", "microbatch", cells.microbatch, microbatches),
    ):
        bad = np.flatnonzero(column >= count)
        _, firsts, times = np.unique(column[bad], return_index=True, return_counts=True)
        have = f"the file's are 0 .. {count - 1}" if count else "they are numbered from 0, without gaps"
        for row, more in sorted(zip(bad[firsts].tolist(), (times - 1).tolist(), strict=True))[:MOST_FINDINGS]:
            token = cells.spans[row]
            message = f"{cells.where(row)}: {shown(token.text)} is of a {what} that does not exist; {have}"
            found.append(Diagnostic(code, message + _more(more), token))
    return found


def _absent_stages(source: Source, placement: Ints) -> list[Diagnostic]:
    absent = np.flatnonzero(placement < 0)[:MOST_FINDINGS].tolist()
    return [Diagnostic("PD202", f"no rank runs stage {stage}", Span(source, 0, 0)) for stage in absent]


def _strays(cells: Cells, placement: Ints) -> list[Diagnostic]:
    """One finding for each rank and each stage that another one holds."""
    known = np.flatnonzero(cells.stage < len(placement))
    holder = placement[cells.stage[known]]
    bad = known[cells.rank[known] != holder]
    pairs = cells.stage[bad].astype(np.int64) << 32 | cells.rank[bad]
    _, firsts, times = np.unique(pairs, return_index=True, return_counts=True)
    found = []
    for row, more in sorted(zip(bad[firsts].tolist(), (times - 1).tolist(), strict=True))[:MOST_FINDINGS]:
        stage = int(cells.stage[row])
        rank = int(placement[stage])
        home = int(np.flatnonzero((cells.stage == stage) & (cells.rank == rank))[0])
        message = f"{cells.where(row)}: {shown(cells.spans[row].text)} is of a stage that rank {rank} holds"
        label = Label(cells.spans[home], f"rank {rank} runs stage {stage} here")
        help_ = "a stage is on one rank; move the operation there, or correct its stage"
        found.append(Diagnostic("PD122", message + _more(more), cells.spans[row], (label,), help=help_))
    return found


def _more(count: int) -> str:
    return f" (and {count} more like it)" if count else ""


# ------------------------------------------------------------------ writing


def write_csv(program: Program, calls: Calls | None = None) -> str:
    """The file that PyTorch loads, one line a rank.

    Without `calls` the operations as the program has them: `compute_only` to PyTorch, or `compute_comms` if the
    program places its communication itself. With `calls` (those that `lower` made for it) `compute_comms`: sends and
    receives where the calls have them; PyTorch places the waits. Raises DiagnosticError (PD113) for what the format
    has no place for: replicas, batches, other kinds of operation, ranks without any (`read_csv` takes an empty line for
    a mistake). A REDUCE among computations alone stands in what PyTorch dumps, but it loads it only as `compute_comms`.
    """
    if program.placement.shape[0] > 1:
        raise _unsupported("replicas", program)
    kinds, stages, microbatches = program.kind, program.stage, program.microbatch
    offsets = program.offsets
    if calls is not None:
        offsets, kinds, stages, microbatches = _with_calls(program, calls)
    unknown = np.flatnonzero(~np.isin(kinds, (*WORK, *COMMUNICATION)))
    if len(unknown):
        raise _unsupported(Kind(kinds[unknown[0]]).name, program)
    if (offsets[1:] == offsets[:-1]).any():
        raise _unsupported("a rank without operations", program)
    names = [kind.name for kind in Kind]
    columns = zip(stages.tolist(), kinds.tolist(), microbatches.tolist(), strict=True)
    cells = [
        f"{stage}REDUCE_GRAD" if kind == Kind.REDUCE else f"{stage}{names[kind]}{microbatch}"
        for stage, kind, microbatch in columns
    ]
    bounds = offsets.tolist()
    return "".join(",".join(cells[bounds[rank] : bounds[rank + 1]]) + "\n" for rank in range(program.ranks))


def _with_calls(program: Program, calls: Calls) -> tuple[Ints, Ints, Ints, Ints]:
    """Offsets, kind, stage and microbatch of the rows that the file has."""
    tags = calls.tags
    if not isinstance(tags, MessageTags) or bool((calls.batch >= 0).any()):
        raise _unsupported("these calls", program)
    compute = np.isin(calls.kind, (CallKind.COMPUTE, CallKind.REDUCE))
    sends = np.isin(calls.kind, (CallKind.SEND, CallKind.ISEND))
    receives = np.isin(calls.kind, (CallKind.RECV, CallKind.IRECV))
    kept = np.flatnonzero(compute | sends | receives)
    offsets = np.searchsorted(kept, calls.offsets)
    compute, sends, op = compute[kept], sends[kept], calls.op[kept]
    rest, microbatch = np.divmod(calls.tag[kept], tags.microbatches)
    backward, to = np.divmod(rest, tags.stages)
    kind = np.where(sends, np.where(backward, Kind.SEND_B, Kind.SEND_F), np.where(backward, Kind.RECV_B, Kind.RECV_F))
    stage = np.where(sends, to + np.where(backward, 1, -1), to)
    return (
        offsets,
        np.where(compute, program.kind[op], kind),
        np.where(compute, program.stage[op], stage),
        np.where(compute, program.microbatch[op], microbatch),
    )


def _unsupported(what: str, program: Program) -> DiagnosticError:
    return DiagnosticError([Diagnostic("PD113", f"PyTorch's CSV has no place for {what}", program.header_span)])
