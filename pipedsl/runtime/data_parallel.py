"""Stages that have replicas in other pipelines: gradients are reduced over them once per step, after the last backward,
or where the schedule has the stage's REDUCE.

DistributedDataParallel would do so in every backward, and FSDP2 (`fully_shard`) in every microbatch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.graph import GradientEdge
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from pipedsl.runtime.chunk import Chunk, Gradients
from pipedsl.runtime.deferred import is_watched, run_backward

_Edge = torch.Tensor | GradientEdge
_LEAVES = (torch.Tensor, torch.nn.Module, type, str, bytes, range, int, float, complex, type(None))
_ACCUMULATES = "torch::autograd::AccumulateGrad"  # the node of a leaf
_WRAPPED_BEFORE = "DistributedDataParallel was made, which does not reduce their gradients: wrap the module again"


def make_chunk(module: torch.nn.Module, microbatches: int, split: Collection[int], reduced: bool) -> Chunk:
    """The chunk for a module of any kind. `split`: the microbatches whose backward runs as I and W.

    `reduced`: the schedule says where its gradients are reduced.
    """
    sharded = sharded_parts(module)
    return ShardedChunk(module, sharded, microbatches, reduced) if sharded else Chunk(module, split)


def sharded_parts(module: torch.nn.Module) -> list[Any]:
    """What of a module `fully_shard` has been applied to. Its class is not imported: who does not use it need not."""
    names = ("set_requires_gradient_sync", "set_is_last_backward")
    return [each for each in module.modules() if all(hasattr(each, name) for name in names)]


class _End(NamedTuple):
    """A tensor of what a module returned, without holding it: where a backward begins, and what it begins with.

    `now`: the edge when the loss was there. It is another one where that wrote to the tensor in place.
    """

    edge: _Edge
    zeros: Callable[[], torch.Tensor]
    now: _Edge


class ShardedChunk(Chunk):
    """A stage under FSDP2, whose hooks take a microbatch's gradients when the input's is known.

    So its backward is not split: I does all that B does, and W nothing. Gradients are reduced in the last backward, or,
    where `reduced`, by `reduce`.

    The stage's replicas gather its parameters in forwards and in backwards, and must do so in one order. So where no
    gradient comes for a microbatch, which may be so on this replica alone, a backward of zeros runs all the same, and
    one that does for some outputs begins with zeros where another replica has a gradient. That needs outputs to begin
    with, so which of them need a gradient must be the same on all replicas. That is compared in the first training
    step, and in that after `renew`; else each replica looks only whether it has changed here. Which of several have one
    on any replica is asked of each microbatch; or then alone, where this rank's Python may be ahead of the device.
    """

    def __init__(self, module: torch.nn.Module, sharded: Sequence[Any], microbatches: int, reduced: bool) -> None:
        super().__init__(module)
        self._sharded = sharded
        self._microbatches = microbatches
        self.reduced = reduced
        self._is_last = False
        self._reshard()  # else a forward before this has left parameters whole, which know of no mesh
        meshes = dict.fromkeys(q.device_mesh for q in module.parameters() if hasattr(q, "device_mesh"))
        self._groups = [(group, mesh.device_type) for mesh in meshes for group in mesh.get_all_groups()]
        self._is_ahead = any(device != "cpu" for _, device in self._groups)
        self.replicas = sorted({rank for group, _ in self._groups for rank in dist.get_process_group_ranks(group)})
        self._is_alone = len(self.replicas) < 2
        self._ends: dict[int, list[_End]] = {}
        self._returned: dict[int, list[torch.Tensor]] = {}  # of these the tensors, until the loss is there
        self._trains = False
        self._trained: list[bool] = []  # which of the parameters were to get a gradient when replicas were compared
        self._agreed: dict[int, list[bool]] = {}  # by microbatch: which of what the module returned needs a gradient
        self._begun: dict[int, list[bool]] = {}  # and with which of those some replica's backward begins
        self._told: list[Any] = []  # what is under way, and has to live until it has been sent
        self._left = 0
        self._ran = False  # whether any backward of this step had a gradient for the stage
        self._idle = False  # none had on any replica

    def learn(self, beside: Sequence[Chunk], loss: Any) -> None:
        super().learn(beside, loss)
        self._is_last = loss is not None

    def begin(self, train: bool = True) -> None:
        super().begin(train)
        self._left = self._microbatches
        self._ran = self._idle = False
        self._trains = train
        if train:
            self._synchronise(False)
            if self._trained != (trained := [q.requires_grad for q in self._module.parameters()]):
                self._trained = trained  # frozen or not, on all replicas: so these can be compared anew
                self.renew()

    def renew(self) -> None:
        self._agreed.clear()
        self._begun.clear()

    def _call(self, microbatch: int, value: Any, extras: Mapping[str, Any]) -> Any:
        if torch.is_inference_mode_enabled():
            # Whole parameters made here are written to in training, too.
            with torch.inference_mode(False), torch.no_grad():
                return super()._call(microbatch, value, extras)
        output = super()._call(microbatch, value, extras)
        if self._trains:
            leaves = list(_leaves_of(output, {}))
            returned = self._returned[microbatch] = [y for y in leaves if _is_trained(y)]
            self._ends[microbatch] = [_end_at(y) for y in returned]
            needs = [_is_trained(y) for y in leaves]
            if self._agreed.get(microbatch) != needs:
                self._agree(microbatch, needs)
        return output

    def keep(self, microbatch: int, outputs: Sequence[torch.Tensor]) -> None:
        super().keep(microbatch, outputs)
        returned, ends = self._returned.pop(microbatch), self._ends[microbatch]
        if self._is_last:  # the loss may have written to views, which lie behind other nodes since
            self._ends[microbatch] = [
                end._replace(now=_edge_of(y)) if y.requires_grad else end for y, end in zip(returned, ends, strict=True)
            ]

    def _agree(self, microbatch: int, needs: list[bool]) -> None:
        """Take over which of its outputs need a gradient; ValueError where that is not so on all replicas.

        A backward here would wait for one there that never runs.
        """
        rule = "with fully_shard it must need one alike on all replicas of the stage, in every step"
        renew = "unless all ranks of all replicas call renew_shapes() before"
        if (agreed := self._agreed.get(microbatch)) is not None:
            raise ValueError(
                f"a gradient is needed of {_which_of(needs)} that the stage returned for this microbatch, but was of "
                f"{_which_of(agreed)} in the first training step; {rule}, {renew}"
            )
        known = {dist.get_rank(): needs}
        for group, _ in self._groups:
            found: list[dict[int, list[bool]]] = [{}] * group.size()
            dist.all_gather_object(found, known, group)
            known = {rank: theirs for each in found for rank, theirs in each.items()}
        if any(theirs != needs for theirs in known.values()):
            said = ", ".join(f"{_which_of(known[rank])} on global rank {rank}" for rank in sorted(known))
            differ = "replicas differ in what needs a gradient of what the stage returned for this microbatch"
            raise ValueError(f"{differ}: {said}; {rule}")
        self._agreed[microbatch] = needs

    def _anywhere(self, flags: list[bool]) -> list[bool]:
        """Which of these are so on any replica."""
        for group, device in self._groups:
            found = torch.tensor(flags, dtype=torch.uint8, device=device)
            dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
            flags = [bool(each) for each in found.tolist()]
        return flags

    def backward(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        starts, _ = self._kept[microbatch].start(gradients)
        ends = self._ends.pop(microbatch)
        begun = self._begun_here(microbatch, starts, ends)
        runs = any(begun) or (bool(starts) and self._is_alone)
        self._ran |= runs
        ends = self._without_gradient(microbatch, ends, begun)
        self._left -= 1
        reduces = self._left == 0 and not self.reduced
        if reduces and self._runs_anywhere():
            self._synchronise(True)
        elif reduces:
            ends, reduces = [], False
            self._reshard()
        if runs:
            kept = self._kept[microbatch]
            kept.outputs = [*kept.outputs, *(end.edge for end in ends)]
            found = super().backward(microbatch, [*gradients, *(end.zeros() for end in ends)])
        else:
            found = super().backward(microbatch, gradients)  # of the loss's own parameters, if of anything
            if ends:
                with _adding_zeros(self._sharded):
                    run_backward([end.edge for end in ends], [end.zeros() for end in ends])
        if reduces:  # what a backward before has reached, and this one has not, or there was nothing to run
            self._end_backward()
        return found

    def _begun_here(self, microbatch: int, starts: Sequence[_Edge], ends: Sequence[_End]) -> list[bool]:
        """Which outputs have a gradient here. At the last stage a loss may have one without them, as of its parameters.

        ValueError where it depends on the stage, but on none of its outputs: no other replica can know of that.
        """
        if not starts or self._is_alone or (len(ends) == 1 and not self._is_last):
            return [bool(starts)] * len(ends)
        begun = _reached(starts, [*(end.edge for end in ends), *(end.now for end in ends)])
        begun = [then or now for then, now in zip(begun[: len(ends)], begun[len(ends) :], strict=True)]
        if self._is_last and not any(begun):
            inside = [*self._kept[microbatch].inputs, *(each._unsharded_param for each in _parameters(self._sharded))]
            if any(_reached(starts, inside)):
                raise ValueError(
                    "the loss depends on the stage, but on no tensor that was found in what it returned for this "
                    "microbatch; with fully_shard return all that it depends on in tuples, lists, dicts or dataclasses"
                )
        return begun

    def _without_gradient(self, microbatch: int, ends: list[_End], begun: list[bool]) -> list[_End]:
        """The outputs that have no gradient here, but do on another replica.

        A backward that does not begin with them would not gather what these were made with, where the other's does.
        Of one output alone that is not asked.
        """
        if len(ends) < 2:
            return [] if any(begun) else ends
        known = self._begun.get(microbatch)
        if known is None:
            known = self._anywhere(begun)
            if self._is_ahead and any(known):  # else all ask again in the next step
                self._begun[microbatch] = known
        if any(here and not anywhere for here, anywhere in zip(begun, known, strict=True)):
            raise ValueError(
                f"the loss depends on {_which_of(begun)} that the stage returned for this microbatch and needs a "
                f"gradient, but on {_which_of(known)} in the first training step, on all replicas; with fully_shard "
                "let it always depend on the same, as by adding 0 * output.sum(), or call renew_shapes() on all ranks "
                "of all replicas before"
            )
        return [end for end, here, anywhere in zip(ends, begun, known, strict=True) if anywhere and not here]

    def backward_input(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        return self.backward(microbatch, gradients)

    def backward_weight(self, microbatch: int) -> None:
        pass

    def forget(self, microbatch: int) -> None:
        super().forget(microbatch)
        self._ends.pop(microbatch, None)
        self._left -= 1
        if self._left == 0:
            self._reshard()

    def reduce(self) -> None:
        """Reduce the gradients of all microbatches over the replicas."""
        if self._runs_anywhere():
            self._synchronise(True)
            self._end_backward()
        else:
            self._reshard()

    def _end_backward(self) -> None:
        """What FSDP2 does when a backward has run, which has no other name: torch's own pipelining does it likewise."""
        for each in self._sharded:
            state = each._get_fsdp_state()
            if state._is_root:
                state._root_post_backward_final_callback()

    def finish(self) -> None:
        """A step has ended. Where there was no gradient anywhere, there is none now, and not one of zeros."""
        if self._idle:
            for each in _parameters(self._sharded):
                each._unsharded_param.grad = each.unsharded_accumulated_grad = None
            self._synchronise(True)  # as it is outside of steps

    def _runs_anywhere(self) -> bool:
        """Whether a backward of this step had a gradient, on any replica; all must ask. Who knows does not wait."""
        self._told.clear()
        found = self._ran
        for group, device in self._groups:
            flag = torch.full((1,), found, dtype=torch.uint8, device=device)
            work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=group, async_op=True)
            self._told.append((flag, work))
            if not self._ran and work is not None:
                work.wait()
                found = bool(flag.item())
        self._idle = not found
        return found

    def _reshard(self) -> None:
        """No backward follows, which would have done it."""
        for each in self._sharded:
            each.reshard()

    def _synchronise(self, last: bool) -> None:
        for each in self._sharded:
            each.set_is_last_backward(last)
            each.set_requires_gradient_sync(last, recurse=False)


