"""Interleaved 1F1B where stages are looped over the ranks: as many microbatches as there are ranks, chunk by chunk.

A rank that takes what is ready hardly ever comes to it: it runs F of a later chunk as soon as it can, and fills its
memory with microbatches that are not the next ones to be given back.
"""

from __future__ import annotations

from pipedsl.program import Kind
from verify.search.model import Model
from verify.search.problem import Operation
from verify.search.waves import is_plain


def interleaved(model: Model) -> list[list[int]] | None:
    """Every rank's order, W behind its I. None where stages are placed otherwise, or orders are not open.

    Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, section 2.2: rank r starts
    with 2 (p - 1 - r) + (v - 1) p F, for v chunks on p ranks, then F and backward take turns.
    """
    problem = model.problem
    ranks, chunks = problem.ranks, problem.stages // problem.ranks
    looped = problem.placement == tuple(stage % ranks for stage in range(ranks * chunks))
    if problem.fences or problem.replicas > 1 or chunks < 2 or not looped:
        return None
    if not all(is_plain(model, pairs) for pairs in model.strands):
        return None
    row = {operation: at for at, operation in enumerate(model.operations)}
    groups = [range(first, min(first + ranks, problem.microbatches)) for first in range(0, problem.microbatches, ranks)]
    found = []
    for r in range(ranks):
        stages = range(r, ranks * chunks, ranks)
        forward = [row[Operation(Kind.F, s, i)] for group in groups for s in stages for i in group]
        backward = [
            [row[op] for op in (Operation(kind, s, i) for kind in (Kind.B, Kind.I, Kind.W)) if op in row]
            for group in groups
            for s in reversed(stages)
            for i in group
        ]
        first = min(2 * (ranks - 1 - r) + (chunks - 1) * ranks, len(forward))
        order = forward[:first]
        for at, after in enumerate(backward):
            order += forward[first + at : first + at + 1] + after
        found.append(order)
    return found
