"""The loop that runs one rank's calls. What each of them has to do is put together before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pipedsl.runtime.chunk import Chunk, Gradients
from pipedsl.runtime.clock import Clock, Mark
from pipedsl.runtime.exchange import Exchange
from pipedsl.runtime.overlaps import versions
from pipedsl.runtime.plan import WORK_KINDS, Plan, PlannedCall, forward_only
from pipedsl.runtime.seeded import seeded
from pipedsl.runtime.timeline import labelled
from pipedsl.runtime.tree import flatten_output
from pipedsl.runtime.watch import Watch

LossFunction = Callable[[Any, Any], torch.Tensor]


@dataclass(slots=True)
class Given:
    """What one step is given, and what it makes: `results` and `marks`; and whether some loss here `trains` anything.

    `parts`, `wanted`, `extras`: the batch, the targets and the extra inputs, by microbatch; `rows`, `target_rows`: of
    a microbatch. `seed`: what the backward of a microbatch's loss begins with. `draws`: the seed of random numbers.
    """

    parts: list[Any]
    rows: int
    wanted: list[Any]
    target_rows: int
    extras: Sequence[Mapping[str, Any]]
    seed: float
    train: bool
    autocast: bool
    draws: int | None = None
    results: list[Any] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    trains: bool = False

    def compare_rows(self, rows: int) -> None:
        """ValueError where targets are not for the batch's rows; a loss may broadcast them and say nothing."""
        if rows != self.target_rows:
            m = len(self.extras)
            raise ValueError(f"the batch has {rows * m} rows, but targets has {self.target_rows * m}")


