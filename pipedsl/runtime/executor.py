"""One rank of a compiled pipeline, as a job uses it."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pipedsl.runtime.checkpoint import load_stage_state, stage_state
from pipedsl.runtime.clock import Clock, Mark
from pipedsl.runtime.copies import Copies
from pipedsl.runtime.data_parallel import held_back, make_chunk, unsupported
from pipedsl.runtime.exchange import Exchange
from pipedsl.runtime.extras import Extras, split_extras
from pipedsl.runtime.loop import Given, Loop, LossFunction
from pipedsl.runtime.neighbours import Neighbourhood
from pipedsl.runtime.norms import CLIPPING, clip_over_ranks
from pipedsl.runtime.options import USUAL_TIMEOUT, join, understand
from pipedsl.runtime.patience import StoreSilent
from pipedsl.runtime.plan import CannotStart, Plan, merge_backwards, read_calls, split_backwards
from pipedsl.runtime.reductions import Reductions
from pipedsl.runtime.rendezvous import agree, instance_name
from pipedsl.runtime.scaling import unscale_over_ranks
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.timeline import Timeline, gather_timeline
from pipedsl.runtime.tree import split
from pipedsl.runtime.watch import Watch, close_with
from pipedsl.runtime.wire import Wire, text_of
from pipedsl.runtime.wording import fate_of

CountFunction = Callable[[Any], float | torch.Tensor]


class Executor:
    """One rank of a compiled pipeline.

    `modules`: this rank's stages in chunk order, or the module where there is one. Stage s is called with one
    argument, what stage s - 1 returned; stage 0 with its part of the batch. What a stage returned is sent while the
    stage goes on, so it must not write to that again (buffers and tensors without gradient are copied). Where the
    schedule has copies of the stages they must begin equal, which is looked at before the first training step.
    `loss_fn(output, targets)` gives the mean loss of a microbatch, a tensor with one element. With `count_fn` it gives
    the sum instead, which is divided by `count_fn(targets)` of the whole batch: as where tokens are ignored, unevenly
    over microbatches. `tied`: parameters that other ranks hold copies of, by a name that all of them give; the copies
    get the gradient of all, and must begin equal, which is looked at before the first training step.

    `process_group`: the default one unless given. `device`: that of the modules unless given. `timeout`: seconds
    without progress after which every rank raises. `trace`: keep the times of a step for `timeline()`.
    `shared_memory`: whether ranks of one host that work on its CPU exchange messages through memory, rather than by
    the process group; the same on every rank.
    `post_mortem`: the folder where every rank leaves a state file when a step fails; unless given that which
    PIPEDSL_POST_MORTEM names, or none.

    Every rank must make its pipelines in the same order. PipelineError, on every rank, where the group, its transport
    or the modules of any rank are not what the schedule was compiled for.
    """

    def __init__(
        self,
        plan: Plan,
        modules: torch.nn.Module | Sequence[torch.nn.Module],
        loss_fn: LossFunction | None = None,
        *,
        count_fn: CountFunction | None = None,
        tied: Mapping[str, torch.nn.Parameter] | None = None,
        process_group: dist.ProcessGroup | Wire | None = None,
        device: torch.device | str | int | None = None,
        timeout: float = USUAL_TIMEOUT,
        trace: bool = False,
        shared_memory: bool = True,
        post_mortem: str | os.PathLike[str] | None = None,
    ) -> None:
        group = process_group if isinstance(process_group, dist.ProcessGroup) else None
        options = understand(modules, timeout, device, post_mortem, group)
        wire = join(process_group, options)
        self._device = options.device
        self._plan = plan
        self._wire = wire
        self._loss_fn = loss_fn
        self._count_fn = count_fn
        self._modules = options.modules
        self._losses = [loss_fn] if isinstance(loss_fn, torch.nn.Module) else []  # what of a loss is a module
        self._stages = plan.chunks(wire.rank)
        self._busy = threading.Lock()  # held while this rank does one of the things below
        self._timelines = 0  # how many have been asked for
        self._marks: Sequence[Mark] = ()
        try:
            self._name = instance_name(wire)
            self._watch = Watch(plan, wire, self._name, options.timeout, options.folder)
        except (dist.DistError, StoreSilent) as error:  # the others may have waited, and ended, long ago
            raise CannotStart(
                plan, f"{wire.store_host}, which holds the ranks' store, {fate_of(error)}: {text_of(error)}"
            ) from error
        close_with(self, self._watch)
        with self._watch.alone("making the pipeline", awaited=True):
            if options.error is not None:
                raise options.error
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self._clock = Clock(self._device) if trace else None
            self._tied = Tied(wire, wire.store(self._name), tied, [*self._modules, *self._losses])
            self._meet(options.problem, dict(tied or {}), options.timeout, shared_memory)
            self._prepare()

    def _meet(self, problem: str, tied: Mapping[str, torch.nn.Parameter], timeout: float, shares: bool) -> None:
        """Do all ranks have what the schedule was compiled for? `problem`: what is known to be wrong here already."""
        plan, wire, stages, chunks = self._plan, self._wire, self._stages, self._modules
        if wire.size != plan.ranks:
            raise CannotStart(plan, f"compiled for p = {plan.ranks} ranks, but the process group has {wire.size}")
        if not problem and len(chunks) != len(stages):
            names = ", ".join(map(plan.stage_name, stages))
            kind = "stage" if len(stages) == 1 else "stages"
            problem = f"{len(chunks)} stage modules given, but the schedule puts {len(stages)} here: {kind} {names}"
        problem = (
            problem or unsupported([*chunks, *self._losses]) or _transport_problem(plan, wire) or self._tied.problem()
        )
        self._tied.publish()
        by_stage = dict(zip(stages, chunks, strict=False))
        self._copies = Copies(wire, wire.store(self._name), plan, by_stage, self._loss_fn, tied)
        self._copies.publish()
        with contextlib.closing(Neighbourhood(wanted=shares and wire.linkable)) as near:
            device = self._device.type
            stop = self._watch.stop_if_told
            offers = agree(wire, self._name, plan, device, problem, timeout, stop, shares=shares, offer=near.offer)
            wire.links = near.connect(plan, wire.rank, offers, wire.store(self._name), timeout, stop)
        self._tied.learn(plan)
        self._copies.learn()

    def _prepare(self) -> None:
        """Put together what the steps will run."""
        plan, wire, stages = self._plan, self._wire, self._stages
        calls = merge_backwards(read_calls(plan, wire.rank))
        modules = dict(zip(stages, self._modules, strict=True))
        self._losses_here = self._losses if any(map(plan.is_last, stages)) else []
        self._reductions = Reductions(plan, modules, self._losses_here, calls, self._copies, self._tied, self._watch)
        self._own_results = [i for stage in stages if plan.is_last(stage) for i in plan.own_microbatches(stage)]
        stage_chunks = {
            stage: make_chunk(
                module, plan.microbatches_each, split_backwards(calls, stage), self._reductions.has(stage)
            )
            for stage, module in modules.items()
        }
        self._reductions.learn(stage_chunks)
        self._exchange = Exchange(plan, wire, self._name, self._device, self._watch)
        self._loop = Loop(
            plan, calls, stage_chunks, self._loss_fn, self._exchange, self._watch, self._device, self._reductions.reduce
        )

    def step(
        self,
        batch: Any = None,
        targets: Any = None,
        *,
        extras: Extras | None = None,
        train: bool = True,
        scale: float = 1.0,
        seed: int | None = None,
    ) -> Any:
        """Run the schedule once.

        `batch` is read on the first stage's rank and `targets` on the last one's: a tensor or a nested structure of
        tensors, each with the microbatches along dimension 0 and with as many rows in all. Gradients of the mean loss
        over the whole batch add to `.grad`, times `scale`, which is read on the last stage's rank. On that rank the
        losses of the microbatches, shape (m,), in order, whose mean is the batch's loss; elsewhere None. Copies of the
        stages divide the batch: every copy's first and last stage's rank is given the whole, and has its own losses.

        `extras`: read on every rank: keyword arguments for its stages. Each stage is given those that its forward
        names. Tensors are split as the batch is, other values given to every microbatch; or a list of m dicts.

        `seed`: the same on every rank: what a forward draws at random, as in dropout, depends on this number, the stage
        and the microbatch alone. Give every step another one, as its number. Unless given, forwards draw from the
        process's generators as they come.

        `train=False`: forward only, without gradients. Modules keep their mode: call `.eval()` as usual. Without
        loss_fn or targets the last stage's rank gets the list of its outputs, one per microbatch.

        PipelineError, on every rank, when anything fails on any rank.
        """
        with (
            self._one_at_a_time("step()"),
            self._together("beginning a step", self._kind_of_step(train, seed)),
        ):
            device = self._device.type
            autocast = torch.is_autocast_enabled(device)
            # Backwards run in the types that their forwards ran in, and not once more under autocast.
            off = torch.autocast(device, enabled=False) if autocast else contextlib.nullcontext()
            if not isinstance(train, bool):
                raise TypeError(f"train must be True or False, not a {type(train).__name__}")
            with torch.set_grad_enabled(train), off, held_back(self._reductions.parts):
                result = self._run(batch, targets, extras, train, scale, seed, autocast)
            if train:
                self._reductions.finish()
        return result

    def unscale_(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """`scaler.unscale_(optimizer)` for a torch.amp.GradScaler, so that all ranks skip a step or none does.

        Call it on every rank after `step(..., scale=scaler.get_scale())`; then `scaler.step(optimizer)` and
        `scaler.update()` as usual.
        """
        if isinstance(scaler, torch.amp.GradScaler) and not scaler.is_enabled():
            return
        with self._one_at_a_time("unscale_()"), self._together("unscaling the gradients"):
            unscale_over_ranks(self._wire, scaler, optimizer, self._device)

    def state_dict(self, whole: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
        """What this rank has to save, for `torch.distributed.checkpoint.save`; or to fill, for its `load`.

        `whole`: the model that the stages were cut from, whose names it uses: what one number of ranks saved, another
        can load. ValueError where the stages are not parts of it.
        """
        with self._one_at_a_time("state_dict()"), self._watch.alone("gathering the state to save"):
            return stage_state(self._modules, self._losses_here, whole, optimizer)

    def load_state_dict(
        self, whole: torch.nn.Module, state: dict[str, Any], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Take over a `state_dict` that has been filled. Call it on every rank."""
        with self._one_at_a_time("load_state_dict()"):
            with self._watch.alone("taking over a saved state"):
                load_stage_state(self._modules, self._losses_here, whole, state, optimizer)
            self._tied.loaded()
            self._copies.loaded()

    def renew_shapes(self) -> None:
        """Let the next step have other sizes than those before, as sequences of another length.

        Call it on every rank, between steps, and, where stages are sharded over replicas, on those of all replicas.
        That step agrees on shapes, and on what needs a gradient, as the first one did.
        """
        with self._one_at_a_time("renew_shapes()"):
            self._loop.renew()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the gradients of all stages together, as `torch.nn.utils.clip_grad_norm_` does in one process.

        Call it on every rank. The norm before, the same on every rank. Tied parameters count once. Those of a loss_fn
        that is a module count too.
        """
        with self._one_at_a_time("clip_grad_norm_()"), self._together(CLIPPING):
            parameters = [q for module in (*self._modules, *self._losses) for q in module.parameters()]
            elsewhere = self._tied.counted_elsewhere() | self._copies.counted_elsewhere()
            position = self._watch.position
            return clip_over_ranks(
                self._wire,
                parameters,
                elsewhere,
                self._device,
                max_norm,
                norm_type,
                lambda what, among: position.note(what, among=among),
            )

    def timeline(self) -> Timeline:
        """What every rank computed when in the last step, on one clock, if made with `trace=True` on every rank.

        Call it on every rank, between steps; every rank gets it.
        """
        with self._one_at_a_time("timeline()"), self._together("gathering the timeline"):
            self._timelines += 1
            store = self._wire.store(f"{self._name}/timeline/{self._timelines}")
            events = [] if self._clock is None else self._clock.events(self._marks, self._plan.stages)
            return gather_timeline(self._wire, store, events, self._watch)

    # ------------------------------------------------------------------ inside a step

    def _one_at_a_time(self, what: str) -> _OneAtATime:
        return _OneAtATime(self._busy, what)

    def _together(self, what: str, step: str = "") -> _Together:
        return _Together(self._watch, self._exchange, what, step)

    def _kind_of_step(self, train: bool, seed: int | None) -> str:
        """In words, for other ranks to compare with theirs. What cannot be is found out later, when they are told."""
        trains = train if isinstance(train, bool) else True
        words = ["training" if trains else "evaluating"]
        words += [f"seed {seed}"] if type(seed) is int else []
        words += ["after renew_shapes()"] if self._exchange.renewed else []
        loaded = self._tied.reloaded or self._copies.reloaded
        words += ["after load_state_dict()"] if trains and loaded else []
        return ", ".join(words)

    def _run(
        self,
        batch: Any,
        targets: Any,
        extras: Extras | None,
        train: bool,
        scale: float,
        seed: int | None,
        autocast: bool,
    ) -> Any:
        if seed is not None and type(seed) is not int:
            raise TypeError(f"seed must be an int, not a {type(seed).__name__}")
        if train and torch.is_inference_mode_enabled():
            raise ValueError("torch.inference_mode() leaves nothing to train with; call step outside of it")
        m = self._plan.microbatches
        first, last = (any(map(each, self._stages)) for each in (self._plan.is_first, self._plan.is_last))
        parts, rows = split(batch, m, "the batch") if first else ([], 0)
        with_loss = self._loss_fn is not None and targets is not None
        wanted, target_rows = split(targets, m, "targets") if last and with_loss else ([], 0)
        if last and train and not with_loss:
            missing = "targets" if self._loss_fn is not None else "a loss_fn"
            raise ValueError(f"training needs {missing} on the last stage's rank")
        share = 1 / m  # of a microbatch's loss in the step's
        if self._count_fn is not None and wanted:
            count = float(self._count_fn(targets))
            if not 0 < count < math.inf:
                raise ValueError(f"count_fn must return a positive number for the batch's targets, not {count:g}")
            share = 1 / count
        given = Given(parts, rows, wanted, target_rows, split_extras(extras, m), scale * share, train, autocast, seed)
        if parts and wanted:
            given.compare_rows(rows)
        if train:
            self._tied.begin(self._watch)
            self._copies.begin(self._watch, rows, self._exchange.agreement)
        self._marks = given.marks
        self._loop.run(given, self._clock)
        if not last:
            return None
        results = [given.results[i] for i in self._own_results]
        if not with_loss:
            return results
        losses = torch.stack(results)
        return losses if self._count_fn is None else losses * (share * m)


class _OneAtATime:
    """While inside, this rank does nothing else; RuntimeError in who begins something else meanwhile.

    As another thread may, or a hook of the step's. `busy`: held by who does something.
    """

    def __init__(self, busy: threading.Lock, what: str) -> None:
        self._busy = busy
        self._what = what

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                f"{self._what} was called while this rank's pipeline was not done with an earlier call, as by another "
                "thread, or inside of a step; call one after the other"
            )

    def __exit__(self, *_: Any) -> None:
        self._busy.release()


class _Together:
    """While inside, what fails on any rank, or does not go on, is a PipelineError on every one.

    Not a generator, out of which a StopIteration would come as what it is.
    """

    def __init__(self, watch: Watch, exchange: Exchange, what: str, step: str) -> None:
        self._watch = watch
        self._exchange = exchange
        self._what = what, step

    def __enter__(self) -> None:
        self._watch.begin(*self._what)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is not None:
                self._exchange.stop()
                failed = self._watch.explain(error)
                if isinstance(error, Exception):  # an interrupt goes on as what it is, with the others told
                    raise failed from (error if self._watch.began_here else None)
        finally:
            self._watch.end()


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
