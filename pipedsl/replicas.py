"""The copies of all stages that a schedule places: one by its `place`, or one for each `replica`.

A rank counts its chunks by replica, in the order of declaration, and then by stage. So the chunks of one replica on a
rank are neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import Ints
from pipedsl.syntax import Place, Replica, Schedule

Named = Mapping[str, range]
"""The chunks of every replica on one rank; nothing where the copies have no names."""


def replicas_of(schedule: Schedule) -> list[Replica]:
    return [item for item in schedule.items if isinstance(item, Replica)]


def places_of(schedule: Schedule) -> list[Place]:
    """The placement of every copy. One at least, in a checked schedule."""
    return [item.place for item in replicas_of(schedule)] or [
        item for item in schedule.items if isinstance(item, Place)
    ]


def held_chunks(placement: Ints, ranks: int) -> list[Ints]:
    """For every rank its chunks, each as replica * stages + stage. `placement`: (replicas, stages) -> rank."""
    flat = placement.ravel()
    by_rank = np.argsort(flat, kind="stable")
    bounds = np.searchsorted(flat[by_rank], np.arange(ranks + 1))
    return [by_rank[first:last] for first, last in pairwise(bounds.tolist())]


def named_chunks(schedule: Schedule, held: Ints, stages: int) -> Named:
    """Which chunks of a rank that holds `held` are whose."""
    names = [item.name for item in replicas_of(schedule)]
    ends = np.searchsorted(held // stages, np.arange(len(names) + 1)).tolist()
    return {name: range(first, last) for name, (first, last) in zip(names, pairwise(ends), strict=True)}


def check_replicas(schedule: Schedule) -> Iterator[Diagnostic]:
    """What is wrong with them as a whole."""
    found = replicas_of(schedule)
    if not found:
        return
    first: dict[str, Replica] = {}
    for item in found:
        if item.name in first:
            labels = (Label(first[item.name].span, "first here"),)
            yield Diagnostic("PD106", f"the replica `{item.name}` is defined twice", item.span, labels)
        first.setdefault(item.name, item)
        if item.place.rank is None:
            yield Diagnostic("PD113", "a replica with an open placement is not supported yet", item.place.span)
    for place in schedule.items:
        if isinstance(place, Place):
            labels = (Label(found[0].span, "a replica has its own"),)
            help_ = "leave it out, or make a replica of it"
            yield Diagnostic("PD106", "`place` stands beside replicas", place.span, labels, help=help_)
    if len(found) == 1:
        help_ = "give the other copy, or write its `place` alone"
        yield Diagnostic("PD115", "a schedule with replicas has two or more", found[0].span, help=help_)


__all__ = ["Named", "check_replicas", "held_chunks", "named_chunks", "places_of", "replicas_of"]
