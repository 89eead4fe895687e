"""Program: every rank's operations in order, as arrays. What verification, simulation and export share.

Rank `r` owns rows `offsets[r]:offsets[r + 1]` of every per-operation array. A row is one operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipedsl.diagnostics import Span

Ints = NDArray[Any]


class Kind(IntEnum):
    """Operation kinds. `B` = `I` then `W`. OFFLOAD, RELOAD and RECOMPUTE are reserved for later."""

    F = 0
    B = 1
    I = 2  # noqa: E741  (the field's letter for "backward of the input")
    W = 3
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    OFFLOAD = 8
    RELOAD = 9
    RECOMPUTE = 10
    REDUCE = 11


COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)
COMMUNICATION = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
WORK = (*COMPUTE, Kind.REDUCE)
"""What keeps a rank busy."""


@dataclass(frozen=True)
class Costs:
    """Durations per stage, exact, in the file's unit of time.

    `send[s]`: from stage s to a neighbour on another rank. `reduce[s]`: of a REDUCE of stage s, once all of its copies
    are there; nothing where it is left empty.
    """

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    backward_input: tuple[Fraction, ...]
    backward_weight: tuple[Fraction, ...]
    send: tuple[Fraction, ...]
    reduce: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        if not self.reduce:
            object.__setattr__(self, "reduce", (Fraction(0),) * len(self.forward))

    def of(self, kind: Kind) -> tuple[Fraction, ...]:
        """Durations per stage of a kind of work."""
        return {
            Kind.F: self.forward,
            Kind.B: self.backward,
            Kind.I: self.backward_input,
            Kind.W: self.backward_weight,
            Kind.REDUCE: self.reduce,
        }[kind]

    def repeated(self, copies: int) -> Costs:
        """Those of the stages of so many replicas, one after the other."""
        each = (self.forward, self.backward, self.backward_input, self.backward_weight, self.send, self.reduce)
        return Costs(*(values * copies for values in each))


@dataclass(frozen=True)
class Memory:
    """Sizes per stage and caps per rank, exact, in the file's unit (activations unless sizes are given).

    `held_by_w[s]` is what stays of `activation[s]` from the end of I until the end of W. `input[s]` is what is kept
    beside the activation from the start of F until the end of B or I. `output[s]` is what stage s sends to stage s + 1
    (and the gradient that comes back). `weights`, `gradients` and `optimizer` are there all the time, once for every
    replica. A cap of None is no cap. `optimizer` and `input` are nothing where they are left empty.
    """

    activation: tuple[Fraction, ...]
    held_by_w: tuple[Fraction, ...]
    weights: tuple[Fraction, ...]
    gradients: tuple[Fraction, ...]
    output: tuple[Fraction, ...]
    cap: tuple[Fraction | None, ...]
    in_bytes: bool = False
    optimizer: tuple[Fraction, ...] = ()
    input: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        for name in ("optimizer", "input"):
            if not getattr(self, name):
                object.__setattr__(self, name, (Fraction(0),) * len(self.activation))


@dataclass(frozen=True, eq=False)
class Program:
    """Every rank's operations.

    `placement`: (replicas, stages) -> rank. `offsets`: (p + 1,). `kind`, `stage`, `microbatch` (-1 of a REDUCE),
    `replica`, `span` (an index into `spans`): (operations,). `copies`: the names of the replicas, where there are
    several.
    """

    name: str
    params: Mapping[str, int]
    ranks: int
    stages: int
    microbatches: int
    placement: Ints
    offsets: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    replica: Ints
    span: Ints
    spans: Sequence[Span] = field(repr=False)
    costs: Costs = field(repr=False)
    memory: Memory = field(repr=False)
    header_span: Span | None = None
    rank_spans: tuple[Span | None, ...] = ()
    copies: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def rows(self, rank: int) -> range:
        """The rows of one rank, in its order."""
        return range(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    def rank_of(self) -> Ints:
        """The rank of every row: (operations,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    def chunks(self, rank: int) -> list[tuple[int, int]]:
        """The (replica, stage) of each chunk of a rank, in chunk order."""
        return [
            (replica, stage)
            for replica in range(self.placement.shape[0])
            for stage in range(self.stages)
            if self.placement[replica, stage] == rank
        ]

    def label(self, row: int) -> str:
        """`F stage 2 microbatch 3`, with the replica where there is more than one."""
        text = f"{Kind(self.kind[row]).name} stage {self.stage[row]}"
        if self.kind[row] != Kind.REDUCE:
            text += f" microbatch {self.microbatch[row]}"
        return text if self.placement.shape[0] == 1 else f"{text} replica {self.replica_name(int(self.replica[row]))}"

    def replica_name(self, number: int) -> str:
        """What the text calls a replica; its number where it has no name."""
        return self.copies[number] if 0 <= number < len(self.copies) else str(number)

    def span_of(self, row: int) -> Span:
        return self.spans[int(self.span[row])]

    @property
    def explicit_communication(self) -> bool:
        """True when the text places sends and receives itself."""
        return bool(np.any((self.kind >= Kind.SEND_F) & (self.kind <= Kind.RECV_B)))
