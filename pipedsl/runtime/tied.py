"""Parameters that stages on several ranks share: every owner has a copy, and all copies have the sum's gradient.

Owners meet after a step's last call, name by name in one order that all ranks share, so that none waits in a circle.
The first owner adds up in the order of ranks and sends the sum back: all copies get the same bits, and stay equal.
That they begin equal is looked at once, before the first training step.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipedsl.runtime.plan import CannotStart, Plan
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import TIED_TAG, ConnectionLost, Store, Wire

_VALUES_POLL = 0.001  # seconds between two looks for another owner's values


class Tied:
    """This rank's copies, by the name that all owners give."""

    def __init__(
        self,
        wire: Wire,
        store: Store,
        given: Mapping[str, torch.nn.Parameter] | None,
        modules: Sequence[torch.nn.Module],
    ) -> None:
        self._wire = wire
        self._store = store
        self._own = dict(given or {})
        self._modules = modules  # whose parameters they are
        self._owners: dict[str, list[int]] = {}  # of those with a gradient
        self._shared: dict[str, list[int]] = {}  # of all, frozen ones included
        self._types: dict[str, torch.dtype] = {}  # of gradients
        self._earlier: dict[str, torch.Tensor | None] = {}
        self._anywhere = False  # whether any ranks share something
        self._compared = False
        self._loads = 0  # since which values have been compared

    def problem(self) -> str:
        """What is wrong with what this rank was given, in words; empty where nothing is."""
        names: dict[int, str] = {}
        strangers = self._strangers()
        for name, parameter in self._own.items():
            if not isinstance(parameter, torch.nn.Parameter):
                return f"tied parameter {name!r} must be a Parameter, not a {type(parameter).__name__}"
            if name in strangers:
                return (
                    f"tied parameter {name!r} is none of this rank's stages'; name one of their parameters() as they "
                    "are now, after what exchanges them, as fully_shard does"
                )
            if (other := names.setdefault(id(parameter), name)) != name:
                return f"one Parameter is tied by two names, {other!r} and {name!r}; its gradient would count twice"
        return ""

    def _strangers(self) -> list[str]:
        """The names of those that are no parameters of the modules, or not any more.

        But for sharded ones, in whose place modules have whole ones for a while.
        """
        known = {id(q) for module in self._modules for q in module.parameters()} if self._own else set()
        return [name for name, q in self._own.items() if id(q) not in known and not is_distributed(q)]

    def publish(self) -> None:
        """Tell the others what is shared here; before the ranks meet."""
        signature = {name: _signature(q) for name, q in self._own.items() if isinstance(q, torch.nn.Parameter)}
        self._store.set(f"tied/{self._wire.rank}", json.dumps(signature))

    def learn(self, plan: Plan) -> None:
        """Who else owns what; after the ranks have met.

        PipelineError, on every rank, where copies differ in kind, and where a name has one owner: a slip of the pen
        would leave its parameter untied without a word.
        """
        found: dict[str, dict[int, Any]] = {}
        for rank in range(self._wire.size):
            for name, signature in json.loads(self._store.get(f"tied/{rank}")).items():
                found.setdefault(name, {})[rank] = signature
        complaints = [text for name in sorted(found) for text in self._complaints(name, found)]
        if complaints:
            raise CannotStart(plan, "; ".join(complaints))
        self._anywhere = any(len(signatures) > 1 for signatures in found.values())
        for name, signatures in sorted(found.items()):
            *_, trained = next(iter(signatures.values()))
            if self._wire.rank in signatures and len(signatures) > 1:
                self._shared[name] = list(signatures)
                if trained:
                    self._owners[name] = self._shared[name]
                    self._types[name] = gradient_type(self._own[name])

    def _complaints(self, name: str, found: Mapping[str, Mapping[int, Any]]) -> list[str]:
        """What is wrong with a name, of those that all ranks have given; the same on every rank."""
        first, *others = found[name]
        if not others and self._wire.size > 1:
            known = ", ".join(map(repr, sorted(found)))
            return [
                f"only rank {first} has a tied parameter {name!r} (the names given are {known}); every rank with a "
                "copy must name it, and modules on one rank share the Parameter itself"
            ]
        here = _words(found[name][first])
        return [
            f"tied parameter {name!r} is {here} on rank {first}, but {_words(found[name][rank])} on rank {rank}"
            for rank in others
            if found[name][rank] != found[name][first]
        ]

    def counted_elsewhere(self) -> set[int]:
        """`id`s of the parameters that another rank counts, where each is to be counted once."""
        return {id(self._own[name]) for name, owners in self._shared.items() if owners[0] != self._wire.rank}

    def has_one_of(self, module: torch.nn.Module) -> bool:
        """Whether one of the module's parameters gets its gradient from other ranks, too."""
        own = {id(self._own[name]) for name in self._owners}
        return any(id(q) in own for q in module.parameters())

    def loaded(self) -> None:
        """Parameters have other values: look at them again. On every rank."""
        self._loads += self._compared
        self._compared = False

    @property
    def reloaded(self) -> bool:
        """Whether the next training step has to look at values that were loaded since the one before."""
        return self._anywhere and self._loads > 0 and not self._compared

    def begin(self, watch: Watch) -> None:
        """A step begins: put aside the gradients of earlier ones, which are sums already.

        ValueError, before the first one, where copies begin with other values: they would never become equal. Later,
        where other parameters are trained than the ranks have agreed on.
        """
        self._refuse_changes()
        if not self._compared:
            self._compare(watch)
            self._compared = True
        for name in self._owners:
            self._earlier[name] = self._own[name].grad
            self._own[name].grad = None

    def _refuse_changes(self) -> None:
        for name in self._shared.keys() - self._owners.keys():
            if self._own[name].requires_grad:
                raise ValueError(
                    f"tied parameter {name!r} was frozen when this Pipeline was made, and is trained now; make a new "
                    "one on every rank, so that its copies get the sum of their gradients"
                )
        if strangers := self._strangers():
            raise ValueError(
                f"tied parameter {strangers[0]!r} is none of this rank's stages' any more, as it has been exchanged "
                "for another one since this Pipeline was made; make a new one on every rank"
            )

    def _compare(self, watch: Watch) -> None:
        """This rank's copies with those of the other owners, by their digests."""
        if not self._shared:
            return
        me = self._wire.rank
        own = {name: _digest(self._own[name]) for name in self._shared}
        self._store.set(self._values_key(me), json.dumps(own))
        for other in sorted({rank for owners in self._shared.values() for rank in owners} - {me}):
            watch.position.note(f"comparing tied parameters with rank {other}", other)
            while not self._store.check([self._values_key(other)]):
                watch.stop_if_failed()
                time.sleep(_VALUES_POLL)
            watch.position.note(f"comparing tied parameters with rank {other}")  # it is waited for no longer
            theirs = json.loads(self._store.get(self._values_key(other)))
            for name in sorted(own.keys() & theirs.keys()):
                if own[name] != theirs[name]:
                    raise ValueError(
                        f"tied parameter {name!r} has other values on rank {max(me, other)} than on rank "
                        f"{min(me, other)}, and training would keep them apart; load one state into both, or "
                        "broadcast it, before the first step"
                    )

    def _values_key(self, rank: int) -> str:
        return f"tied/{self._loads}/{rank}"

    def finish(self, watch: Watch) -> None:
        """The step's gradients are complete here: exchange them, and add the earlier ones.

        A parameter without a gradient on any rank keeps none, as in one process.
        """
        for name in sorted(self._owners):
            parameter = self._own[name]
            used = parameter.grad is not None
            dtype = self._types[name]
            gradient = torch.zeros_like(parameter, dtype=dtype) if parameter.grad is None else parameter.grad
            if gradient.is_sparse:
                raise ValueError(
                    f"the gradient of tied parameter {name!r} is sparse, which cannot be summed over ranks"
                )
            if gradient.dtype != dtype:
                raise ValueError(
                    f"the gradient of tied parameter {name!r} is {gradient.dtype}, but {dtype} was agreed on; set its "
                    "grad_dtype, on every rank, before the Pipeline is made"
                )
            found = self._sum(name, local_part(gradient), used, watch)
            earlier = self._earlier.pop(name)
            if used or found.item():  # what is used here needs no answer, which a GPU's host would wait for
                parameter.grad = gradient if earlier is None else earlier.add_(gradient)
            else:
                parameter.grad = earlier

    def _sum(self, name: str, gradient: torch.Tensor, used: bool, watch: Watch) -> torch.Tensor:
        """`gradient`, summed over the owners in place; whether any of them has one, as a tensor of one element."""
        me = self._wire.rank
        first, *others = self._owners[name]
        total = gradient.contiguous()
        found = torch.full((1,), used, dtype=torch.uint8, device=total.device)
        for peer in others if me == first else [first]:
            watch.stop_if_failed()
            watch.position.note(f"summing the gradients of tied parameter {name!r}", peer)
            if me == first:
                share, there = torch.empty_like(total), torch.empty_like(found)
                self._pass([share, there], peer, receives=True)
                total += share
                found |= there
            else:
                self._pass([total, found], peer, receives=False)
        for peer in others if me == first else [first]:
            watch.position.note(f"spreading the gradient of tied parameter {name!r}", peer)
            self._pass([total, found], peer, receives=me != first)
        if total is not gradient:
            gradient.copy_(total)
        return found

    def _pass(self, tensors: Sequence[torch.Tensor], peer: int, *, receives: bool) -> None:
        post = self._wire.irecv if receives else self._wire.isend
        try:
            for work in [post(tensor, peer, TIED_TAG) for tensor in tensors]:
                work.wait()
        except Exception as error:
            raise ConnectionLost(str(error)) from error


def is_distributed(x: Any) -> bool:
    """Whether it is a DTensor."""
    return hasattr(x, "device_mesh")


def local_part(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor, whose other parts are summed by the ranks that hold them."""
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()


def _digest(parameter: torch.Tensor) -> str:
    """Of the bits of this rank's part of a parameter."""
    plain = local_part(parameter.detach()).cpu().contiguous()
    data = (ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()) if plain.nbytes else b""
    return hashlib.sha256(data).hexdigest()


def gradient_type(parameter: torch.Tensor) -> torch.dtype:
    """The type that a parameter's gradients have; where any may be, the parameter's."""
    found: torch.dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return found


def _signature(parameter: torch.nn.Parameter) -> list[Any]:
    return [list(parameter.shape), str(parameter.dtype), str(gradient_type(parameter)), parameter.requires_grad]


def _words(signature: Any) -> str:
    shape, dtype, gradient, trained = (x.removeprefix("torch.") if isinstance(x, str) else x for x in signature)
    of = f" with gradients of {gradient}" if gradient != dtype else ""
    return f"{dtype} {shape}{of}{'' if trained else ', frozen'}"
