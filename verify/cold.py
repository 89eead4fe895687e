"""Cold NCCL: which calls are first uses, and which hosts they hold until all of them are there.

The first use of a communicator gathers its members, the first use of a direction its sender and receiver. A batch is
launched all or nothing, so everything that one call takes part in is one barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from pipedsl.calls import Calls
from pipedsl.program import Ints
from verify.matching import RECEIVES, SENDS
from verify.transports import Communicators, Transport

# What a warm-up connects: ("pair", a, b) or ("group", a, b), ranks a < b, on their own communicator or the group's.
# ("group", -1, -1) makes the group's communicator and connects nobody.
Edge = tuple[str, int, int]
GROUP: Edge = ("group", -1, -1)
# The edge, what is used for the first time, and the rows (None: a rank never does).
_Use = tuple[Edge, str, tuple[int | None, ...]]


@dataclass(frozen=True, eq=False)
class FirstUses:
    """`step[k]` takes part in `barrier[k]`, of which there are `count`; `impossible` ones lack a participant.

    `gathered`: what each single use is of, and its steps. `lacking`: the same for those that some rank never makes.
    `edges`: what each of `gathered` connects.
    """

    step: Ints
    barrier: Ints
    count: int
    impossible: Ints
    gathered: tuple[tuple[str, tuple[int, ...]], ...]
    lacking: tuple[tuple[str, tuple[int, ...]], ...]
    edges: tuple[Edge, ...]

    def edges_at(self, steps: Collection[int]) -> set[Edge]:
        """What the first uses that any of these steps takes part in connect."""
        return {
            edge for edge, (_, own) in zip(self.edges, self.gathered, strict=True) if not set(own).isdisjoint(steps)
        }

    def path(self, step: int, other: int) -> list[tuple[int, str, int]]:
        """The shortest chain of single uses that holds `step` until `other` is reached: (step, use, next step)."""
        came: dict[int, tuple[int, str, int]] = {}
        queue = deque([step])
        while queue and other not in came:
            here = queue.popleft()
            for what, steps in self.gathered:
                for there in steps if here in steps else ():
                    if there != here and there not in came:
                        came[there] = (here, what, there)
                        queue.append(there)
        chain: list[tuple[int, str, int]] = []
        while other in came and (not chain or other != step):
            chain.append(came[other])
            other = chain[-1][0]
        return chain[::-1]


def first_uses(calls: Calls, transport: Transport, step_of_row: Ints, warm: frozenset[Edge] = frozenset()) -> FirstUses:
    """The barriers of a cold transport, found from the first row of every kind of use on every rank.

    `warm`: edges that were used before. One of the group's has made the group's communicator too.
    """
    if any(edge[0] == "group" for edge in warm):
        warm |= {GROUP}
    uses = [*_directions(calls, transport), *_communicators(calls, transport)]
    uses = [use for use in uses if use[0] not in warm]
    group: dict[int, int] = {}  # union-find over steps

    def root(step: int) -> int:
        while group.setdefault(step, step) != step:
            group[step] = step = group[group[step]]
        return step

    lacking, gathered = [], []
    for _, what, rows in uses:
        steps = [int(step_of_row[row]) for row in rows if row is not None]
        gathered.append((what, tuple(steps)))
        for step in steps:
            group[root(step)] = root(steps[0])
        if len(steps) < len(rows):
            lacking.append(gathered[-1])
    members = sorted(group)
    roots = {root(step): 0 for step in members}
    number = {step: index for index, step in enumerate(roots)}
    return FirstUses(
        np.array(members, np.int64),
        np.array([number[root(step)] for step in members], np.int64),
        len(number),
        np.array(sorted({number[root(steps[0])] for _, steps in lacking}), np.int64),
        tuple(gathered),
        tuple(lacking),
        tuple(edge for edge, _, _ in uses),
    )


def _first_rows(calls: Calls, rows: Ints, *columns: Ints) -> dict[tuple[int, ...], int]:
    """The first row for each combination of values of the columns."""
    if not len(rows):
        return {}
    table = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    values, first = np.unique(table, axis=0, return_index=True)
    return {tuple(value): int(rows[at]) for value, at in zip(values.tolist(), first.tolist(), strict=True)}


def _talks(calls: Calls) -> Ints:
    return np.flatnonzero(np.isin(calls.kind, SENDS + RECEIVES))


def _directions(calls: Calls, transport: Transport) -> list[_Use]:
    """Sender and receiver of each direction of each communicator at their first use of it."""
    rows = _talks(calls)
    rank, peer = calls.rank_of()[rows], calls.peer[rows]
    sends = np.isin(calls.kind[rows], SENDS)
    by_pair = transport.communicators is not Communicators.WORLD
    batched = (calls.batch[rows] >= 0) & (transport.communicators is Communicators.PAIR)
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    first = _first_rows(calls, rows, batched, source, target, sends)
    uses = dict.fromkeys(use[:3] for use in first)
    return [
        (
            ("pair" if by_pair and not use[0] else "group", min(use[1:]), max(use[1:])),
            f"the direction from rank {use[1]} to rank {use[2]}",
            (first.get((*use, 1)), first.get((*use, 0))),
        )
        for use in uses
    ]


def _communicators(calls: Calls, transport: Transport) -> list[_Use]:
    """Lazy initialisation: both ranks of each pair at their first unbatched call, all ranks at their first batch."""
    if transport.communicators is not Communicators.PAIR:
        return []
    rows = _talks(calls)
    rank, peer, batched = calls.rank_of()[rows], calls.peer[rows], calls.batch[rows] >= 0
    single = rows[~batched], rank[~batched], peer[~batched]
    first = _first_rows(calls, single[0], single[1], single[2])
    pairs = {(min(pair), max(pair)) for pair in first}
    gathered: list[_Use] = [
        (("pair", a, b), f"the communicator of ranks {a} and {b}", (first.get((a, b)), first.get((b, a))))
        for a, b in sorted(pairs)
    ]
    if batched.any():
        of_rank = _first_rows(calls, rows[batched], rank[batched])
        rows_of_all = tuple(of_rank.get((number,)) for number in range(calls.ranks))
        gathered.append((GROUP, "the communicator of the group", rows_of_all))
    return gathered
