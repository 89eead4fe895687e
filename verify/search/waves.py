"""Microbatch by microbatch: each runs through the pipeline and back without a pause, as soon as that is possible.

Under a cap well below the number of ranks nothing is lost but by waiting on the way, since a microbatch that takes
longer holds its memory for longer. Forward and backward waves that never pause cross each other only at some distances
in time; the first start that meets nobody on the way finds them. W goes into what is left between the waves, at the
latest before the microbatch that needs its memory.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from time import monotonic

from pipedsl.program import Kind
from verify.search.model import Model
from verify.search.problem import Problem


def waves(model: Model, stop: float = float("inf")) -> list[list[int]] | None:
    """Every rank's order. None where it is not plain that these fit, where orders are not open, or out of time."""
    problem = model.problem
    if problem.fences or problem.replicas > 1 or not all(is_plain(model, pairs) for pairs in model.strands):
        return None
    return _Waves(model).orders(stop)


def is_plain(model: Model, pairs: tuple[tuple[int, int], ...]) -> bool:
    """Whether each strand is all microbatches of one kind and stage, in their order."""
    return all(
        model.operations[row][:2] == model.operations[first][:2] and model.operations[row].microbatch == row - first
        for first, last in pairs
        for row in range(first, last)
    )


def _at_once(problem: Problem, r: int, room: int | None) -> int:
    """How many microbatches a rank may hold from their first F to their last W."""
    whole = sum(problem.activation[s] for stages in problem.chains[r] for s in stages)
    return problem.microbatches if room is None or not whole else min(problem.microbatches, room // whole)


class _Waves:
    """`begins[r]`, `ends[r]`: when rank r is busy, in order. `start`: of what is placed."""

    def __init__(self, model: Model) -> None:
        self.model = model
        problem = model.problem
        self.first = {
            (Kind(model.kind[a]), model.operations[a].stage): a for pairs in model.strands for a, b in pairs if a < b
        }
        backward = {s: Kind.I if (Kind.I, s) in self.first else Kind.B for s in range(problem.stages)}
        stages = range(problem.stages)
        chain = [(Kind.F, s) for s in stages] + [(backward[s], s) for s in reversed(stages)]
        self.chain = [self.first[name] for name in chain]
        self.offset = [0]
        for row, after in zip(self.chain, self.chain[1:], strict=False):
            self.offset.append(self.offset[-1] + model.duration[row] + model.lag[after])
        self.weights = [
            [self.first[Kind.W, s] for own in reversed(chains) for s in reversed(own) if (Kind.W, s) in self.first]
            for chains in problem.chains
        ]
        self.at_once = [_at_once(problem, r, room) for r, room in enumerate(model.room)]
        self.begins: list[list[int]] = [[] for _ in range(problem.ranks)]
        self.ends: list[list[int]] = [[] for _ in range(problem.ranks)]
        self.start = [-1] * len(model)

    def orders(self, stop: float) -> list[list[int]] | None:
        model, many = self.model, self.model.problem.microbatches
        if not all(self.at_once):
            return None
        time = 0
        for i in range(many):
            if monotonic() > stop:
                return None
            for r, most in enumerate(self.at_once):
                if i >= most:
                    self._place_weights(r, i - most)
            time = self._launch(i, time)
        for r, most in enumerate(self.at_once):
            for i in range(many - most, many):
                self._place_weights(r, i)
        return [
            sorted((row for a, b in pairs for row in range(a, b)), key=lambda row: (self.start[row], row))
            for pairs in model.strands
        ]

    def _launch(self, i: int, time: int) -> int:
        """Place the whole way of a microbatch from `time` on, or from the first later time that meets nobody."""
        model = self.model
        for k, row in enumerate(self.chain):
            if model.kind[row] == Kind.F:
                time = max(time, self._released(model.rank[row], i) - self.offset[k])
            if i:
                time = max(time, self.start[row + i - 1] + model.duration[row] - self.offset[k])
        k = met = 0
        while met < len(self.chain):
            row = self.chain[k]
            later = self._free(model.rank[row], time + self.offset[k], model.duration[row])
            met = met + 1 if later == time + self.offset[k] else 1
            time = later - self.offset[k]
            k = (k + 1) % len(self.chain)
        for k, row in enumerate(self.chain):
            self._put(row + i, time + self.offset[k])
        return time

    def _released(self, r: int, i: int) -> int:
        """When what the rank holds of the microbatch that makes room for i is given back."""
        old, model = i - self.at_once[r], self.model
        if old < 0:
            return 0
        last = self.weights[r] or [row for row in self.chain if model.rank[row] == r and model.kind[row] != Kind.F]
        return max((self.start[row + old] + model.duration[row] for row in last), default=0)

    def _place_weights(self, r: int, i: int) -> None:
        model = self.model
        for row in self.weights[r]:
            source = model.local[row + i]
            ready = self.start[source] + model.duration[source]
            if i:
                ready = max(ready, self.start[row + i - 1] + model.duration[row])
            self._put(row + i, self._free(r, ready, model.duration[row]))

    def _free(self, r: int, time: int, length: int) -> int:
        """The first time from `time` on when the rank has nothing to do for so long."""
        begins, ends = self.begins[r], self.ends[r]
        at = bisect_right(ends, time)
        while at < len(begins) and begins[at] < time + length:
            time = ends[at]
            at += 1
        return time

    def _put(self, row: int, time: int) -> None:
        r, length = self.model.rank[row], self.model.duration[row]
        self.start[row] = time
        if length:
            insort(self.begins[r], time)
            insort(self.ends[r], time + length)