def _which_of(needs: Sequence[bool]) -> str:
    """Which of the things that a module returned."""
    if all(needs) or not any(needs):
        return "all" if any(needs) else "nothing"
    return f"{', '.join(str(i) for i, each in enumerate(needs) if each)} (of 0 to {len(needs) - 1})"


def _leaves_of(output: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """What a module returned, in order, also what lies in objects that torch does not look into, as dataclasses."""
    for leaf in tree_leaves(output):
        inner = None if isinstance(leaf, _LEAVES) or callable(leaf) else _inside(leaf)
        if inner is None:
            yield leaf
        elif id(leaf) not in seen:
            seen[id(leaf)] = leaf  # and so kept: its number is not another one's meanwhile
            yield from _leaves_of(inner, seen)


def _inside(leaf: Any) -> list[Any] | None:
    """The parts of a mapping, a sequence, a set or an object; None of what has none."""
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, (Sequence, Set)):
        return list(leaf)
    fields = {name: getattr(leaf, name, None) for name in getattr(leaf, "__dataclass_fields__", ())}
    fields.update(getattr(leaf, "__dict__", {}))
    return list(fields.values()) or None


def _is_trained(y: Any) -> bool:
    return isinstance(y, torch.Tensor) and y.requires_grad


def _reached(starts: Sequence[_Edge], ends: Sequence[_Edge]) -> list[bool]:
    """Which of the ends a backward from these starts comes to first: a loss is made of outputs, or they are outputs."""
    names = [_name_of(end) for end in ends]
    wanted = set(names)
    waiting, seen = list(starts), set()
    found: set[tuple[int, int]] = set()
    while waiting and len(found) < len(wanted):
        edge = waiting.pop()
        if (name := _name_of(edge)) in wanted:
            found.add(name)
        elif isinstance(edge, GradientEdge) and edge.node not in seen:
            seen.add(edge.node)  # and so kept: its number is not another one's meanwhile
            for node, number in edge.node.next_functions:
                if node is not None:
                    leaf = getattr(node, "variable", None) if node.name() == _ACCUMULATES else None
                    waiting.append(GradientEdge(node, number) if leaf is None else leaf)
    return [name in found for name in names]


