"""Steady states: every microbatch runs the same pattern, one period after the one before it.

A pattern says when, after its first F, a microbatch runs each operation. Within a chunk (one stage on every rank) the
stages follow each other in equal steps, with a pause where one chunk goes over into the next; that is how the published
building blocks look (1F1B, ZB-V, V-Half, V-Min: Qi et al. 2024, arXiv 2405.15362). No two operations of a rank meet
modulo the period, so the pattern may be repeated for any number of microbatches; what a rank holds follows from how
long the pattern holds it, before anything is unrolled. Times are slots: small integers in the proportion of the costs.
Under the real costs the order alone is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


from pipedsl.program import Kind
from verify.search.model import Model


@dataclass(frozen=True)
class Layout:
    """Chunks of a placement in the order of their stages; `rank[s]` of each stage. `slots`: of F, I (or B), W."""

    ranks: int
    rank: tuple[int, ...]
    chunk: tuple[int, ...]
    slots: tuple[int, int, int]
    split: bool


@dataclass(frozen=True)
class Pattern:
    """`time[kind][s]`: the slot where a microbatch runs it; `period` in slots. `held`: per rank, the most it holds."""

    period: int
    time: dict[Kind, tuple[int, ...]]
    length: int
    held: tuple[int, ...]


def layout_of(model: Model) -> Layout | None:
    """None where the stages are not chunks that cover every rank once, in order up or down, or ranks are not in order."""
    problem = model.problem
    p, stages = problem.ranks, problem.stages
    if not stages or stages % p:
        return None
    for first in range(0, stages, p):
        block = problem.placement[first : first + p]
        if block not in (tuple(range(p)), tuple(range(p - 1, -1, -1))):
            return None
    kinds = {Kind(model.kind[a]) for pairs in model.strands for a, b in pairs if a < b}
    if any(len({(model.kind[x], model.operations[x].stage) for x in range(a, b)}) > 1 for q in model.strands for a, b in q):
        return None
    split = Kind.I in kinds
    if split and Kind.B in kinds:
        return None
    means = [
        sum(problem.duration[kind]) / stages if kind in kinds else 0.0
        for kind in (Kind.F, Kind.I if split else Kind.B, Kind.W)
    ]
    least = min((value for value in means if value), default=1.0)
    f, b, w = (max(1, min(3, round(value / least))) if value else 0 for value in means)
    return Layout(p, problem.placement, tuple(s // p for s in range(stages)), (f, b, w), split)


def patterns(model: Model, layout: Layout, period: int, most: int) -> Iterator[Pattern]:
    """Patterns of a period that keep to the caps, up to `most` tries of a step; those with short steps first."""
    problem = model.problem
    p, stages = layout.ranks, len(layout.rank)
    f, b, w = layout.slots
    full = (1 << period) - 1
    chain = [(Kind.F, s) for s in range(stages)] + [(Kind.B, s) for s in range(stages - 1, -1, -1)]
    # Steps that are free: one a chunk and direction, one at every change; None where it repeats the one before.
    groups: list[list[int]] = []
    for at, (kind, s) in enumerate(chain):
        if at == 0:
            continue
        before_kind, before = chain[at - 1]
        if before_kind == kind and layout.chunk[before] == layout.chunk[s]:
            if groups and groups[-1][0] == 1 and len(groups[-1]) > 1 and _same(chain, groups[-1][-1], at, layout):
                groups[-1].append(at)
            else:
                groups.append([1, at])
        else:
            groups.append([0, at])
    steps = [group[1:] for group in groups]
    busy = [0] * p
    time = [0] * len(chain)
    left = [most]

    def block(start: int, length: int) -> int:
        mask = ((1 << length) - 1) << (start % period)
        return (mask | mask >> period) & full

    busy[layout.rank[0]] |= block(0, f)

    def extend(level: int) -> Iterator[None]:
        if level == len(steps):
            yield None
            return
        group = steps[level]
        for extra in range(period):
            if left[0] <= 0:
                return
            left[0] -= 1
            placed = []
            good = True
            for at in group:
                kind, s = chain[at]
                length = f if kind == Kind.F else b
                before = f if chain[at - 1][0] == Kind.F else b
                time[at] = time[at - 1] + before + extra
                mask = block(time[at], length)
                r = layout.rank[s]
                if busy[r] & mask:
                    good = False
                    break
                busy[r] |= mask
                placed.append((r, mask))
            if good:
                yield from extend(level + 1)
            for r, mask in placed:
                busy[r] ^= mask

    for _ in extend(0):
        forward = tuple(time[:stages])
        backward = tuple(time[2 * stages - 1 - s] for s in range(stages))
        found = _finish(problem.activation, problem.held_by_w, model.room, layout, period, forward, backward, list(busy), block)
        if found is not None:
            yield found


def _same(chain: Sequence[tuple[Kind, int]], a: int, b: int, layout: Layout) -> bool:
    return chain[a][0] == chain[b][0] and layout.chunk[chain[a][1]] == layout.chunk[chain[b][1]] and b == a + 1


def _finish(activation, held_by_w, room, layout, period, forward, backward, busy, block) -> Pattern | None:  # type: ignore[no-untyped-def]
    """Place W as early as there is room; None where the caps do not hold."""
    f, b, w = layout.slots
    stages = len(forward)
    weights = [0] * stages
    if layout.split:
        for s in sorted(range(stages), key=lambda s: backward[s]):
            r = layout.rank[s]
            for wait in range(period):
                mask = block(backward[s] + b + wait, w)
                if not busy[r] & mask:
                    busy[r] |= mask
                    weights[s] = backward[s] + b + wait
                    break
            else:
                return None
    on = [[s for s in range(stages) if layout.rank[s] == r] for r in range(layout.ranks)]
    held = []
    for r, mine in enumerate(on):
        most = 0
        for s in mine:
            t, total = forward[s], 0
            for u in mine:
                started = (t - forward[u]) // period
                ended = (t - backward[u] - b) // period
                if layout.split:
                    done = (t - weights[u] - w) // period
                    total += (started - ended) * activation[u] + (ended - done) * held_by_w[u]
                else:
                    total += (started - ended) * activation[u]
            most = max(most, total)
        if room[r] is not None and most > room[r]:
            return None
        held.append(most)
    time = {Kind.F: forward, (Kind.I if layout.split else Kind.B): backward}
    if layout.split:
        time[Kind.W] = tuple(weights)
    length = max(max(x) for x in time.values())
    return Pattern(period, time, length, tuple(held))


def unroll(model: Model, pattern: Pattern) -> list[list[int]]:
    """Every rank's operations in the order of the pattern, one period a microbatch."""
    time, period = pattern.time, pattern.period
    when = [time[op.kind][op.stage] + period * op.microbatch for op in model.operations]
    return [
        sorted((row for a, b in pairs for row in range(a, b)), key=lambda row: (when[row], row)) for pairs in model.strands
    ]
