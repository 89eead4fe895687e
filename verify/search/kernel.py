"""Steady states: every microbatch runs the same pattern, one period after the one before it.

A pattern says when, after its first F, a microbatch runs each operation. Within a chunk (one stage on every rank) the
stages follow each other in equal steps, with a pause where one chunk goes over into the next; that is how the published
building blocks look (1F1B, ZB-V, V-Half, V-Min: Qi et al. 2024, arXiv 2405.15362). No two operations of a rank meet
modulo the period, so the pattern may be repeated for any number of microbatches; what a rank holds follows from how
long the pattern holds it, before anything is unrolled. Times are slots: small integers in the proportion of the costs.
Under the real costs the order alone is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipedsl.program import Kind
from verify.search.model import Model


@dataclass(frozen=True)
class Layout:
    """Stages that are chunks: one on every rank, up or down. `slots`: of F, of I (or B), of W (0 for B)."""

    ranks: int
    rank: tuple[int, ...]
    slots: tuple[int, int, int]
    split: bool

    def chunk(self, stage: int) -> int:
        return stage // self.ranks


@dataclass(frozen=True)
class Pattern:
    """`time[kind][s]`: the slot where a microbatch runs it; `period` and `length` in slots."""

    period: int
    time: dict[Kind, tuple[int, ...]]
    length: int


def layout_of(model: Model) -> Layout | None:
    """None where the stages are not such chunks, or their orders are not fully open."""
    problem = model.problem
    p, stages = problem.ranks, problem.stages
    if problem.fences or not stages or stages % p or problem.replicas > 1:
        return None
    ways = (tuple(range(p)), tuple(range(p - 1, -1, -1)))
    if any(problem.placement[first : first + p] not in ways for first in range(0, stages, p)):
        return None
    kinds = set()
    for pairs in model.strands:
        for first, last in pairs:
            if len({(model.kind[row], model.operations[row].stage) for row in range(first, last)}) > 1:
                return None
            kinds |= {Kind(model.kind[row]) for row in range(first, min(last, first + 1))}
    split = Kind.I in kinds
    if split == (Kind.B in kinds):
        return None
    used = (Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B)
    totals = [sum(problem.duration[kind]) for kind in used]
    least = min((total for total in totals if total), default=1)
    slots = [max(1, min(3, round(total / least))) for total in totals]
    return Layout(p, problem.placement, (slots[0], slots[1], slots[2] if split else 0), split)


def patterns(model: Model, layout: Layout, period: int, tries: int) -> Iterator[Pattern]:
    """Patterns of a period that keep to the caps, those of short steps first. At most `tries` operations are placed."""
    return _Enumeration(model, layout, period, tries).patterns()


class _Enumeration:
    """Depth first: how far apart the stages of each chunk are, forward and backward, and each change of chunk.

    `chain`: a microbatch's F in order and then its backwards. `steps`: places of the chain that share one distance to
    the place before. `busy`: per rank, the slots modulo the period that are taken.
    """

    def __init__(self, model: Model, layout: Layout, period: int, tries: int) -> None:
        self.model, self.layout, self.period, self.left = model, layout, period, tries
        stages = len(layout.rank)
        self.chain = [(True, s) for s in range(stages)] + [(False, s) for s in range(stages - 1, -1, -1)]
        self.steps: list[list[int]] = []
        last = None
        for at in range(1, len(self.chain)):
            (forward, s), (before_forward, before) = self.chain[at], self.chain[at - 1]
            same = forward == before_forward and layout.chunk(s) == layout.chunk(before)
            name = (forward, layout.chunk(s)) if same else None
            if name is not None and name == last:
                self.steps[-1].append(at)
            else:
                self.steps.append([at])
            last = name
        self.time = [0] * len(self.chain)
        self.busy = [0] * layout.ranks
        self.busy[layout.rank[0]] |= self._mask(0, layout.slots[0])

    def patterns(self) -> Iterator[Pattern]:
        stages = len(self.layout.rank)
        for _ in self._extend(0):
            forward = tuple(self.time[:stages])
            backward = tuple(self.time[2 * stages - 1 - s] for s in range(stages))
            weights = self._weights(backward)
            if weights is None or not self._fits(forward, backward, weights):
                continue
            time = {Kind.F: forward}
            if self.layout.split:
                time |= {Kind.I: backward, Kind.W: weights}
            else:
                time[Kind.B] = backward
            yield Pattern(self.period, time, max(map(max, time.values())))

    def _mask(self, start: int, length: int) -> int:
        """The slots of an operation modulo the period, as bits."""
        bits = ((1 << length) - 1) << (start % self.period)
        return (bits | bits >> self.period) & ((1 << self.period) - 1)

    def _length(self, at: int) -> int:
        return self.layout.slots[0 if self.chain[at][0] else 1]

    def _extend(self, level: int) -> Iterator[None]:
        """Every way to place what is left of the chain; `time` and `busy` hold it meanwhile."""
        if level == len(self.steps):
            yield
            return
        for wait in range(self.period):
            if self.left < 0:
                return
            placed = []
            for at in self.steps[level]:
                self.left -= 1
                self.time[at] = self.time[at - 1] + self._length(at - 1) + wait
                rank = self.layout.rank[self.chain[at][1]]
                mask = self._mask(self.time[at], self._length(at))
                if self.busy[rank] & mask:
                    break
                self.busy[rank] |= mask
                placed.append((rank, mask))
            else:
                yield from self._extend(level + 1)
            for rank, mask in placed:
                self.busy[rank] ^= mask

    def _weights(self, backward: tuple[int, ...]) -> tuple[int, ...] | None:
        """W as early as there is room after its I; None where there is none."""
        found = [0] * len(backward)
        if not self.layout.split:
            return tuple(found)
        _, inputs, length = self.layout.slots
        busy = list(self.busy)
        for s in sorted(range(len(backward)), key=backward.__getitem__):
            rank = self.layout.rank[s]
            for start in range(backward[s] + inputs, backward[s] + inputs + self.period):
                mask = self._mask(start, length)
                if not busy[rank] & mask:
                    busy[rank] |= mask
                    found[s] = start
                    break
            else:
                return None
        return tuple(found)

    def _fits(self, forward: tuple[int, ...], backward: tuple[int, ...], weights: tuple[int, ...]) -> bool:
        """Whether in the steady state no F finds more than its rank may hold."""
        problem, period = self.model.problem, self.period
        _, inputs, length = self.layout.slots
        on: list[list[int]] = [[] for _ in range(self.layout.ranks)]
        for s, rank in enumerate(self.layout.rank):
            on[rank].append(s)
        for room, stages in zip(self.model.room, on, strict=True):
            if room is None:
                continue
            for now in (forward[s] for s in stages):
                held = 0
                for s in stages:
                    started = (now - forward[s]) // period
                    back = (now - backward[s] - inputs) // period
                    held += (started - back) * problem.activation[s]
                    if self.layout.split:
                        held += (back - (now - weights[s] - length) // period) * problem.held_by_w[s]
                if held > room:
                    return False
        return True


def unroll(model: Model, pattern: Pattern) -> list[list[int]]:
    """Every rank's operations in the order of the pattern, one period a microbatch."""
    time, period = pattern.time, pattern.period
    when = [time[op.kind][op.stage] + period * op.microbatch for op in model.operations]
    return [
        sorted((row for a, b in pairs for row in range(a, b)), key=lambda row: (when[row], row))
        for pairs in model.strands
    ]
