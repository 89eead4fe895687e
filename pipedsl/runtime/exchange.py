"""What lies between the stages: inputs and gradients that wait for their computation, and the messages that bring them.

The layout of what crosses a stage boundary is published once by the rank that sends it, read by the rank that receives
it before it makes room for the first message, and checked from then on by the sender.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from pipedsl.runtime.chunk import Arrived
from pipedsl.runtime.overlaps import counted, versions
from pipedsl.runtime.plan import WORK_KINDS, Plan, PlannedCall
from pipedsl.runtime.presence import Announced, Marked, Presence
from pipedsl.runtime.shared_memory import Link, NoMemory
from pipedsl.runtime.tree import Layout, Structure, plain
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import TENSORS_PER_MESSAGE, WARM_UP_TAG, ConnectionLost, Wire, message_tag, step_tag
from pipedsl.runtime.writes import Writes

_NOTHING = torch.empty(0)
_LAYOUT_POLL = 0.001  # seconds between two looks for a layout, in the first step


class _Handed(NamedTuple):
    """Tensors on their way to another stage, which nobody may write to. `versions`: how often that had happened."""

    tensors: Sequence[torch.Tensor]
    versions: Sequence[int]

    def check(self, what: str) -> None:
        """ValueError where somebody did."""
        for x, version in zip(self.tensors, self.versions, strict=True):
            if version >= 0 and x._version != version:
                raise ValueError(
                    f"{what} was written to before the stage that needs it had it; return a copy (`.clone()`)"
                )

    def without_memory(self) -> _Handed:
        """The same without what the tensors hold: that a stage has written to them can be seen all the same."""
        shells = [x.detach() for x in self.tensors]  # which know how often a tensor has been written to
        for shell in shells:
            shell.data = _NOTHING
        return _Handed(shells, self.versions)


@dataclass(slots=True)
class _Receive:
    """A message that is to arrive. It holds its tensors, which must live until it has been waited for.

    `posted`: set when it has been, where its layout was not known at its call.
    """

    call: PlannedCall
    tag: int
    tensors: Sequence[torch.Tensor] = ()
    works: Sequence[Any] = ()
    layout: Layout | None = None
    posted: threading.Event | None = None
    error: Exception | None = None


class _OtherWay(NamedTuple):
    """A message that no shared memory could be had for. What it is made of must live until it has been taken."""

    link: Link
    number: int
    tensors: Sequence[torch.Tensor]
    works: Sequence[Any]


class Exchange:
    """The inputs, gradients and messages of one rank. A key (stage, microbatch) names the stage that is to use it."""

    def __init__(self, plan: Plan, wire: Wire, name: str, device: torch.device, watch: Watch) -> None:
        self._plan = plan
        self._wire = wire
        self._store = wire.store(name)
        self._device = device
        self._watch = watch
        self._stages = frozenset(plan.chunks(wire.rank))
        self._names = [plan.stage_name(stage) for stage in range(len(plan.placement))]
        self._numbers = [plan.microbatch_name(microbatch) for microbatch in range(plan.microbatches)]
        self._layouts: dict[tuple[bool, int], Layout] = {}
        self._bare: set[int] = set()  # the stages that have outputs without elements
        self._inputs: dict[tuple[int, int], Arrived] = {}
        self._local: dict[tuple[int, int], _Handed] = {}
        self._gradients: dict[tuple[int, int], Sequence[torch.Tensor | None]] = {}
        self._received: dict[tuple[int, int], Sequence[torch.Tensor | None]] = {}  # gradients
        self._outgoing: dict[tuple[bool, int, int], _Handed] = {}
        self._sends: dict[int, tuple[_Handed, Sequence[Any]]] = {}
        self._linked_sends: dict[int, tuple[_Handed, int]] = {}
        self._other_ways: list[_OtherWay] = []
        self._warned = False
        self._receives: dict[int, _Receive] = {}
        self._late: dict[int, list[_Receive]] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._train = True
        self._warm = False
        readable = device.type == "cpu" and not wire.in_order  # what has been waited for is there
        self._presence: Presence = Marked() if readable else Announced(self._store, watch)
        self._writes = Writes(self._store, self._names, plan.microbatches_each, device)
        self.agreement = 0  # how often the layouts have been forgotten
        self.renewed = False  # since the last step
        self._tags = 0  # what is added to those of this step's messages
        self._steps = 0

    def begin(self, calls: Sequence[PlannedCall], train: bool, seed: int | None) -> None:
        """A step begins; before the first one every channel that `calls` use is opened."""
        self._train = train
        self._steps += 1
        # Messages of ranks that do different things must not meet.
        span = len(self._plan.placement) * self._plan.microbatches
        kind = 2 * train + self.renewed + 4 * self._steps + (0 if seed is None else 8 * (seed + 1))
        self._tags = step_tag(kind, span)
        self.renewed = False
        if self._other_ways:
            self._forget_other_ways()
        self._writes.begin(self.agreement)
        if train:
            self._presence.begin(self.agreement)
        if not self._warm:
            self._warm_up(calls)
            self._warm = True

    def forget_layouts(self) -> None:
        """What crosses the stage boundaries is agreed anew in the next step. On every rank, between steps."""
        self._layouts.clear()
        self._bare.clear()
        for link in self._wire.links.values():
            link.forget_sizes()
        self.agreement += not self.renewed
        self.renewed = True

    def stop(self) -> None:
        """The step has failed. Tensors of messages under way stay: a transport may still write to them."""
        self._stopped = True
        for link in self._wire.links.values():
            link.abandon()

    def _warm_up(self, calls: Sequence[PlannedCall]) -> None:
        """One tiny message per channel, in one order that all ranks share, so that none waits in a circle."""
        me = self._wire.rank
        channels = {(c.peer, me) if c.receives else (me, c.peer) for c in calls if c.kind not in (*WORK_KINDS, "wait")}
        for source, destination in sorted(channels):
            tensor = torch.zeros(1, device=self._device)
            peer = destination if source == me else source
            if peer in self._wire.links:
                continue
            self._watch.stop_if_failed()
            self._watch.position.note(f"opening the channel from rank {source} to rank {destination}", peer)
            self._wait(self._begin(self._wire.isend if source == me else self._wire.irecv, [tensor], peer, WARM_UP_TAG))

    # ------------------------------------------------------------- for the computations

    def take_input(self, stage: int, microbatch: int) -> Arrived:
        handed = self._local.pop((stage, microbatch), None)
        if handed is not None:
            handed.check(f"the output of stage {self._names[stage - 1]} for microbatch {self._numbers[microbatch]}")
        return self._inputs.pop((stage, microbatch))

    def look_for_writes(self, stage: int, arrived: Arrived, before: Sequence[int]) -> None:
        """ValueError where `stage`, which has run, wrote to what shares memory. `before`: its inputs' versions."""
        self._writes.look(self._train, stage, arrived, before, here=stage - 1 in self._stages)

    def takes_gradients(self, stage: int) -> bool:
        """Whether a gradient of what goes to `stage` was asked for in training, as far as is known."""
        layout = self._layouts.get((True, stage))
        return layout is not None and any(layout.needs)

    def take_gradients(self, stage: int, microbatch: int) -> Sequence[torch.Tensor | None]:
        """The gradients of those outputs of `stage` that need one; None for what the next stage made no use of."""
        if stage + 1 in self._stages:
            return self._gradients.pop((stage, microbatch))
        return self._received.pop((stage, microbatch))

    def give_output(
        self,
        stage: int,
        microbatch: int,
        structure: Structure,
        outputs: Sequence[torch.Tensor],
        rows: int,
        tensors: Sequence[torch.Tensor],
        shared: Sequence[int],
    ) -> None:
        """Hand to `stage` what the stage before returned, taken apart.

        `tensors`: its outputs without history. `shared`: which of the outputs share memory with another one.
        """
        layout = self._layouts.get((self._train, stage))
        if layout is None or not layout.fits(structure, outputs, rows):
            layout = self._new_layout(stage, microbatch, Layout.of(structure, outputs, rows, shared), layout)
        if stage in self._stages:
            tensors = [counted(x) for x in tensors] if shared else tensors
            self._inputs[stage, microbatch] = Arrived(structure, tensors, layout.needs, rows, shared)
            self._local[stage, microbatch] = _Handed(tensors, versions(tensors))
        else:
            if shared and shared != layout.shared:
                self._writes.tell(self._train, stage, layout.shared, shared)
            self._outgoing[False, stage, microbatch] = _plain(tensors)

    def _new_layout(self, stage: int, microbatch: int, layout: Layout, agreed: Layout | None) -> Layout:
        """Take over the layout of what goes to `stage`, and tell its rank; ValueError where another was agreed on."""
        if agreed is None or stage in self._stages:
            if len(layout.tensors) > TENSORS_PER_MESSAGE and stage not in self._stages:
                raise ValueError(
                    f"stage {self._names[stage - 1]} returned {len(layout.tensors)} tensors; "
                    f"at most {TENSORS_PER_MESSAGE} can go"
                )
            self._layouts[self._train, stage] = layout
            if stage not in self._stages:
                self._store.set(self._layout_key(stage), layout.encode())
            return layout
        if agreed.rows != layout.rows:
            m = self._plan.microbatches
            raise ValueError(
                f"the batch has {layout.rows * m} rows, but the ranks agreed on {agreed.rows * m} at the first step; "
                "call renew_shapes() on every rank before a step of other sizes"
            )
        raise ValueError(
            f"stage {self._names[stage - 1]} returned {layout} for microbatch {self._numbers[microbatch]}, "
            f"but the ranks agreed on {agreed} at the first step; "
            "call renew_shapes() on every rank before a step of other sizes"
        )

    def give_gradients(self, stage: int, microbatch: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Hand the gradients of its outputs to `stage`; None for those of which there is none."""
        if stage in self._stages:
            self._gradients[stage, microbatch] = gradients
            return
        tensors: Any = gradients
        if not self._presence.tell(stage, gradients) or stage in self._bare:
            kinds = self._layouts[True, stage + 1].gradient_kinds
            tensors = [
                self._presence.absent(*kind, self._device) if x is None else x if x.numel() else x.new_zeros(kind[0])
                for x, kind in zip(gradients, kinds, strict=True)
            ]
        self._outgoing[True, stage, microbatch] = _plain(tensors)

    # ------------------------------------------------------------- the communication calls

    def prepare(self, call: PlannedCall) -> Callable[[], None]:
        """What runs a call that is not a computation."""
        if call.kind == "wait":
            return self._wait_of(call)
        tag, link = self._tag_of(call), self._wire.links.get(call.peer)
        post: Callable[[], None]
        if link is None:
            post = partial(self._receive if call.receives else self._send, call, tag)
        else:
            post = link.expect if call.receives else partial(self._send_linked, link, call, tag)
        if call.request >= 0:
            return post
        wait = self._wait_of(call)

        def both() -> None:
            post()
            wait()

        return both

    def _tag_of(self, call: PlannedCall) -> int:
        return message_tag(call.backward, call.stage, call.microbatch, self._plan.microbatches)

    def _wait_of(self, call: PlannedCall) -> Callable[[], None]:
        link = self._wire.links.get(call.peer)
        if call.receives:
            if link is not None:
                return partial(self._receive_linked, link, call, self._tag_of(call))
            return partial(self._finish_receive, call.request)
        maker = call.stage if call.backward else call.stage - 1
        what = "gradient of the output" if call.backward else "output"
        of = f"stage {self._names[maker]} for microbatch {call.number}"
        if link is not None:
            return partial(self._finish_send_linked, link, call.request, f"the {what} of {of}")
        return partial(self._finish_send, call.request, f"the {what} of {of}")

    def _send(self, call: PlannedCall, tag: int) -> None:
        handed = self._outgoing.pop((call.backward, call.stage, call.microbatch))
        works = self._begin(self._wire.isend, handed.tensors, call.peer, tag + self._tags)
        self._sends[call.request] = handed, works

    def _finish_send(self, request: int, what: str) -> None:
        handed, works = self._sends.pop(request)
        self._wait(works)
        handed.check(what)

    def _receive(self, call: PlannedCall, tag: int) -> None:
        boundary = call.stage + call.backward
        receive = self._receives[call.request] = _Receive(call, tag + self._tags)
        layout = self._layouts.get((self._train, boundary))
        if layout is not None:
            self._post(receive, layout)
        elif self._wire.in_order:
            self._post(receive, self._await_layout(boundary))
        else:
            self._receive_later(boundary, receive)

    def _post(self, receive: _Receive, layout: Layout) -> None:
        call, device = receive.call, self._device
        receive.layout = layout
        receive.tensors = _room_for(layout, call.backward, device)
        receive.works = self._begin(self._wire.irecv, receive.tensors, call.peer, receive.tag)

    def _finish_receive(self, request: int) -> None:
        receive = self._receives.pop(request)
        if receive.posted is not None:
            while not receive.posted.wait(0.1):
                self._watch.stop_if_failed()
            if receive.error is not None:
                raise receive.error
        self._wait(receive.works)
        assert receive.layout is not None
        self._keep(receive.call, receive.layout, receive.tensors)

    def _keep(self, call: PlannedCall, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        if call.backward:
            found = self._presence.choose(call.stage, tensors)
            self._received[call.stage, call.microbatch] = layout.restored(found) if layout.has_bare else found
        else:
            arrived = Arrived(layout.structure, tensors, layout.needs, layout.rows, layout.shared)
            self._inputs[call.stage, call.microbatch] = arrived

    def _begin(
        self, post: Callable[[torch.Tensor, int, int], Any], tensors: Sequence[torch.Tensor], peer: int, tag: int
    ) -> list[Any]:
        """Post tensors. ConnectionLost where the other end is at fault, else what is wrong here."""
        try:
            return [post(tensor, peer, tag + i) for i, tensor in enumerate(tensors)]
        except Exception as error:
            if self._wire.lost(error):
                raise ConnectionLost(str(error)) from error
            raise

    def _wait(self, works: Sequence[Any]) -> None:
        try:
            for work in works:
                work.wait()
        except Exception as error:
            raise ConnectionLost(str(error)) from error

    # ------------------------------------------------------------- between ranks of one host

    def _send_linked(self, link: Link, call: PlannedCall, tag: int) -> None:
        handed = self._outgoing.pop((call.backward, call.stage, call.microbatch))
        try:
            number = link.send(handed.tensors, tag + self._tags)
        except ConnectionError as error:
            raise ConnectionLost(str(error)) from error
        except NoMemory as error:
            number = self._send_another_way(link, handed, call.peer, tag + self._tags, error)
        self._linked_sends[call.request] = handed.without_memory(), number

    def _send_another_way(self, link: Link, handed: _Handed, peer: int, tag: int, error: NoMemory) -> int:
        """By the process group, as copies, so that nobody waits longer than where there is memory; the number."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{error.strerror}; until there is, messages go by the process group", stacklevel=2)
        self._forget_other_ways()
        copies = [x.clone(memory_format=torch.contiguous_format) for x in handed.tensors]
        works = self._begin(self._wire.isend, copies, peer, tag)
        try:
            number = link.send_elsewhere(tag)
        except ConnectionError as lost:
            raise ConnectionLost(str(lost)) from lost
        self._other_ways.append(_OtherWay(link, number, copies, works))
        return number

    def _forget_other_ways(self) -> None:
        """Let go of what has been taken."""
        for way in self._other_ways:
            if way.link.is_taken(way.number):
                self._wait(way.works)
        self._other_ways = [way for way in self._other_ways if not way.link.is_taken(way.number)]

    def _finish_send_linked(self, link: Link, request: int, what: str) -> None:
        handed, number = self._linked_sends.pop(request)
        try:
            link.finish_send(number)
        except ConnectionError as error:
            raise ConnectionLost(str(error)) from error
        handed.check(what)

    def _receive_linked(self, link: Link, call: PlannedCall, tag: int) -> None:
        boundary = call.stage + call.backward
        layout = self._layouts.get((self._train, boundary))
        try:
            if layout is None:
                link.arrive(tag + self._tags)  # where the sender has died, this says so
                layout = self._await_layout(boundary)
            tensors = _room_for(layout, call.backward, self._device)
            here = link.receive(tensors, tag + self._tags)
        except ConnectionError as error:
            raise ConnectionLost(str(error)) from error
        if not here:
            self._wait(self._begin(self._wire.irecv, tensors, call.peer, tag + self._tags))
        self._keep(call, layout, tensors)

    # ------------------------------------------------------------- layouts not known yet

    def _layout_key(self, boundary: int) -> str:
        return f"layout/{self.agreement}/{'train' if self._train else 'eval'}/{boundary}"

    def _look_up(self, boundary: int) -> Layout | None:
        """The layout of what goes to stage `boundary`, if it is known by now.

        Its sender has it before it publishes it. Who has read it deletes it, as it was meant for no other rank.
        """
        layout = self._layouts.get((self._train, boundary))
        key = self._layout_key(boundary)
        if layout is None and boundary in self._stages and self._store.check([key]):
            layout = self._layouts[self._train, boundary] = Layout.decode(self._store.get(key))
            self._store.delete_key(key)
            if self._train and layout.has_bare:
                self._bare.add(boundary - 1)
        return layout

    def _await_layout(self, boundary: int) -> Layout:
        while (layout := self._look_up(boundary)) is None:
            self._watch.stop_if_failed()
            time.sleep(_LAYOUT_POLL)
        return layout

    def _receive_later(self, boundary: int, receive: _Receive) -> None:
        """Post the receive as soon as its layout is known, without holding up this rank's calls.

        The sender may need one of them first. Where tags match messages, the order of posting does not matter.
        """
        with self._lock:
            receive.posted = threading.Event()
            if boundary in self._late:
                self._late[boundary].append(receive)
                return
            layout = self._look_up(boundary)
            if layout is None:
                self._late[boundary] = [receive]
                threading.Thread(target=self._catch_up, args=(boundary,), name="pipedsl-late", daemon=True).start()
                return
        receive.posted = None
        self._post(receive, layout)

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
            for receive in self._late.pop(boundary):
                try:
                    if layout is not None:
                        self._post(receive, layout)
                except Exception as caught:
                    error = caught
                receive.error = error
                assert receive.posted is not None
                receive.posted.set()


def _room_for(layout: Layout, backward: bool, device: torch.device) -> list[torch.Tensor]:
    """What a message, or the gradients that answer it, is received into."""
    kinds = layout.gradient_kinds if backward else layout.kinds
    if len(kinds) > 1 and torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # so that it is counted how often each is written to
            return _room_for(layout, backward, device)
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds]


def _plain(tensors: Sequence[torch.Tensor]) -> _Handed:
    """The tensors as transports can send them."""
    sent = [plain(x) for x in tensors]
    return _Handed(sent, versions(sent))
