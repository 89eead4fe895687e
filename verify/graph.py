"""The dependency graph of a program, for those who want to look at it with networkx."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipedsl.dependencies import dependencies
from pipedsl.program import Kind, Program
from pipedsl.reductions import meetings


def dependency_graph(program: Program) -> Any:
    """A `networkx.DiGraph` over the program's rows.

    Nodes carry `kind` (a string), `stage`, `microbatch` (None of a REDUCE), `replica` and `rank`. An edge goes from a
    row to one that needs it, with `why` "data", or "order" for the next one on the same rank. A REDUCE that meets
    others needs what these need. The program must be structurally right.
    """
    import networkx

    graph = networkx.DiGraph()
    ranks = program.rank_of().tolist()
    columns = (program.kind.tolist(), program.stage.tolist(), program.microbatch.tolist(), program.replica.tolist())
    for row, (kind, stage, microbatch, replica, rank) in enumerate(zip(*columns, ranks, strict=True)):
        number = None if kind == Kind.REDUCE else microbatch
        graph.add_node(row, kind=Kind(kind).name, stage=stage, microbatch=number, replica=replica, rank=rank)
    graph.add_edges_from(
        ((row, row + 1) for row in range(len(program) - 1) if ranks[row] == ranks[row + 1]), why="order"
    )
    needs = dependencies(program)
    for need in (needs.local, needs.upstream, needs.posted):
        rows = np.flatnonzero(need >= 0)
        graph.add_edges_from(zip(need[rows].tolist(), rows.tolist(), strict=True), why="data")
    for rows_that_meet in meetings(program).rows.values():
        graph.add_edges_from(((int(needs.local[a]), b) for a in rows_that_meet for b in rows_that_meet), why="data")
    return graph
