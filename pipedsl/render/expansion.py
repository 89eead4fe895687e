"""A Program or its Calls written out, a rank at a time, so that large ones never lie in memory as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pipedsl.calls import CallKind, Calls
from pipedsl.calls_json import rank_calls
from pipedsl.memory_json import memory_json
from pipedsl.program import Kind, Program


def program_json(program: Program) -> Iterator[str]:
    """`{"schedule", "params", "stages", "placement", "memory", "ranks": [[["F", stage, microbatch], ...], ...]}`.

    With replicas an operation has its replica as fourth element, and `placement` is a list of them. The microbatch of
    a REDUCE is null.
    """
    placement = program.placement.tolist()
    head = {
        "schedule": program.name,
        "params": dict(program.params),
        "stages": program.stages,
        "placement": placement[0] if len(placement) == 1 else placement,
        "memory": memory_json(program.memory),
    }
    yield from _json(head, (_operations(program, rank) for rank in range(program.ranks)))


def calls_json(calls: Calls) -> Iterator[str]:
    """`{"ranks": [[["isend", peer, tag], ["wait", k], ["batch", [["isend", peer, tag], ...]], ...], ...]}`.

    A REDUCE is `["reduce", [rank, ...], "stage 2"]`. `k` counts the rank's non-blocking requests from 0. Computations
    are left out.
    """
    yield from _json({}, (rank_calls(calls, rank) for rank in range(calls.ranks)))


def program_text(program: Program) -> Iterator[str]:
    """One line a rank, in the indexed operations of the language."""
    for rank in range(program.ranks):
        chunk = {place: index for index, place in enumerate(program.chunks(rank))}
        words = []
        for name, stage, microbatch, replica in _rows(program, rank):
            at = f"@{chunk.get((replica, stage), '?')}" if len(chunk) > 1 else ""
            words.append(f"{name}{at}" + ("" if microbatch is None else f"[{microbatch}]"))
        yield f"rank {rank}: {' '.join(words)}\n"


def calls_text(calls: Calls, program: Program) -> Iterator[str]:
    """One line a call, computations among them."""
    for rank in range(calls.ranks):
        yield f"rank {rank}\n"
        for row in calls.rows(rank):
            computes = calls.kind[row] == CallKind.COMPUTE and calls.op[row] >= 0
            yield f"    {program.label(int(calls.op[row])) if computes else calls.label(row)}\n"


def _json(head: dict[str, Any], ranks: Iterable[list[Any]]) -> Iterator[str]:
    lines = [f'  "{key}": {json.dumps(value)},\n' for key, value in head.items()]
    yield f'{{\n{"".join(lines)}  "ranks": ['
    for index, rank in enumerate(ranks):
        yield f"{',' if index else ''}\n    {json.dumps(rank, separators=(',', ':'))}"
    yield "\n  ]\n}\n"


def _rows(program: Program, rank: int) -> Iterator[tuple[str, int, int | None, int]]:
    """(kind, stage, microbatch, replica) of each operation of a rank; no microbatch for a REDUCE."""
    names = {int(kind): kind.name for kind in Kind}
    window = program.rows(rank)
    part = slice(window.start, window.stop)
    columns = (program.kind, program.stage, program.microbatch, program.replica)
    for kind, stage, microbatch, replica in zip(*(column[part].tolist() for column in columns), strict=True):
        yield names[kind], stage, None if kind == Kind.REDUCE else microbatch, replica


def _operations(program: Program, rank: int) -> list[Any]:
    size = 3 if program.placement.shape[0] == 1 else 4
    return [list(row[:size]) for row in _rows(program, rank)]
