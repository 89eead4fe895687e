"""What lies between the stages: inputs and gradients that wait for their computation, and the messages that bring them.

The layout of what crosses a stage boundary is published once by the rank that sends it, read by the rank that receives
it before it makes room for the first message, and checked from then on by the sender.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pipedsl.runtime.chunk import Arrived
from pipedsl.runtime.plan import COMPUTE_KINDS, Plan, PlannedCall
from pipedsl.runtime.tree import Layout
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import TENSORS_PER_MESSAGE, WARM_UP_TAG, ConnectionLost, Wire, message_tag

_LAYOUT_POLL = 0.001  # seconds between two looks for a layout, in the first step


@dataclass(frozen=True)
class _Handed:
    """Tensors on their way to another stage, which nobody may write to. `versions`: how often that had happened."""

    tensors: Sequence[torch.Tensor]
    versions: Sequence[int]

    @staticmethod
    def now(tensors: Sequence[torch.Tensor]) -> _Handed:
        return _Handed(tensors, _versions(tensors))

    def check(self, what: str) -> None:
        """ValueError where somebody did."""
        if _versions(self.tensors) != self.versions:
            raise ValueError(f"{what} was written to before the stage that needs it had it; return a copy (`.clone()`)")


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [-1 if x.is_inference() else x._version for x in tensors]


@dataclass
class _Request:
    """A message under way. It holds its tensors, which must live until it has been waited for."""

    call: PlannedCall
    tensors: Sequence[torch.Tensor] = ()
    handed: _Handed | None = None
    works: list[Any] = field(default_factory=list)
    layout: Layout | None = None
    posted: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Exchange:
    """The inputs, gradients and messages of one rank. A key (stage, microbatch) names the stage that is to use it."""

    def __init__(self, plan: Plan, wire: Wire, name: str, device: torch.device, watch: Watch) -> None:
        self._plan = plan
        self._wire = wire
        self._store = wire.store(name)
        self._device = device
        self._watch = watch
        self._stages = frozenset(plan.chunks(wire.rank))
        self._layouts: dict[tuple[bool, int], Layout] = {}
        self._inputs: dict[tuple[int, int], Arrived] = {}
        self._local: dict[tuple[int, int], _Handed] = {}
        self._gradients: dict[tuple[int, int], Sequence[torch.Tensor]] = {}
        self._outgoing: dict[tuple[bool, int, int], _Handed] = {}
        self._requests: dict[int, _Request] = {}
        self._late: dict[int, list[_Request]] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._train = True
        self._warm = False
        self._agreement = 0  # how often the layouts have been forgotten

    def begin(self, calls: Sequence[PlannedCall], train: bool) -> None:
        """A step begins; before the first one every channel that `calls` use is opened."""
        self._train = train
        if not self._warm:
            self._warm_up(calls)
            self._warm = True

    def forget_layouts(self) -> None:
        """What crosses the stage boundaries is agreed anew in the next step. On every rank, between steps."""
        self._layouts.clear()
        self._agreement += 1

    def stop(self) -> None:
        """The step has failed. Tensors of messages under way stay: a transport may still write to them."""
        self._stopped = True

    def _warm_up(self, calls: Sequence[PlannedCall]) -> None:
        """One tiny message per channel, in one order that all ranks share, so that none waits in a circle."""
        me = self._wire.rank
        channels = {
            (c.peer, me) if c.receives else (me, c.peer) for c in calls if c.kind not in (*COMPUTE_KINDS, "wait")
        }
        for source, destination in sorted(channels):
            tensor = torch.zeros(1, device=self._device)
            peer = destination if source == me else source
            self._watch.stop_if_failed()
            self._watch.position.note(f"opening the channel from rank {source} to rank {destination}", peer)
            self._wait(self._begin(source != me, tensor, peer, WARM_UP_TAG))

    # ------------------------------------------------------------- for the computations

    def take_input(self, stage: int, microbatch: int) -> Arrived:
        handed = self._local.pop((stage, microbatch), None)
        if handed is not None:
            handed.check(f"the output of stage {stage - 1} for microbatch {microbatch}")
        return self._inputs.pop((stage, microbatch))

    def take_gradients(self, stage: int, microbatch: int) -> Sequence[torch.Tensor]:
        """The gradients of those outputs of `stage` that need one."""
        return self._gradients.pop((stage, microbatch))

    def give_output(self, stage: int, microbatch: int, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        """Hand to `stage` what the stage before returned: tensors of this layout, without history."""
        if stage in self._stages:
            needs = [needed for _, _, needed in layout.tensors]
            self._inputs[stage, microbatch] = Arrived(layout.structure, tensors, needs, layout.rows)
            self._local[stage, microbatch] = _Handed.now(tensors)
            self._layouts[self._train, stage] = layout
            return
        agreed = self._layouts.get((self._train, stage))
        if agreed is None:
            if len(tensors) > TENSORS_PER_MESSAGE:
                raise ValueError(
                    f"stage {stage - 1} returned {len(tensors)} tensors; at most {TENSORS_PER_MESSAGE} can go"
                )
            self._layouts[self._train, stage] = layout
            self._store.set(self._layout_key(stage), layout.encode())
        elif agreed.rows != layout.rows:
            m = self._plan.microbatches
            raise ValueError(
                f"the batch has {layout.rows * m} rows, but the ranks agreed on {agreed.rows * m} at the first step; "
                "call renew_shapes() on every rank before a step of other sizes"
            )
        elif agreed != layout:
            raise ValueError(
                f"stage {stage - 1} returned {layout} for microbatch {microbatch}, "
                f"but the ranks agreed on {agreed} at the first step; "
                "call renew_shapes() on every rank before a step of other sizes"
            )
        self._outgoing[False, stage, microbatch] = _Handed.now([_plain(x) for x in tensors])

    def give_gradients(self, stage: int, microbatch: int, gradients: Sequence[torch.Tensor]) -> None:
        """Hand the gradients of its outputs to `stage`."""
        if stage in self._stages:
            self._gradients[stage, microbatch] = gradients
        else:
            self._outgoing[True, stage, microbatch] = _Handed.now([_plain(x) for x in gradients])

    # ------------------------------------------------------------- the communication calls

    def run(self, call: PlannedCall) -> None:
        """Run a call that is not a computation."""
        if call.kind == "wait":
            self._finish(self._requests.pop(call.request))
            return
        request = _Request(call)
        if call.receives:
            self._receive(request)
        else:
            request.handed = self._outgoing.pop((call.backward, call.stage, call.microbatch))
            request.tensors = request.handed.tensors
            self._post(request)
        if call.request >= 0:
            self._requests[call.request] = request
        else:
            self._finish(request)

    def _post(self, request: _Request) -> None:
        call = request.call
        tag = message_tag(call.backward, call.stage, call.microbatch, self._plan.microbatches)
        request.works = [
            self._begin(call.receives, tensor, call.peer, tag + i) for i, tensor in enumerate(request.tensors)
        ]
        request.posted.set()

    def _begin(self, receives: bool, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        """Post one tensor. ConnectionLost where the other end is at fault, else what is wrong here."""
        try:
            return (self._wire.irecv if receives else self._wire.isend)(tensor, peer, tag)
        except Exception as error:
            if self._wire.lost(error):
                raise ConnectionLost(str(error)) from error
            raise

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except Exception as error:
            raise ConnectionLost(str(error)) from error

    def _finish(self, request: _Request) -> None:
        while not request.posted.wait(0.1):
            self._watch.stop_if_failed()
        if request.error is not None:
            raise request.error
        for work in request.works:
            self._wait(work)
        call, layout = request.call, request.layout
        if request.handed is not None:
            maker = call.stage if call.backward else call.stage - 1
            what = "gradient of the output" if call.backward else "output"
            request.handed.check(f"the {what} of stage {maker} for microbatch {call.microbatch}")
            return
        assert layout is not None
        if call.backward:
            self._gradients[call.stage, call.microbatch] = request.tensors
        else:
            needs = [needed for _, _, needed in layout.tensors]
            self._inputs[call.stage, call.microbatch] = Arrived(layout.structure, request.tensors, needs, layout.rows)

    def _receive(self, request: _Request) -> None:
        boundary = request.call.stage + request.call.backward
        layout = self._layouts.get((self._train, boundary))
        if layout is not None:
            self._post_receive(request, layout)
        elif self._wire.in_order:
            while (layout := self._look_up(boundary)) is None:
                self._watch.stop_if_failed()
                time.sleep(_LAYOUT_POLL)
            self._post_receive(request, layout)
        else:
            self._receive_later(boundary, request)

    def _post_receive(self, request: _Request, layout: Layout) -> None:
        request.layout = layout
        make = layout.gradient_buffers if request.call.backward else layout.buffers
        request.tensors = make(self._device)
        self._post(request)

    # ------------------------------------------------------------- layouts not known yet

    def _layout_key(self, boundary: int) -> str:
        return f"layout/{self._agreement}/{'train' if self._train else 'eval'}/{boundary}"

    def _look_up(self, boundary: int) -> Layout | None:
        """The layout of what goes to stage `boundary`, if its sender has published it."""
        key = self._layout_key(boundary)
        if not self._store.check([key]):
            return None
        return self._layouts.setdefault((self._train, boundary), Layout.decode(self._store.get(key)))

    def _receive_later(self, boundary: int, request: _Request) -> None:
        """Post the receive as soon as its layout is known, without holding up this rank's calls.

        The sender may need one of them first. Where tags match messages, the order of posting does not matter.
        """
        with self._lock:
            if boundary in self._late:
                self._late[boundary].append(request)
                return
            layout = self._layouts.get((self._train, boundary)) or self._look_up(boundary)
            if layout is None:
                self._late[boundary] = [request]
                threading.Thread(target=self._catch_up, args=(boundary,), name="pipedsl-late", daemon=True).start()
                return
        self._post_receive(request, layout)

    def _catch_up(self, boundary: int) -> None:
        error: Exception | None = None
        layout = None
        while layout is None and error is None and not self._stopped:
            time.sleep(_LAYOUT_POLL)
            try:
                layout = self._look_up(boundary)
            except Exception as caught:  # the store is gone: the main thread is to say so
                error = caught
        with self._lock:
            for request in self._late.pop(boundary):
                try:
                    if layout is not None:
                        self._post_receive(request, layout)
                except Exception as caught:
                    error = caught
                if error is not None:
                    request.error = error
                    request.posted.set()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as its bytes lie in memory: transports send no lazy conjugates, no lazy negatives and no strides."""
    return tensor.resolve_conj().resolve_neg().contiguous()
