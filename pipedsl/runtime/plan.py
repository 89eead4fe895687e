"""What the schedule was compiled to: the plan, and its calls read back from their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

COMPUTE_KINDS = ("F", "B", "I", "W")
WORK_KINDS = (*COMPUTE_KINDS, "REDUCE")  # what is no message


class PipelineError(RuntimeError):
    """The pipeline cannot go on; every rank of it raises one, and each names the rank where it began."""


@dataclass(frozen=True)
class Plan:
    """A compiled schedule. `calls[r]` holds rank r's calls, one a line; `placement[s]` is the rank of stage s.

    `copies` names the copies of all stages, where there are several. The numbers of stages and microbatches then count
    on from copy to copy: the second one's first stage has the number `stages`, the number of stages of one copy, and
    `microbatches` is how many all of them run in a step. For people a stage is called `1/up`.

    A line is a computation `F stage microbatch line`, a sum of gradients `REDUCE stage line`, a message
    `isend F3@1 peer line` (or irecv, send, recv) or `wait request line`; `request` counts the rank's isends and irecvs
    from 0, `line` is that of the schedule's text. `transports`: the verdict on each, as `{"gloo": "safe"}`.
    """

    schedule: str
    source: str
    params: Mapping[str, int]
    fingerprint: str
    transports: Mapping[str, str]
    ranks: int
    stages: int
    microbatches: int
    placement: Sequence[int]
    calls: Sequence[str] = field(repr=False)
    copies: Sequence[str] = ()

    def chunks(self, rank: int) -> list[int]:
        """The stages of a rank, in chunk order."""
        return [stage for stage, owner in enumerate(self.placement) if owner == rank]

    def is_first(self, stage: int) -> bool:
        """Whether a stage reads the batch."""
        return stage % self.stages == 0

    def is_last(self, stage: int) -> bool:
        """Whether a stage's output is the model's."""
        return stage % self.stages == self.stages - 1

    @property
    def microbatches_each(self) -> int:
        """How many microbatches a copy runs in a step."""
        return self.microbatches // max(1, len(self.copies))

    def own_microbatches(self, stage: int) -> range:
        """Those that a stage runs."""
        first = stage // self.stages * self.microbatches_each
        return range(first, first + self.microbatches_each)

    def stage_name(self, stage: int) -> str:
        """A stage as people call it: `1`, or `1/up`."""
        return f"{stage % self.stages}/{self.copies[stage // self.stages]}" if self.copies else str(stage)

    def microbatch_name(self, microbatch: int) -> int:
        """A microbatch as its copy counts it."""
        return microbatch % self.microbatches_each

    @property
    def title(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.schedule}({params})"


class CannotStart(PipelineError):
    """A pipeline is not made; `why`, in words that are good for every rank."""

    def __init__(self, plan: Plan, why: str) -> None:
        super().__init__(f"{plan.title} cannot start: {why}")
        self.why = why


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a rank.

    `stage`, `microbatch`: of the computation, or of the message, whose stage is its destination; a REDUCE has -1 for
    the microbatch. `backward`: the
    message is a gradient. `peer`: the other rank, also of a wait, else -1. `request`: of isend, irecv and wait, else
    -1. `receives`: of a message and of a wait. `stage_name`, `number`: stage and microbatch as people call them.
    """

    kind: str
    stage: int
    microbatch: int
    peer: int
    request: int
    backward: bool
    receives: bool
    line: int
    stage_name: str
    number: int

    @property
    def cell(self) -> tuple[int, int]:
        return self.stage, self.microbatch

    @property
    def message(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.number}@{self.stage_name}"

    @property
    def label(self) -> str:
        """What it is called where times are shown: `F s2 mb3`, `REDUCE s2`; of a message there, `wait F s2 mb3`."""
        if self.kind == "REDUCE":
            return f"REDUCE s{self.stage_name}"
        what = self.kind if self.kind in COMPUTE_KINDS else f"{self.kind} {'B' if self.backward else 'F'}"
        return f"{what} s{self.stage_name} mb{self.number}"

    def describe(self, source: str) -> str:
        """`F of stage 1, microbatch 3 (x.sched:14)`, `wait for B3@1 from rank 2 (x.sched:14)`."""
        if self.kind in COMPUTE_KINDS:
            text = f"{self.kind} of stage {self.stage_name}, microbatch {self.number}"
        elif self.kind == "REDUCE":
            text = f"REDUCE of stage {self.stage_name}"
        elif self.kind == "wait":
            way = "to arrive from" if self.receives else "to be taken by"
            text = f"wait for {self.message} {way} rank {self.peer}"
        else:
            text = f"{self.kind} {self.message} {'from' if self.receives else 'to'} rank {self.peer}"
        return f"{text} ({source}:{self.line})" if self.line else text


def read_calls(plan: Plan, rank: int) -> list[PlannedCall]:
    """The calls of one rank from their lines. ValueError where a line is not one."""

    calls: list[PlannedCall] = []
    requests: list[PlannedCall] = []
    for row in plan.calls[rank].split("\n"):
        if not row:
            continue
        kind, *words = row.split(" ")
        if kind in COMPUTE_KINDS:
            stage, microbatch, line = map(int, words)
            names = plan.stage_name(stage), plan.microbatch_name(microbatch)
            calls.append(PlannedCall(kind, stage, microbatch, -1, -1, False, False, line, *names))
        elif kind == "REDUCE":
            stage, line = map(int, words)
            calls.append(PlannedCall(kind, stage, -1, -1, -1, False, False, line, plan.stage_name(stage), -1))
        elif kind == "wait":
            request, line = map(int, words)
            made = requests[request]
            calls.append(replace(made, kind=kind, request=request, line=line))
        elif kind in ("isend", "irecv", "send", "recv"):
            message, peer, line = words[0], int(words[1]), int(words[2])
            microbatch, stage = map(int, message[1:].split("@"))
            request = len(requests) if kind[0] == "i" else -1
            receives = kind.endswith("recv")
            names = plan.stage_name(stage), plan.microbatch_name(microbatch)
            backward = message[0] == "B"
            calls.append(PlannedCall(kind, stage, microbatch, peer, request, backward, receives, line, *names))
            if kind[0] == "i":
                requests.append(calls[-1])
        else:
            raise ValueError(f"not a call: {row!r}")
    return calls


def merge_backwards(calls: Sequence[PlannedCall]) -> list[PlannedCall]:
    """The calls with every I that its own W follows at once, which no message waits for between them, as one B."""
    merged: list[PlannedCall] = []
    for call in calls:
        before = merged[-1] if merged else None
        if before and call.kind == "W" and (before.kind, *before.cell) == ("I", *call.cell):
            merged[-1] = replace(before, kind="B")
        else:
            merged.append(call)
    return merged


def split_backwards(calls: Sequence[PlannedCall], stage: int) -> frozenset[int]:
    """The microbatches of a stage that have an I and a W."""
    return frozenset(call.microbatch for call in calls if call.kind == "I" and call.stage == stage)


def forward_only(calls: Sequence[PlannedCall]) -> list[PlannedCall]:
    """The calls that evaluation needs: forwards and their messages, in the same order.

    Both ends leave out the same messages, so what could not deadlock still cannot.
    """
    return [call for call in calls if call.kind == "F" or (call.kind not in WORK_KINDS and not call.backward)]
