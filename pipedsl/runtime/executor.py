"""The loop that runs one rank's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pipedsl.runtime.chunk import Chunk
from pipedsl.runtime.clock import Clock, Event
from pipedsl.runtime.exchange import Exchange
from pipedsl.runtime.plan import COMPUTE_KINDS, PipelineError, Plan, PlannedCall, forward_only, read_calls
from pipedsl.runtime.rendezvous import agree, instance_name
from pipedsl.runtime.tree import Layout, flatten, split
from pipedsl.runtime.watch import Watch, close_with
from pipedsl.runtime.wire import TorchWire, Wire, choose_device

LossFunction = Callable[[Any, Any], torch.Tensor]


class Executor:
    """One rank of a compiled pipeline.

    `modules`: this rank's stages in chunk order, or the module where there is one. Stage s is called with one
    argument, what stage s - 1 returned; stage 0 with its part of the batch. `loss_fn(output, targets)` gives the mean
    loss of a microbatch, a tensor with one element. `process_group`: the default one unless given. `device`: that of
    the modules unless given. `timeout`: seconds without progress after which every rank raises. `trace`: keep the
    times of a step for `timeline()`.

    Every rank must make its pipelines in the same order. PipelineError, on every rank, where the group or the modules
    of any rank are not what the schedule was compiled for.
    """

    def __init__(
        self,
        plan: Plan,
        modules: torch.nn.Module | Sequence[torch.nn.Module],
        loss_fn: LossFunction | None = None,
        *,
        process_group: dist.ProcessGroup | Wire | None = None,
        device: torch.device | str | int | None = None,
        timeout: float = 300.0,
        trace: bool = False,
    ) -> None:
        chunks = [modules] if isinstance(modules, torch.nn.Module) else list(modules)
        group = process_group if process_group is None or isinstance(process_group, dist.ProcessGroup) else None
        self._device = choose_device(chunks, group) if device is None else torch.device(device)
        if process_group is None or isinstance(process_group, dist.ProcessGroup):
            wire: Wire = TorchWire(process_group, self._device)
        else:
            wire = process_group
        if wire.size != plan.ranks:
            raise PipelineError(
                f"{plan.title} was compiled for p = {plan.ranks} ranks, but the process group has {wire.size}"
            )
        stages = plan.chunks(wire.rank)
        problem = ""
        if len(chunks) != len(stages):
            problem = f"{len(chunks)} stage modules given, but the schedule puts {len(stages)} here: stages {stages}"
        name = instance_name(wire)
        agree(wire, name, plan, self._device.type, problem, timeout)
        self._plan = plan
        self._wire = wire
        self._loss_fn = loss_fn
        self._clock = Clock(self._device) if trace else None
        self._marks: list[tuple[PlannedCall, Any, Any]] = []
        self._chunks = {stage: Chunk(module) for stage, module in zip(stages, chunks, strict=True)}
        calls = read_calls(plan.calls[wire.rank])
        self._calls = {True: calls, False: forward_only(calls)}
        self._watch = Watch(plan, wire, name, timeout)
        close_with(self, self._watch)
        self._exchange = Exchange(plan, wire, name, self._device, self._watch)

    def step(self, batch: Any = None, targets: Any = None, *, train: bool = True) -> Any:
        """Run the schedule once.

        `batch` is read on the first stage's rank and `targets` on the last one's: a tensor or a nested structure of
        tensors, each with the microbatches along dimension 0. Gradients of the mean loss over the whole batch add to
        `.grad`. On the last stage's rank the losses of the microbatches, shape (m,), in order; elsewhere None.

        `train=False`: forward only, without gradients. Modules keep their mode: call `.eval()` as usual. Without
        loss_fn or targets the last stage's rank gets the list of its outputs, one per microbatch.

        PipelineError, on every rank, when anything fails on any rank.
        """
        self._watch.begin()
        try:
            with torch.set_grad_enabled(train):
                result = self._run(batch, targets, train)
        except Exception as error:
            self._exchange.stop()
            failed = self._watch.explain(error)
            raise failed from (error if self._watch.began_here else None)
        except BaseException as error:  # an interrupt: tell the others, and let it go on as what it is
            self._exchange.stop()
            self._watch.explain(error)
            raise
        finally:
            self._watch.end()
        return result

    def timeline(self) -> list[Event]:
        """The computations of the last step on this rank, in order, if made with `trace=True`."""
        clock = self._clock
        if clock is None:
            return []
        return [
            Event(f"{c.kind}{c.microbatch}@{c.stage}", c.kind, c.stage, c.microbatch, clock.read(a), clock.read(b))
            for c, a, b in self._marks
        ]

    # ------------------------------------------------------------------ inside a step

    def _run(self, batch: Any, targets: Any, train: bool) -> Any:
        m, last = self._plan.microbatches, self._plan.stages - 1
        parts: list[Any] = split(batch, m, "the batch") if 0 in self._chunks else []
        with_loss = self._loss_fn is not None and targets is not None
        wanted: list[Any] = []
        if last in self._chunks:
            if train and not with_loss:
                missing = "targets" if self._loss_fn is not None else "a loss_fn"
                raise ValueError(f"training needs {missing} on the last stage's rank")
            wanted = split(targets, m, "targets") if with_loss else []
        extra = list(self._loss_fn.parameters()) if isinstance(self._loss_fn, torch.nn.Module) else []
        for stage, chunk in self._chunks.items():
            chunk.begin(extra if stage == last else ())
        results: list[Any] = [None] * m
        self._marks.clear()
        if self._clock:
            self._clock.begin()
        position, watch = self._watch.position, self._watch
        self._exchange.begin(self._calls[True], train)
        for call in self._calls[train]:
            watch.stop_if_failed()
            position.move(call)
            if call.kind not in COMPUTE_KINDS:
                self._exchange.run(call)
                continue
            start = self._clock.now() if self._clock else None
            if call.kind == "F":
                self._forward(call, parts, wanted, results, train)
            else:
                self._backward(call)
            if self._clock:
                self._marks.append((call, start, self._clock.now()))
        if last not in self._chunks:
            return None
        return torch.stack(results) if with_loss else results

    def _forward(self, call: PlannedCall, parts: list[Any], wanted: list[Any], results: list[Any], train: bool) -> None:
        stage, microbatch = call.stage, call.microbatch
        chunk = self._chunks[stage]
        if stage == 0:
            output = chunk.run_first(microbatch, parts[microbatch])
            parts[microbatch] = None
        else:
            output = chunk.forward(microbatch, self._exchange.take_input(stage, microbatch))
        if stage < self._plan.stages - 1:
            structure, leaves = flatten(output, f"the output of stage {stage}")
            self._exchange.give_output(stage + 1, microbatch, Layout.of(structure, leaves), leaves)
            outputs = leaves
        elif wanted:
            assert self._loss_fn is not None
            loss = self._loss_fn(output, wanted[microbatch])
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise TypeError(f"loss_fn must return a tensor with one element, not {shape}")
            loss = loss.reshape(())
            results[microbatch] = loss.detach()
            outputs = [loss]
        else:
            results[microbatch] = output
            outputs = []
        if train:
            chunk.keep(microbatch, outputs)
        else:
            chunk.forget(microbatch)

    def _backward(self, call: PlannedCall) -> None:
        stage, microbatch = call.stage, call.microbatch
        chunk = self._chunks[stage]
        if call.kind == "W":
            chunk.backward_weight(microbatch)
            return
        if stage == self._plan.stages - 1:
            gradients: Sequence[torch.Tensor] = chunk.seed(microbatch, 1 / self._plan.microbatches)
        else:
            gradients = self._exchange.take_gradients(stage, microbatch)
        results = (chunk.backward if call.kind == "B" else chunk.backward_input)(microbatch, gradients)
        if stage > 0:
            self._exchange.give_gradients(stage - 1, microbatch, results)
