"""Which microbatch each operation of a rank takes: the next of its kind and chunk, or the one it names.

A REDUCE takes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Ints, Kind
from pipedsl.replicas import Named
from pipedsl.syntax import Op
from pipedsl.words import Operations


def number_microbatches(
    operations: Operations, kind: Ints, ops: Sequence[Op], microbatches: int, chunks: int, named: Named
) -> tuple[Ints, list[Diagnostic]]:
    """Microbatch of every row, -1 where it has none, and what is wrong with them: PD203 and PD205.

    `kind`: of every row, shape as `operations.op`. `named`: the chunks of each replica.
    """
    group = kind.astype(np.int64) * max(chunks, 1) + operations.chunk
    counted = operations.index < 0
    microbatch = operations.index.copy()
    found = _mixtures(operations, group, counted, ops, chunks)
    rows = np.flatnonzero(counted & (kind != Kind.REDUCE))
    if len(rows):
        order = rows[np.argsort(group[rows], kind="stable")]
        sorted_group = group[order]
        starts = np.flatnonzero(np.concatenate(([True], sorted_group[1:] != sorted_group[:-1])))
        lengths = np.diff(np.append(starts, len(order)))
        microbatch[order] = np.arange(len(order)) - np.repeat(starts, lengths)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            if length > microbatches:
                op = ops[int(operations.op[order[start + microbatches]])]
                found.append(_too_many(op, int(operations.chunk[order[start]]), length, microbatches, chunks, named))
    return microbatch, found


def _too_many(op: Op, chunk: int, count: int, microbatches: int, chunks: int, named: Named) -> Diagnostic:
    known = next((name for name, held in named.items() if held == range(chunk, chunk + 1)), str(chunk))
    name = f"{op.kind}@{known}" if chunks > 1 else op.kind
    return Diagnostic(
        "PD205",
        f"there are {count} `{name}`, but only {microbatches} microbatch{'' if microbatches == 1 else 'es'}",
        op.span,
        help="every stage runs each kind once per microbatch: lower a count",
    )


def _mixtures(operations: Operations, group: Ints, counted: Ints, ops: Sequence[Op], chunks: int) -> list[Diagnostic]:
    """PD203 for every kind and chunk that is counted at one place and indexed at another."""
    found: list[Diagnostic] = []
    if counted.all() or not counted.any():
        return found
    both = np.intersect1d(group[counted], group[~counted])
    for which in both.tolist():
        here = group == which
        by_count = int(np.flatnonzero(here & counted)[0])
        by_index = int(np.flatnonzero(here & ~counted)[0])
        op = ops[int(operations.op[by_index])]
        name = f"{op.kind}@{int(operations.chunk[by_index])}" if chunks > 1 else op.kind
        found.append(
            Diagnostic(
                "PD203",
                f"`{name}` names its microbatch here and is counted elsewhere on the same rank",
                op.span,
                labels=(Label(ops[int(operations.op[by_count])].span, "counted here"),),
                help="write all of them with an index, or all without",
            )
        )
    return found