class Loop:
    """The calls of a rank, for training and for evaluation, each with what runs it."""

    def __init__(
        self,
        plan: Plan,
        calls: Sequence[PlannedCall],
        chunks: Mapping[int, Chunk],
        loss_fn: LossFunction | None,
        exchange: Exchange,
        watch: Watch,
        device: torch.device,
        reduce: Callable[[PlannedCall], None],
    ) -> None:
        self._firsts = frozenset(stage for stage in chunks if plan.is_first(stage))
        self._lasts = frozenset(stage for stage in chunks if plan.is_last(stage))
        self._names = {stage: plan.stage_name(stage) for stage in chunks}
        self._stages = plan.stages
        self._microbatches = plan.microbatches
        self._chunks = chunks
        self._loss_fn = loss_fn
        self._exchange = exchange
        self._watch = watch
        self._device = device
        self._reduce = reduce
        self._calls = calls
        self._given = Given([], 0, [], 0, (), 0.0, False, False)
        self._seeds: dict[int, list[torch.Tensor]] = {}  # what the backwards begin with, by microbatch
        self._seed: torch.Tensor | None = None  # the same for the microbatches of a step
        for stage, chunk in chunks.items():
            chunk.learn(tuple(chunks.values()), loss_fn if stage in self._lasts else None)
        self._programs = {
            True: [(call, self._prepare(call)) for call in calls],
            False: [(call, self._prepare(call)) for call in forward_only(calls)],
        }

    def renew(self) -> None:
        """The next step may have other sizes, and train something else."""
        self._exchange.forget_layouts()
        for chunk in self._chunks.values():
            chunk.renew()

    def run(self, given: Given, clock: Clock | None) -> None:
        """Run a step's calls; with a clock, note when each computation and REDUCE began and ended."""
        self._given = given
        given.results = [None] * self._microbatches
        self._seeds.clear()
        self._seed = None
        for chunk in self._chunks.values():
            chunk.begin(given.train)
            chunk.once = given.draws is not None
        if clock:
            clock.begin()
        self._exchange.begin(self._calls, given.train, given.draws)
        position, watch = self._watch.position, self._watch
        program = self._programs[given.train]
        if given.autocast:
            program = [(call, self._under_autocast(act) if call.kind == "F" else act) for call, act in program]
        if given.draws is not None:
            program = [
                (call, self._seeded(call, act, given.draws) if call.kind == "F" else act) for call, act in program
            ]
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # else names cost more than the loop
            program = [(call, labelled(call, act)) for call, act in program]
        if clock:
            program = [
                (call, _timed(call, act, clock, given.marks) if call.kind in WORK_KINDS else act)
                for call, act in program
            ]
        for call, act in program:
            if watch.failure is not None:
                watch.stop_if_failed()
            position.at = call
            act()
        whole = given.train and bool(given.wanted) and None not in given.results  # no part of them, as copies have
        if whole and not given.trains and any(map(self._has_to_train, self._lasts)):
            raise ValueError("no loss requires a gradient, though there is something to train; is there a `detach()`?")

    def _has_to_train(self, stage: int) -> bool:
        """Whether the stage, or one before it, has something to train."""
        return self._chunks[stage].is_trained or self._exchange.takes_gradients(stage)

    def _prepare(self, call: PlannedCall) -> Callable[[], None]:
        if call.kind == "REDUCE":
            return partial(self._reduce, call)
        if call.kind not in WORK_KINDS:
            return self._exchange.prepare(call)
        stage, microbatch = call.cell
        chunk = self._chunks[stage]
        if call.kind == "F":
            return partial(self._forward, chunk, stage, microbatch)
        if call.kind == "W":
            return partial(chunk.backward_weight, microbatch)
        return partial(self._backward, chunk.backward if call.kind == "B" else chunk.backward_input, stage, microbatch)

    def _under_autocast(self, act: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast(self._device.type):
                act()

        return run

    def _seeded(self, call: PlannedCall, act: Callable[[], None], seed: int) -> Callable[[], None]:
        stage, microbatch = call.stage % self._stages, call.microbatch

        def run() -> None:
            with seeded(seed, stage, microbatch):
                act()

        return run

    def _forward(self, chunk: Chunk, stage: int, microbatch: int) -> None:
        given = self._given
        if stage in self._firsts:
            value, given.parts[microbatch] = given.parts[microbatch], None
            output, rows = chunk.run_first(microbatch, value, given.extras[microbatch]), given.rows
        else:
            arrived = self._exchange.take_input(stage, microbatch)
            before = versions(arrived.leaves) if len(arrived.leaves) > 1 else []
            output, rows = chunk.forward(microbatch, arrived, given.extras[microbatch]), arrived.rows
            if before:
                self._exchange.look_for_writes(stage, arrived, before)
        if stage not in self._lasts:
            structure, outputs = flatten_output(output, "the output of stage ", self._names[stage])
            handed = chunk.handed_over(microbatch, outputs)
            self._exchange.give_output(stage + 1, microbatch, structure, outputs, rows, *handed)
        elif given.wanted:
            outputs = [self._loss(output, microbatch, rows)]
        else:
            given.results[microbatch] = output
            outputs = []
        if given.train:
            chunk.keep(microbatch, outputs)
        else:
            chunk.forget(microbatch)

    def _loss(self, output: Any, microbatch: int, rows: int) -> torch.Tensor:
        """A microbatch's loss, whose backward it prepares."""
        given = self._given
        given.compare_rows(rows)
        assert self._loss_fn is not None
        loss = self._loss_fn(output, given.wanted[microbatch])
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn must return a tensor with one element, not {shape}")
        if loss.dim():
            loss = loss.reshape(())
        given.trains |= loss.requires_grad
        value = given.results[microbatch] = loss.detach().clone()  # alone: torch may keep it in memory for more
        if not loss.requires_grad:
            self._seeds[microbatch] = []
        elif self._seed is not None and self._seed.dtype == value.dtype and self._seed.device == value.device:
            self._seeds[microbatch] = [self._seed]
        else:
            self._seed = torch.full_like(value, given.seed)
            self._seeds[microbatch] = [self._seed]
        return loss

    def _backward(
        self, run: Callable[[int, Gradients], list[torch.Tensor | None]], stage: int, microbatch: int
    ) -> None:
        if stage in self._lasts:
            gradients: Gradients = self._seeds.pop(microbatch)
        else:
            gradients = self._exchange.take_gradients(stage, microbatch)
        results = run(microbatch, gradients)
        if stage not in self._firsts:
            self._exchange.give_gradients(stage - 1, microbatch, results)


def _timed(call: PlannedCall, act: Callable[[], None], clock: Clock, marks: list[Mark]) -> Callable[[], None]:
    """`act`, noting when it began and ended."""

    def run() -> None:
        start = clock.now()
        act()
        marks.append((call, start, clock.now()))

    return run
