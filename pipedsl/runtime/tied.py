"""Parameters that stages on several ranks share: every owner has a copy, and all copies have the sum's gradient.

Owners meet after a step's last call, name by name in one order that all ranks share, so that none waits in a circle.
The first owner adds up in the order of ranks and sends the sum back: all copies get the same bits, and stay equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from pipedsl.runtime.plan import PipelineError
from pipedsl.runtime.rendezvous import linger
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import TIED_TAG, ConnectionLost, Store, Wire


class Tied:
    """This rank's copies, by the name that all owners give."""

    def __init__(self, wire: Wire, store: Store, given: Mapping[str, torch.nn.Parameter] | None) -> None:
        self._wire = wire
        self._store = store
        self._own = dict(given or {})
        self._owners: dict[str, list[int]] = {}
        self._earlier: dict[str, torch.Tensor | None] = {}

    def publish(self) -> None:
        """Tell the others what is shared here; before the ranks meet."""
        signature = {name: [list(q.shape), str(q.dtype), q.requires_grad] for name, q in self._own.items()}
        self._store.set(f"tied/{self._wire.rank}", json.dumps(signature))

    def learn(self, title: str) -> None:
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
            linger(self._wire, self._store)
            raise PipelineError(f"{title} cannot start: " + "; ".join(complaints))
        for name, signatures in sorted(found.items()):
            _, _, trained = next(iter(signatures.values()))
            if self._wire.rank in signatures and trained and len(signatures) > 1:
                self._owners[name] = list(signatures)

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
        return {id(self._own[name]) for name, owners in self._owners.items() if owners[0] != self._wire.rank}

    def begin(self) -> None:
        """A step begins: put aside the gradients of earlier ones, which are sums already."""
        for name in self._owners:
            self._earlier[name] = self._own[name].grad
            self._own[name].grad = None

    def finish(self, watch: Watch) -> None:
        """The step's gradients are complete here: exchange them, and add the earlier ones."""
        for name in sorted(self._owners):
            parameter = self._own[name]
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if gradient.is_sparse:
                raise ValueError(
                    f"the gradient of tied parameter {name!r} is sparse, which cannot be summed over ranks"
                )
            self._sum(name, local_part(gradient), watch)
            earlier = self._earlier.pop(name)
            parameter.grad = gradient if earlier is None else earlier.add_(gradient)

    def _sum(self, name: str, gradient: torch.Tensor, watch: Watch) -> None:
        """`gradient`, summed over the owners in place."""
        me = self._wire.rank
        first, *others = self._owners[name]
        total = gradient.contiguous()
        for peer in others if me == first else [first]:
            watch.stop_if_failed()
            watch.position.note(f"summing the gradients of tied parameter {name!r}", peer)
            if me == first:
                share = torch.empty_like(total)
                self._pass(share, peer, receives=True)
                total += share
            else:
                self._pass(total, peer, receives=False)
        for peer in others if me == first else [first]:
            watch.position.note(f"spreading the gradient of tied parameter {name!r}", peer)
            self._pass(total, peer, receives=me != first)
        if total is not gradient:
            gradient.copy_(total)

    def _pass(self, tensor: torch.Tensor, peer: int, *, receives: bool) -> None:
        try:
            (self._wire.irecv if receives else self._wire.isend)(tensor, peer, TIED_TAG).wait()
        except Exception as error:
            raise ConnectionLost(str(error)) from error


def local_part(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor, whose other parts are summed by the ranks that hold them."""
    to_local = getattr(gradient, "to_local", None)
    return gradient if to_local is None else to_local()


def _words(signature: Any) -> str:
    shape, dtype, trained = signature
    return f"{dtype.removeprefix('torch.')} {shape}{'' if trained else ', frozen'}"