def _edge_of(y: torch.Tensor) -> _Edge:
    return y if y.grad_fn is None else GradientEdge(y.grad_fn, y.output_nr)


def _name_of(edge: _Edge) -> tuple[int, int]:
    return (id(edge.node), edge.output_nr) if isinstance(edge, GradientEdge) else (id(edge), 0)


def _end_at(y: torch.Tensor) -> _End:
    edge = _edge_of(y)
    if type(y) is torch.Tensor:
        return _End(edge, partial(torch.zeros, y.shape, dtype=y.dtype, device=y.device), edge)
    return _End(edge, partial(torch.zeros_like, y.detach()), edge)  # of a distributed one, with the same placements


def _parameters(sharded: Sequence[Any]) -> Iterator[Any]:
    """What FSDP2 knows of each parameter. It has no other name for the gradient of one that is whole."""
    for each in sharded:
        state = each._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # before torch 2.11 there was one at most
        for group in [state._fsdp_param_group] if groups is None else groups:
            if group is not None:
                yield from (q for q in group.fsdp_params if hasattr(q, "_unsharded_param"))


@contextlib.contextmanager
def _adding_zeros(sharded: Sequence[Any]) -> Iterator[None]:
    """While inside, backwards add zeros to gradients, also where their own would be no numbers, as 0 times infinity."""
    with contextlib.ExitStack() as stack:
        for each in _parameters(sharded):
            if each._unsharded_param.requires_grad:
                stack.callback(each._unsharded_param.register_hook(torch.zeros_like).remove)
        yield


