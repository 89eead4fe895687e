"""Outputs of a stage that share memory, as a tensor and a view of it, or one that is returned twice.

In one process what the next stage writes to one of them shows in the others. Messages bring them apart, where it would
not. Nobody is harmed unless the next stage writes, and few do, so that is what is looked for, and refused; on one rank,
too, as what works is not to depend on the schedule. torch counts how often a tensor has been written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch


class Extent(NamedTuple):
    """The bytes of a tensor: runs of `width`, the first at `start`; for each of `steps`, a number and a distance in
    bytes, so many times, so far apart. The largest distance comes first.
    """

    start: int
    steps: tuple[tuple[int, int], ...]
    width: int

    @property
    def end(self) -> int:
        return self.start + sum((number - 1) * distance for number, distance in self.steps) + self.width


def overlapping(tensors: Sequence[torch.Tensor], names: Sequence[int]) -> tuple[int, ...]:
    """Which of these have memory in common with another one, by number. Those of one name are the same tensor.

    Exact for slices of one tensor; of others some that lie between one another's elements count as well.
    """
    if len(tensors) < 2:
        return ()
    found: set[int] = set()
    known = sorted([(each, i) for i, x in enumerate(tensors) if (each := extent_of(x)) is not None])
    while known:
        end, count = known[0][0].end, 1
        while count < len(known) and known[count][0].start < end:
            end = max(end, known[count][0].end)
            count += 1
        if count > 1:
            first = known[0][0].start
            together = _together(tuple([each._replace(start=each.start - first) for each, _ in known[:count]]))
            found.update(known[k][1] for k in together)
        del known[:count]
    if len(set(names)) < len(names):
        found.update(i for i, name in enumerate(names) if names.count(name) > 1)
    return tuple(sorted(found))


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often each has been written to; -1 where nobody counts, as in tensors made in inference mode."""
    return [-1 if x.is_inference() else x._version for x in tensors]


def counted(x: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, of which it is counted how often it is written to."""
    if not x.is_inference():
        return x
    with torch.inference_mode(False):
        return x.clone()


def extent_of(x: torch.Tensor) -> Extent | None:
    """Where a tensor lies; None for one that has no elements, or no memory of its own."""
    if not x.numel() or not (start := x.data_ptr()):
        return None
    if x.is_contiguous():
        return Extent(start, (), x.nbytes)
    width = x.itemsize
    by_distance = sorted([(step * width, n) for n, step in zip(x.shape, x.stride(), strict=True) if n > 1 and step])
    while by_distance and by_distance[0][0] == width:
        width *= by_distance.pop(0)[1]
    return Extent(start, tuple([(n, distance) for distance, n in reversed(by_distance)]), width)


@lru_cache(maxsize=64)  # the microbatches of a stage are alike
def _together(extents: tuple[Extent, ...]) -> frozenset[int]:
    """Which of these meet another one; they are in order of where they start."""
    found: set[int] = set()
    for i, one in enumerate(extents):
        for j in range(i + 1, len(extents)):
            if meet(one, extents[j]):
                found |= {i, j}
    return frozenset(found)


def meet(one: Extent, other: Extent) -> bool:
    """Whether two tensors have a byte in common. True, too, where it is not seen that they have none."""
    if one.end <= other.start or other.end <= one.start:
        return False
    if not one.steps and not other.steps:
        return True
    distance = max(each.steps[0][1] for each in (one, other) if each.steps)
    (rows, row), (other_rows, other_row) = _rows_of(one, distance), _rows_of(other, distance)
    between = other.start - one.start
    for later in (between // distance, between // distance + 1):
        # Rows of both, with those of the other one `later` rows on: where two that stand side by side fit between one
        # and the next, no others can meet.
        moved = row.start + between - later * distance
        beside = Extent(moved, other_row.steps, other_row.width)
        if max(row.end, beside.end) - min(row.start, moved) <= distance:
            return later < rows and -later < other_rows and meet(row, beside)
    return True


def _rows_of(extent: Extent, distance: int) -> tuple[int, Extent]:
    """How many rows lie so far apart, and the first of them: one, where they lie nearer."""
    if extent.steps and extent.steps[0][1] == distance:
        return extent.steps[0][0], Extent(extent.start, extent.steps[1:], extent.width)
    return 1, extent
