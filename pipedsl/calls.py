"""Calls: the program with its communication, as arrays. What really runs; what deadlock freedom is decided on.

Rank `r` owns rows `offsets[r]:offsets[r + 1]`. The members of a batch are neighbouring ISEND/IRECV rows with the
same `batch` number and the same `request`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import overload

import numpy as np

from pipedsl.program import Ints


class CallKind(IntEnum):
    COMPUTE = 0
    SEND = 1
    RECV = 2
    ISEND = 3
    IRECV = 4
    WAIT = 5
    REDUCE = 6


class BufferUse(IntEnum):
    """What a rank itself does with a named buffer."""

    NONE = 0
    READ = 1
    WRITE = 2
    FREE = 3


@dataclass(frozen=True, eq=False)
class Buffers:
    """The named buffers of calls; arrays of (calls,).

    `number`: the buffer that a communication or a use is of, `names[number]`, or -1. `use`: a BufferUse; rows that
    are one are of kind COMPUTE and belong to no operation.
    """

    number: Ints
    use: Ints
    names: Sequence[str] = field(repr=False)

    def of_rows(self, rows: Ints, kind: Ints) -> Buffers:
        """The same for calls made of these rows, whose kinds may be other ones than here: a wait has no buffer."""
        return Buffers(np.where(kind == CallKind.WAIT, -1, self.number[rows]), self.use[rows], self.names)


@dataclass(frozen=True, eq=False)
class Reductions:
    """What REDUCE calls sum. `group`: (calls,), the number of it, -1 for other calls.

    `names[group]`: as `stage 2`; `ranks[group]`: those that take part, in order. The k-th call of a rank meets the k-th
    of each of the others.
    """

    group: Ints
    names: Sequence[str] = field(repr=False)
    ranks: Sequence[tuple[int, ...]] = field(repr=False)

    def of_rows(self, rows: Ints) -> Reductions:
        """The same for calls made of these rows."""
        return Reductions(self.group[rows], self.names, self.ranks)


@dataclass(frozen=True)
class MessageTags(Sequence[str]):
    """Names of the messages that lowering makes.

    `F3@2` is microbatch 3's activation to stage 2, `B3@1` its gradient to stage 1.
    """

    stages: int
    microbatches: int
    replicas: int = 1

    def __len__(self) -> int:
        return 2 * self.replicas * self.stages * self.microbatches

    def number(self, backward: Ints, replica: Ints, stage: Ints, microbatch: Ints) -> Ints:
        """Tag numbers of messages to `stage`; arrays broadcast together, int64."""
        group = np.asarray(backward, np.int64) * self.replicas + replica
        return (group * self.stages + stage) * self.microbatches + microbatch

    @overload
    def __getitem__(self, tag: int) -> str: ...
    @overload
    def __getitem__(self, tag: slice) -> list[str]: ...
    def __getitem__(self, tag: int | slice) -> str | list[str]:
        if isinstance(tag, slice):
            return [self[i] for i in range(*tag.indices(len(self)))]
        rest, microbatch = divmod(int(tag), self.microbatches)
        rest, stage = divmod(rest, self.stages)
        backward, replica = divmod(rest, self.replicas)
        name = f"{'B' if backward else 'F'}{microbatch}@{stage}"
        return name if self.replicas == 1 else f"{name}/{replica}"


@dataclass(frozen=True, eq=False)
class Calls:
    """Every rank's calls; arrays of shape (calls,) unless said otherwise.

    `peer`, `tag`: of a communication, else -1; `tags[tag]` names it. `request`: of ISEND/IRECV the number of its
    request among its rank's (from 0), of WAIT the request waited for, else -1. `batch`: the number of the batch
    among its rank's, or -1. `op`: the Program row that the call belongs to (the computation, the operation that
    made or wants the message), or -1. `order`: a position of each call in one global order, both ends of a message
    in the same place, if whoever made the calls knows one; a hint that the verifier checks and does not trust.
    `buffers`: where the calls name what they send from and receive into. `reductions`: where there are REDUCE calls.
    A REDUCE holds its rank, host and all, until it has ended.
    """

    offsets: Ints
    kind: Ints
    peer: Ints
    tag: Ints
    request: Ints
    batch: Ints
    op: Ints
    tags: Sequence[str] = field(repr=False)
    order: Ints | None = None
    buffers: Buffers | None = None
    reductions: Reductions | None = None

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def ranks(self) -> int:
        return len(self.offsets) - 1

    def rows(self, rank: int) -> range:
        """The rows of one rank, in its order."""
        return range(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    def rank_of(self) -> Ints:
        """The rank of every row: (calls,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    def label(self, row: int) -> str:
        """`isend F3@2 to rank 2`, `wait 4`, `compute`."""
        kind = CallKind(self.kind[row])
        if kind is CallKind.COMPUTE:
            if self.buffers is not None and self.buffers.use[row] != BufferUse.NONE:
                return f"{BufferUse(self.buffers.use[row]).name.lower()} {self.buffers.names[self.buffers.number[row]]}"
            return "compute"
        if kind is CallKind.WAIT:
            return f"wait {self.request[row]}"
        if kind is CallKind.REDUCE:
            assert self.reductions is not None
            group, rank = int(self.reductions.group[row]), int(self.rank_of()[row])
            others = [str(other) for other in self.reductions.ranks[group] if other != rank]
            where = f" with rank{'s' if len(others) > 1 else ''} {', '.join(others)}" if others else ""
            return f"reduce {self.reductions.names[group]}{where}"
        to = "to" if kind in (CallKind.SEND, CallKind.ISEND) else "from"
        return f"{kind.name.lower()} {self.tags[int(self.tag[row])]} {to} rank {self.peer[row]}"