def replicated_parts(modules: Sequence[torch.nn.Module]) -> list[DistributedDataParallel]:
    """What of these modules DistributedDataParallel has wrapped, each once: stages may share a module."""
    every = dict.fromkeys(each for module in modules for each in module.modules())
    return [each for each in every if isinstance(each, DistributedDataParallel)]


def unsupported(modules: Sequence[torch.nn.Module]) -> str:
    """What of these modules a pipeline cannot run, in words; empty where there is nothing."""
    for module in modules:
        for each in module.modules():
            if type(each).__name__ == "FullyShardedDataParallel":
                return "FullyShardedDataParallel reduces gradients in every backward; use fully_shard, or DDP"
            if isinstance(each, DistributedDataParallel) and each.static_graph:
                return (
                    "DistributedDataParallel with static_graph=True counts what a backward uses, but a pipeline "
                    "reduces gradients apart from its backwards; leave it out"
                )
    return ""


@contextlib.contextmanager
def held_back(replicated: Sequence[DistributedDataParallel]) -> Iterator[None]:
    """While inside, no backward reduces gradients."""
    with contextlib.ExitStack() as stack:
        for each in replicated:
            stack.enter_context(each.no_sync())
        yield


def _knows(replicated: DistributedDataParallel, parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Whether its reducer was made for all of these parameters.

    It does not say for which it was, but how many, and it holds what accumulates the gradients of each. It waits for
    those of its own that are missing among these, unless they may be unused; then only who is held tells them apart.
    """
    known: dict[str, int] = replicated._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    if len(parameters) > known["num_parameter_tensors"]:
        return False
    return not replicated.find_unused_parameters or all(map(is_watched, parameters))


def reduce_gradients(replicated: DistributedDataParallel) -> None:
    """The mean over the replicas in every gradient's place, by the module's own reducer: its buckets, its hooks.

    A backward that adds nothing sets the reducer going. Parameters without a gradient anywhere keep none where the
    module was made with `find_unused_parameters=True`; else they get zeros. ValueError where the reducer waits for a
    parameter that has been frozen, or has never heard of one that is trained: it would leave gradients as they are.
    """
    replicated.require_forward_param_sync = True  # the next forward begins with the first replica's buffers
    named, ignored = replicated.module.named_parameters(), replicated.parameters_to_ignore
    parameters = [q for name, q in named if q.requires_grad and name not in ignored]
    if not _knows(replicated, parameters):
        raise ValueError(f"parameters are trained that were frozen, or not there, when {_WRAPPED_BEFORE}")
    if not parameters:
        return  # all are frozen by now
    unused: list[torch.nn.Parameter] = []
    if replicated.find_unused_parameters:
        used = torch.tensor([q.grad is not None for q in parameters], dtype=torch.uint8, device=parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=replicated.process_group)
        unused = [q for q, anywhere in zip(parameters, used.tolist(), strict=True) if not anywhere]
    with torch.enable_grad():
        outputs = [q.view_as(q) for q in parameters]
    replicated.reducer.prepare_for_backward(outputs)
    torch.autograd.backward(outputs, [torch.zeros_like(q) for q in parameters])
    try:
        replicated._check_reducer_finalized()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        why = f"parameters are frozen that were trained when {_WRAPPED_BEFORE}"
        raise ValueError(f"{why}; or use find_unused_parameters=True") from error
    for parameter in unused:
        parameter.grad = None
