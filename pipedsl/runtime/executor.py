"""The loop that runs one rank's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    argument, what stage s - 1 returned; stage 0 with its part of the batch. What a stage returned is sent while the
    stage goes on, so it must not write to that again (buffers and tensors without gradient are copied).
    `loss_fn(output, targets)` gives the mean loss of a microbatch, a tensor with one element. `process_group`: the
    default one unless given. `device`: that of the modules unless given. `timeout`: seconds without progress after
    which every rank raises. `trace`: keep the times of a step for `timeline()`.

    Every rank must make its pipelines in the same order. PipelineError, on every rank, where the group, its transport
    or the modules of any rank are not what the schedule was compiled for.
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
        chunks, problem = _modules(modules)
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
        if not problem and len(chunks) != len(stages):
            problem = f"{len(chunks)} stage modules given, but the schedule puts {len(stages)} here: stages {stages}"
        problem = problem or _transport_problem(plan, wire)
        name = instance_name(wire)
        agree(wire, name, plan, self._device.type, problem, timeout)
        self._plan = plan
        self._wire = wire
        self._loss_fn = loss_fn
        self._clock = Clock(self._device) if trace else None
        self._marks: list[tuple[PlannedCall, Any, Any]] = []
        self._rows = self._target_rows = 0  # of a microbatch
        self._chunks = {stage: Chunk(module) for stage, module in zip(stages, chunks, strict=True)}
        calls = read_calls(plan.calls[wire.rank])
        self._calls = {True: calls, False: forward_only(calls)}
        self._watch = Watch(plan, wire, name, timeout)
        close_with(self, self._watch)
        self._exchange = Exchange(plan, wire, name, self._device, self._watch)

    def step(self, batch: Any = None, targets: Any = None, *, train: bool = True) -> Any:
        """Run the schedule once.

        `batch` is read on the first stage's rank and `targets` on the last one's: a tensor or a nested structure of
        tensors, each with the microbatches along dimension 0 and with as many rows in all. Gradients of the mean loss
        over the whole batch add to `.grad`. On the last stage's rank the losses of the microbatches, shape (m,), in
        order; elsewhere None.

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
        parts, self._rows = split(batch, m, "the batch") if 0 in self._chunks else ([], 0)
        with_loss = self._loss_fn is not None and targets is not None
        wanted: list[Any] = []
        if last in self._chunks:
            if train and not with_loss:
                missing = "targets" if self._loss_fn is not None else "a loss_fn"
                raise ValueError(f"training needs {missing} on the last stage's rank")
            wanted, self._target_rows = split(targets, m, "targets") if with_loss else ([], 0)
            if parts and wanted:
                self._compare_rows(self._rows)
        for chunk in self._chunks.values():
            chunk.begin()
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
            output, rows = chunk.run_first(microbatch, parts[microbatch]), self._rows
            parts[microbatch] = None
        else:
            arrived = self._exchange.take_input(stage, microbatch)
            output, rows = chunk.forward(microbatch, arrived), arrived.rows
        if stage < self._plan.stages - 1:
            structure, outputs = flatten(output, f"the output of stage {stage}")
            layout = Layout.of(structure, outputs, rows)
            self._exchange.give_output(stage + 1, microbatch, layout, chunk.handed_over(outputs))
        elif wanted:
            assert self._loss_fn is not None
            self._compare_rows(rows)
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

    def _compare_rows(self, rows: int) -> None:
        """ValueError where targets are not for the batch's rows; a loss may broadcast them and say nothing."""
        if rows != self._target_rows:
            m = self._plan.microbatches
            raise ValueError(f"the batch has {rows * m} rows, but targets has {self._target_rows * m}")


def _modules(given: Any) -> tuple[list[torch.nn.Module], str]:
    """The stage modules as a list, and what is wrong with them."""
    if isinstance(given, torch.nn.Module):
        return [given], ""
    if not isinstance(given, Iterable) or isinstance(given, str):
        return [], f"stage_modules must be a torch.nn.Module or a list of them, not a {type(given).__name__}"
    modules = list(given)
    for each in modules:
        if not isinstance(each, torch.nn.Module):
            return [], f"stage_modules must be torch.nn.Modules, not a {type(each).__name__}"
    return modules, ""


def _transport_problem(plan: Plan, wire: Wire) -> str:
    """Why this schedule must not run here: what carries its messages may hang."""
    verdict = plan.transports.get(wire.transport)
    if verdict == "safe":
        return ""
    safe = ", ".join(name for name, each in plan.transports.items() if each == "safe")
    if verdict is None:
        why = "which this schedule was not verified for"
    else:
        why = f"where this schedule is not safe ({verdict})"
    return f"the process group's transport is {wire.transport}, {why}; it is safe on {safe or 'none'}"
