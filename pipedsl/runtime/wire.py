"""The process group as the executor uses it: point-to-point messages, a store, and a way out of a blocked wait."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from pipedsl.runtime.patience import Helper, PatientStore
from pipedsl.runtime.shared_memory import Link

Store = Any  # torch.distributed.Store, which torch hides from type checkers

TENSORS_PER_MESSAGE = 256
_LONGEST_TEXT = 4000  # characters
_TAG_LIMIT = 1 << 30
_WAKE_TAG = _TAG_LIMIT + 1  # no message has it, so a receive with it never completes
WARM_UP_TAG = _TAG_LIMIT + 2
TIED_TAG = _TAG_LIMIT + 3
COPIES_TAG = _TAG_LIMIT + 4


class ConnectionLost(RuntimeError):
    """A message could not go on for what happened at the other end; its cause is what the transport raised."""


class Wire(Protocol):
    """What the executor needs of the other ranks. `TorchWire` is the real one; tests bring others.

    `ranks`: the number of each in the whole job, where there may be others of its number here. `strangers`: how many
    ranks the job has besides.
    `transport`: which of those that schedules are verified for this is, every edge warm; its own name if none.
    `in_order`: messages are matched by the order of posting, so a receive cannot be posted later than its call.
    `store_host`: who holds the store, in words; `hosts_store`: this process does. `links`: what connects this rank
    with others of its host, which messages of a schedule then take; `linkable`: there may be some.
    """

    rank: int
    size: int
    ranks: Sequence[int]
    strangers: int
    transport: str
    in_order: bool
    linkable: bool
    links: Mapping[int, Link]
    hosts_store: bool
    store_host: str

    def store(self, name: str, *, for_thread: bool = False) -> Store:
        """A store that all ranks share, under keys of its own. `for_thread`: usable while the main thread is stuck."""

    def job_store(self, *, for_thread: bool = False) -> Store:
        """The same for all ranks of the job, whichever their pipeline."""

    def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        """Begin to send; the result has `wait()`. The tensor must not change before that."""

    def irecv(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        """Begin to receive into `tensor`; the result has `wait()`."""

    def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> None:
        """Put the sum over all ranks in the tensor's place, or the largest; the same bits on every rank.

        ConnectionLost where another rank is gone.
        """

    def lost(self, error: Exception) -> bool:
        """Whether it is the connection that is at fault where `isend` or `irecv` raised this."""

    def wake(self, peer: int) -> None:
        """From another thread: make a wait for `peer` that blocks this rank raise. Breaks the connection."""

    def give_up(self, message: str) -> None:
        """The rank cannot be brought back to Python: say why and end its process."""


class TorchWire:
    """A torch.distributed process group: gloo for tensors in main memory, NCCL for those on a GPU.

    `timeout`: seconds after which a store that does not answer is given up.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, timeout: float) -> None:
        if not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group() before making a Pipeline")
        world = dist.group.WORLD
        chosen = world if group is None else group
        assert chosen is not None
        self._group = chosen
        self.rank = dist.get_rank(chosen)
        if self.rank < 0:
            raise RuntimeError("this process is not in the process group that the Pipeline was given")
        self.size = dist.get_world_size(chosen)
        self.ranks: Sequence[int] = dist.get_process_group_ranks(chosen)
        self.strangers = dist.get_world_size() - self.size
        backend = backend_name(chosen, device)
        eager = chosen.bound_device_id is not None  # as init_process_group(device_id=...) makes it
        self.transport = f"nccl-{'eager' if eager else 'lazy'}-warm" if backend == "nccl" else backend
        self.in_order = backend != "gloo"
        self.linkable = backend == "gloo" and device.type == "cpu"
        self.links: Mapping[int, Link] = {}
        # A communicator of NCCL's runs one message at a time: with one for each direction, a receive that is posted
        # early holds up no send. What is safe on one communicator is safe on two, which wait for less.
        self._by_direction = backend == "nccl" and not eager and self.ranks == sorted(self.ranks)
        self._groups: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None
        with_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.hosts_store = dist.get_rank() == 0 and not with_agent
        self.store_host = "torchrun's agent" if with_agent else "the process of global rank 0"
        self._device = device
        self._clone: Store = None
        # The watchdog has one of its own: it must not queue behind what the main thread asks.
        self._helpers = {for_thread: Helper(timeout) for for_thread in (False, True)}

    def store(self, name: str, *, for_thread: bool = False) -> Store:
        return self._shared(f"pipedsl/{self._group.group_name}/{name}", for_thread)

    def job_store(self, *, for_thread: bool = False) -> Store:
        return self._shared("pipedsl/job", for_thread)

    def _shared(self, prefix: str, for_thread: bool) -> Store:
        shared: Store = dist.distributed_c10d._get_default_store()
        if for_thread and self.in_order:
            # NCCL keeps the store's connection to itself while it sets up a communicator. Where that does not happen
            # the connection is shared: a new one can take seconds.
            shared = self._clone = self._clone or shared.clone()
        return PatientStore(PrefixStore(prefix, shared), self._helpers[for_thread])

    def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        group = self._towards(self.rank < peer) if self._by_direction else self._group
        # What dist.isend ends in, without its 4 µs. Backends know no complex numbers.
        return group.send([torch.view_as_real(tensor) if tensor.is_complex() else tensor], peer, tag)

    def irecv(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        group = self._towards(peer < self.rank) if self._by_direction else self._group
        return group.recv([torch.view_as_real(tensor) if tensor.is_complex() else tensor], peer, tag)

    def _towards(self, higher: bool) -> dist.ProcessGroup:
        """The group of messages to higher ranks, or to lower ones. All ranks make them with their first message."""
        if self._groups is None:
            made = [dist.new_group(list(self.ranks), use_local_synchronization=True) for _ in range(2)]
            self._groups = made[0], made[1]
        return self._groups[higher]

    def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> None:
        try:
            dist.all_reduce(tensor, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self._group)
        except Exception as error:
            if self.lost(error):
                raise ConnectionLost(str(error)) from error
            raise

    def lost(self, error: Exception) -> bool:
        return isinstance(error, dist.DistError) or "gloo/transport" in text_of(error)

    def wake(self, peer: int) -> None:
        if peer in self.links:
            self.links[peer].shut()
        with contextlib.suppress(RuntimeError):
            if self.in_order:
                for group in (self._group, *(self._groups or ())):
                    group._get_backend(self._device).abort()
                return
            # gloo's abort() leaves a blocked wait alone. A receive that times out closes the pair, which ends it.
            self.irecv(torch.zeros(1), peer, _WAKE_TAG).wait(timedelta(milliseconds=1))

    def give_up(self, message: str) -> None:
        say(message)
        os._exit(1)


def called(wire: Wire, rank: int) -> str:
    """A rank in words, with its number in the whole job where that is another."""
    among_all = wire.ranks[rank]
    return f"rank {rank}" if among_all == rank else f"rank {rank} (global rank {among_all})"


def text_of(error: BaseException) -> str:
    """What an error says, or the beginning of it: a store, and a reader, can take no more."""
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception as another:
        return f"its text cannot be had, for a {type(another).__name__}"


def say(message: str) -> None:
    """To standard error, whatever may be wrong with it."""
    with contextlib.suppress(Exception):
        print(message, file=sys.stderr, flush=True)


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """`gloo`, `nccl` or another: what carries tensors of this device; `none` where nothing does."""
    try:
        return str(group._get_backend(device).name())
    except RuntimeError:
        return "none"


def choose_device(modules: list[torch.nn.Module], group: dist.ProcessGroup | None) -> torch.device:
    """Where the messages live: with the modules, or, where these hold nothing, where the backend works."""
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            return tensor.device
    chosen = group or (dist.group.WORLD if dist.is_initialized() else None)
    if chosen is not None and torch.cuda.is_available() and backend_name(chosen, torch.device("cuda")) == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return torch.device("cpu")


def message_tag(backward: bool, stage: int, microbatch: int, microbatches: int) -> int:
    """The gloo tag of a message's first tensor; the next ones count up. No two messages share one."""
    tag = ((stage * microbatches + microbatch) * 2 + backward) * TENSORS_PER_MESSAGE
    return tag % _TAG_LIMIT  # in schedules so large that tags wrap, order still tells messages of one tag apart


def step_tag(step: int, cells: int) -> int:
    """What the tags of a step's messages are moved by, to be others than those of the steps before.

    `step`: any number; `cells`: stages by microbatches. 0 where a schedule is so large that there is no room for it.
    """
    span = 2 * cells * TENSORS_PER_MESSAGE
    return step % max(1, _TAG_LIMIT // span) * span
