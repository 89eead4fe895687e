"""Stages that have replicas in other pipelines: gradients are reduced over them once per step, after the last backward,
or where the schedule has the stage's REDUCE.

DistributedDataParallel would do so in every backward, and FSDP2 (`fully_shard`) in every microbatch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pipedsl.runtime.chunk import Chunk, Gradients


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


class ShardedChunk(Chunk):
    """A stage under FSDP2, whose hooks take a microbatch's gradients when the input's is known.

    So its backward is not split: I does all that B does, and W nothing. Gradients are reduced in the last backward, or,
    where `reduced`, by `reduce`. `waits`: in this step they wait for `reduce`, as the last microbatch has none, and so
    no backward. `replicas`: the ranks, of the whole job, that hold parts of the stage's parameters.
    """

    def __init__(self, module: torch.nn.Module, sharded: Sequence[Any], microbatches: int, reduced: bool) -> None:
        super().__init__(module)
        self._sharded = sharded
        self._microbatches = microbatches
        self.reduced = reduced
        self.waits = False
        meshes = [q.device_mesh.mesh for q in module.parameters() if hasattr(q, "device_mesh")]
        self.replicas = sorted({int(rank) for mesh in meshes for rank in mesh.flatten()})
        self._left = 0
        self._ran = False

    def begin(self, train: bool = True) -> None:
        super().begin(train)
        self._left = self._microbatches
        self._ran = False
        self.waits = False
        self._synchronise(False)

    def _call(self, microbatch: int, value: Any, extras: Mapping[str, Any]) -> Any:
        if not torch.is_inference_mode_enabled():
            return super()._call(microbatch, value, extras)
        with torch.inference_mode(False), torch.no_grad():  # whole parameters made here are written to in training, too
            return super()._call(microbatch, value, extras)

    def backward(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        self._left -= 1
        runs = any(gradient is not None for gradient in gradients)
        if self.reduced:
            self._ran |= runs
            return super().backward(microbatch, gradients)
        if self._left == 0 and runs:
            self._synchronise(True)
        elif self._left == 0 and self._ran:
            self.waits = True
        elif self._left == 0:
            self._reshard()
        self._ran |= runs
        return super().backward(microbatch, gradients)

    def backward_input(self, microbatch: int, gradients: Gradients) -> list[torch.Tensor | None]:
        return self.backward(microbatch, gradients)

    def backward_weight(self, microbatch: int) -> None:
        pass

    def forget(self, microbatch: int) -> None:
        super().forget(microbatch)
        self._left -= 1
        if self._left == 0:
            self._reshard()

    def reduce(self) -> None:
        """Reduce the gradients of all microbatches over the replicas, as the end of a backward would.

        torch's own pipelining goes the same way: what a module does after a backward has no other name.
        """
        if not self._ran:
            self._reshard()
            return
        self._synchronise(True)
        for each in self._sharded:
            state = each._get_fsdp_state()
            if state._is_root:
                state._root_post_backward_final_callback()

    def _reshard(self) -> None:
        """No backward follows, which would have done it."""
        for each in self._sharded:
            each.reshard()

    def _synchronise(self, last: bool) -> None:
        for each in self._sharded:
            each.set_is_last_backward(last)
            each.set_requires_gradient_sync(last, recurse=False)


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


def reduce_gradients(replicated: DistributedDataParallel) -> None:
    """The mean over the replicas in every gradient's place, by the module's own reducer: its buckets, its hooks.

    A backward that adds nothing sets the reducer going. Parameters without a gradient anywhere keep none where the
    module was made with `find_unused_parameters=True`; else they get zeros.
    """
    parameters = [q for q in replicated.module.parameters() if q.requires_grad]
    unused: list[torch.nn.Parameter] = []
    if replicated.find_unused_parameters:
        used = torch.tensor([q.grad is not None for q in parameters], dtype=torch.uint8, device=parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=replicated.process_group)
        unused = [q for q, anywhere in zip(parameters, used.tolist(), strict=True) if not anywhere]
    with torch.enable_grad():
        outputs = [q.view_as(q) for q in parameters]
    replicated.require_forward_param_sync = True  # the next forward begins with the first replica's buffers
    replicated.reducer.prepare_for_backward(outputs)
    torch.autograd.backward(outputs, [torch.zeros_like(q) for q in parameters])
    for parameter in unused:
        parameter.grad = None
