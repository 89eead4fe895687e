"""Stages that there are several copies of: once per step their gradients are summed, so all copies have the same.

The ranks that hold a parameter meet where the schedule has the REDUCE of its stage, else after a step's last call.
Every two of them exchange what they have, and each adds
up in the order of ranks: all get the same bits, and copies that begin equal stay equal. All ranks go through the groups
of ranks in one order, so none waits in a circle; of every two the lower one sends first, as where a rank's messages
run one by one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipedsl.runtime.plan import CannotStart, Plan
from pipedsl.runtime.tied import gradient_type, is_distributed, local_part
from pipedsl.runtime.watch import Watch
from pipedsl.runtime.wire import COPIES_TAG, ConnectionLost, Store, Wire

_BUCKET = 1 << 24  # bytes that are sent at once, so that small gradients cost no message each
_STORE_POLL = 0.001  # seconds between two looks for what another rank sets
_DIGEST_CHUNK = 1 << 20  # words that a digest looks at together
_MIX = (-7046029254386353131, -4417276706812531889)  # odd constants, without any pattern

Kind = list[Any]  # shape, type, type of the gradient, whether it is trained
Entry = tuple[str, int, Kind]  # a parameter: its name in its module, its number on its rank, its kind
Held = tuple[int, list[Entry]]  # a stage, and the parameters of a copy of it; the loss function counts as the last one


@dataclass(frozen=True)
class _Shared:
    """A parameter with copies, as one rank sees it.

    `own`: what it holds of it, usually one. `owners`: the ranks that hold it, in order, this one included. `stage`: the
    only one that it is of, whichever the copy; None where it is of several.
    """

    name: str
    own: tuple[torch.nn.Parameter, ...]
    owners: tuple[int, ...]
    trained: bool
    gradient_type: str
    stage: int | None

    def counted(self, rank: int) -> int:
        """How many of its own count, where all copies together count once: 1 or 0."""
        return int(self.owners[0] == rank)


class Copies:
    """The parameters of this rank that there are copies of, here or on other ranks.

    `loss_fn` may be a module, which belongs to the last stage. `tied`: names of parameters whose copies are summed
    otherwise.
    """

    def __init__(
        self,
        wire: Wire,
        store: Store,
        plan: Plan,
        stages: Mapping[int, torch.nn.Module],
        loss_fn: Any,
        tied: Mapping[str, torch.nn.Parameter],
    ) -> None:
        self._wire = wire
        self._store = store
        self._plan = plan
        self._tied = tied
        self._parameters: list[torch.nn.Parameter] = []  # by their numbers
        self._trained: list[bool] = []
        self._modules: list[torch.nn.Module] = []  # whose parameters they are
        self._held = self._look(stages, loss_fn) if plan.copies else []
        self._groups: dict[tuple[int, ...], list[_Shared]] = {}  # by their owners
        self._compared = False
        self._loads = 0  # since which copies have been compared
        self._readers = sorted({owner for s, owner in enumerate(plan.placement) if plan.is_first(s)})  # of the batch
        self._rows: tuple[int, int] | None = None  # as agreed

    def _look(self, stages: Mapping[int, torch.nn.Module], loss_fn: Any) -> list[Held]:
        modules = [(stage, module) for stage, module in stages.items()]
        if any(map(self._plan.is_last, stages)):
            loss = loss_fn if isinstance(loss_fn, torch.nn.Module) else torch.nn.Module()
            modules.append((len(self._plan.placement), loss))
        self._modules = [module for _, module in modules]
        number: dict[int, int] = {}
        held = []
        for stage, module in modules:
            entries = []
            for name, q in module.named_parameters(remove_duplicate=False):
                if id(q) not in number:
                    number[id(q)] = len(number)
                    self._parameters.append(q)
                    self._trained.append(q.requires_grad)
                entries.append((name, number[id(q)], _kind(q)))
            held.append((stage, entries))
        return held

    def publish(self) -> None:
        """Tell the others what is here; before the ranks meet."""
        if self._plan.copies:
            number = {id(q): k for k, q in enumerate(self._parameters)}
            ties = {number[id(q)]: name for name, q in self._tied.items() if id(q) in number}
            self._store.set(f"copies/{self._wire.rank}", json.dumps([self._held, list(ties.items())]))

    def learn(self) -> None:
        """Who else holds what; after the ranks have met. PipelineError, on every rank, where copies are not alike."""
        if not self._plan.copies:
            return
        held: dict[int, list[Held]] = {}
        ties: dict[tuple[int, int], str] = {}
        for rank in range(self._wire.size):
            held[rank], named = json.loads(self._store.get(f"copies/{rank}"))
            ties.update({(rank, number): name for number, name in named})
        complaints = _unlike(self._plan, held)
        joined = [] if complaints else _joined(self._plan, held)
        complaints = complaints or [text for each in joined for text in _half_tied(each, ties)]
        if complaints:
            raise CannotStart(self._plan, "; ".join(complaints))
        for each in joined:
            owners = tuple(sorted({rank for rank, _ in each.holders}))
            _, _, gradient_type, trained = each.kind
            if self._wire.rank in owners and len(each.holders) > 1 and not any(one in ties for one in each.holders):
                own = tuple(self._parameters[k] for rank, k in each.holders if rank == self._wire.rank)
                shared = _Shared(each.name, own, owners, trained, gradient_type, each.stage)
                self._groups.setdefault(owners, []).append(shared)

    def counted_elsewhere(self) -> set[int]:
        """`id`s of the parameters of which another copy counts, where all together are to be counted once."""
        rank = self._wire.rank
        return {id(q) for group in self._groups.values() for each in group for q in each.own[each.counted(rank) :]}

    # ------------------------------------------------------------------ in a step

    def loaded(self) -> None:
        """Parameters have other values: compare them again. On every rank."""
        self._loads += self._compared
        self._compared = False

    @property
    def reloaded(self) -> bool:
        """Whether the next training step has to compare values that were loaded since the one before."""
        return bool(self._plan.copies) and self._loads > 0 and not self._compared

    def begin(self, watch: Watch, rows: int, agreement: int) -> None:
        """A step begins: what earlier ones have summed stays with one copy alone, to count once in the next sum.

        `rows`: of a microbatch, 0 on ranks that are given no batch; `agreement`: how often sizes have been free to
        change. ValueError, before the first one, where copies begin with other values: they would never become equal.
        """
        if not self._are_there():
            raise ValueError(
                "parameters have been exchanged for others since this Pipeline was made; make a new one on every rank, "
                "so that the copies of these are known"
            )
        if any(q.requires_grad != was for q, was in zip(self._parameters, self._trained, strict=True)):
            raise ValueError(
                "parameters have been frozen or unfrozen since this Pipeline was made; make a new one on every rank, "
                "so that all copies of a stage sum the same gradients"
            )
        if rows and len(self._readers) > 1:
            self._compare_rows(rows, agreement, watch)
        if self.reloaded:
            self._meet(watch)
        for owners, group in sorted(self._groups.items()):
            if not self._compared:
                self._compare(owners, group, watch)
            for each in group:
                for q in each.own[each.counted(self._wire.rank) :]:
                    if q.grad is not None and each.trained:
                        q.grad.detach().zero_()
        self._compared = True

    def _are_there(self) -> bool:
        """Whether the modules have the parameters that they had; of sharded ones it is not looked at."""
        now = dict.fromkeys(q for module in self._modules for q in module.parameters())
        same = list(map(id, now)) == list(map(id, self._parameters))
        return same or any(map(is_distributed, self._parameters))

    def reduce(self, stage: int, watch: Watch, where: str) -> None:
        """A stage's gradients are complete here: put the sum over all copies in their place. `where`: in words."""
        self._reduce(lambda each: each.stage == stage, watch, f"{where}: ")

    def finish(self, watch: Watch, done: Collection[int]) -> None:
        """The step's gradients are complete here: sum those that are not of the stages of `done`."""
        self._reduce(lambda each: each.stage is None or each.stage not in done, watch, "")

    def _reduce(self, chosen: Callable[[_Shared], bool], watch: Watch, where: str) -> None:
        for owners, group in sorted(self._groups.items()):
            trained = [each for each in group if each.trained and chosen(each)]
            used = self._used(owners, trained, watch, where) if trained else []
            for bucket in _buckets(used):
                watch.stop_if_failed()
                self._sum(owners, bucket, watch, where)

    def _used(self, owners: Sequence[int], group: Sequence[_Shared], watch: Watch, where: str) -> list[_Shared]:
        """Those that have a gradient anywhere. The others keep none, as in one process.

        Where all are used here, nothing is said or heard that holds up the host of a GPU.
        """
        here = [any(q.grad is not None for q in each.own) for each in group]
        used = torch.ones(len(here), dtype=torch.uint8, device=group[0].own[0].device)
        if not all(here):
            used.copy_(torch.tensor(here))
        doing = f"{where}comparing which gradients there are of {_group_words(group)}"
        others = self._swap_all(owners, used, watch, doing)
        if all(here):
            return list(group)
        anywhere = torch.stack([used, *others]).amax(0).tolist()
        return [each for each, found in zip(group, anywhere, strict=True) if found]

    def _sum(self, owners: Sequence[int], bucket: Sequence[_Shared], watch: Watch, where: str) -> None:
        """The gradients of a bucket, summed over all their copies."""
        parts = [_local_sum(each) for each in bucket]
        alone = len(parts) == 1 and parts[0].is_contiguous()
        own = parts[0].view(-1) if alone else torch.cat([part.reshape(-1) for part in parts])
        doing = f"{where}summing the gradients of {_group_words(bucket)}"
        for piece in torch.split(own, max(1, _BUCKET // own.element_size())):
            others = self._swap_all(owners, piece, watch, doing) if len(piece) else []
            if len(others) == 1:
                piece += others[0]  # in either order the same bits
            elif others:
                others.insert(owners.index(self._wire.rank), piece)
                total = others[0] + others[1]
                for term in others[2:]:
                    total += term
                piece.copy_(total)
        if not alone:
            for part, summed in zip(parts, torch.split(own, [part.numel() for part in parts]), strict=True):
                part.copy_(summed.view(part.shape))
        for each, part in zip(bucket, parts, strict=True):
            for q in each.own[1:]:
                assert q.grad is not None
                local_part(q.grad).copy_(part)

    def _compare_rows(self, rows: int, agreement: int, watch: Watch) -> None:
        """ValueError where copies are given batches of several sizes, whose rows would not count alike.

        By the store, in the first step and where sizes may have changed.
        """
        if self._rows == (agreement, rows):
            return
        m = self._plan.microbatches
        if self._rows is not None and self._rows[0] == agreement:
            raise ValueError(
                f"the batch has {rows * m} rows, {self._rows[1] * m} in the steps before; call renew_shapes() on "
                "every rank before a step of another size"
            )
        me, key = self._wire.rank, f"copies/rows/{agreement}"
        self._store.set(f"{key}/{me}", str(rows))
        for other in _without(self._readers, me):
            self._await(f"{key}/{other}", "comparing the sizes of batches", other, watch)
            theirs = int(self._store.get(f"{key}/{other}"))
            if theirs != rows:
                raise ValueError(
                    f"the batch has {rows * m} rows on rank {me}, but {theirs * m} on rank {other}; the first stage of "
                    "every copy must be given the whole batch"
                )
        if self._rows is not None:  # which all have read who are here now
            self._store.delete_key(f"copies/rows/{self._rows[0]}/{me}")
        self._rows = (agreement, rows)

    def _meet(self, watch: Watch) -> None:
        """Wait for all ranks by the store: messages to one that has loaded nothing would be taken for others."""
        me = self._wire.rank
        self._store.set(f"copies/loaded/{self._loads}/{me}", "")
        for other in _without(range(self._wire.size), me):
            self._await(f"copies/loaded/{self._loads}/{other}", "comparing the copies of stages", other, watch)

    def _await(self, key: str, doing: str, peer: int, watch: Watch) -> None:
        """Until another rank has set a key."""
        watch.position.note(doing, peer)
        while not self._store.check([key]):
            watch.stop_if_failed()
            time.sleep(_STORE_POLL)
        watch.position.note(doing)

    def _compare(self, owners: Sequence[int], group: Sequence[_Shared], watch: Watch) -> None:
        """ValueError where copies are not equal. Once: from then on they get the same gradients."""
        rank, doing = self._wire.rank, f"comparing the copies of {_group_words(group)}"
        watch.position.note(doing)
        digests = [torch.stack([_parameter_digest(q.detach()) for q in each.own]) for each in group]
        own = torch.stack([each[0] for each in digests])
        others = self._swap_all(owners, own, watch, doing)
        unlike = {rank: torch.stack([(each != each[0]).any() for each in digests])}
        unlike.update({peer: own != other for peer, other in zip(_without(owners, rank), others, strict=True)})
        found = {peer: differs.tolist() for peer, differs in sorted(unlike.items())}
        watch.position.note(doing)  # nobody is waited for any longer
        for peer, differs in found.items():
            names = [each.name for each, unequal in zip(group, differs, strict=True) if unequal]
            if names:
                where = f"ranks {min(rank, peer)} and {max(rank, peer)}" if peer != rank else f"rank {rank}"
                more = f", nor {len(names) - 1} others" if len(names) > 1 else ""
                raise ValueError(
                    f"the copies of {names[0]} on {where} did not begin equal{more}; give all copies of a stage the "
                    "same parameters before the first step: build each after the same torch.manual_seed, or load one "
                    "state into all"
                )

    # ------------------------------------------------------------------ messages

    def _swap_all(self, owners: Sequence[int], own: torch.Tensor, watch: Watch, doing: str) -> list[torch.Tensor]:
        """What the other owners have in the place of `own`, in order."""
        found = []
        for peer in _without(owners, self._wire.rank):
            watch.stop_if_failed()
            watch.position.note(doing, peer)
            found.append(torch.empty_like(own))
            self._swap(own, found[-1], peer)
        return found

    def _swap(self, own: torch.Tensor, other: torch.Tensor, peer: int) -> None:
        wire = self._wire
        posts = [(wire.isend, own), (wire.irecv, other)]
        works = []
        for post, tensor in posts if wire.rank < peer else posts[::-1]:
            try:
                works.append(post(tensor, peer, COPIES_TAG))
            except Exception as error:
                if wire.lost(error):
                    raise ConnectionLost(str(error)) from error
                raise
        try:
            for work in works:
                work.wait()
        except Exception as error:
            raise ConnectionLost(str(error)) from error


# ---------------------------------------------------------------------- what there are copies of


@dataclass(frozen=True)
class _Joined:
    """One parameter of the model. `holders`: its copies, each by rank and number there; the first one counts.

    `name` is that of its first place: where stages share a parameter, it has several. `stage`: the only one that it is
    of, else None.
    """

    name: str
    kind: Kind
    holders: list[tuple[int, int]]
    stage: int | None


def _kind(q: torch.nn.Parameter) -> Kind:
    return [list(q.shape), str(q.dtype), str(gradient_type(q)), q.requires_grad]


def _stage_words(plan: Plan, stage: int) -> str:
    """A stage whichever its copy is."""
    return "the loss function" if stage == len(plan.placement) else f"stage {stage % plan.stages}"


def _unlike(plan: Plan, held: Mapping[int, Sequence[Held]]) -> list[str]:
    """Where a stage's copies are not of one kind, in words; one for each stage."""
    first: dict[str, tuple[str, dict[str, Kind]]] = {}
    found: dict[str, str] = {}
    for rank, stages in held.items():
        for stage, entries in stages:
            kinds = {name: kind for name, _, kind in entries}
            words = _stage_words(plan, stage)
            here = f"on rank {rank}"
            if stage < len(plan.placement):
                here = f"in {plan.stage_name(stage)} {here}"
            there, expected = first.setdefault(words, (here, kinds))
            for name in [*expected, *kinds]:
                if expected.get(name) != kinds.get(name):
                    found.setdefault(
                        words,
                        f"the copies of {words} are not alike: `{name}` is {_kind_words(expected.get(name))} "
                        f"{there}, but {_kind_words(kinds.get(name))} {here}",
                    )
    return list(found.values())


def _kind_words(kind: Kind | None) -> str:
    if kind is None:
        return "missing"
    shape, dtype, _, trained = kind
    return f"{dtype.removeprefix('torch.')} {shape}{'' if trained else ', frozen'}"


def _joined(plan: Plan, held: Mapping[int, Sequence[Held]]) -> list[_Joined]:
    """The parameters of the model, each with all of its copies; the same on every rank.

    What has the same name in two copies of a stage is one parameter, and so is what two stages of a rank share. Those
    of the loss function are the last stage's.
    """
    numbers: dict[str, int] = {}  # of stages, by their words
    places: dict[tuple[str, str], set[tuple[int, int]]] = {}
    kinds: dict[tuple[str, str], Kind] = {}
    for rank, stages in sorted(held.items()):
        for stage, entries in stages:
            last = stage == len(plan.placement)
            numbers[_stage_words(plan, stage)] = plan.stages - 1 if last else stage % plan.stages
            for name, number, kind in entries:
                place = (_stage_words(plan, stage), name)
                places.setdefault(place, set()).add((rank, number))
                kinds.setdefault(place, kind)
    of_holder: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for place, holders in places.items():
        for holder in holders:
            of_holder.setdefault(holder, []).append(place)
    found = []
    left = dict(places)
    for place in places:
        waiting, holders, of = [place], set[tuple[int, int]](), set[int]()
        while waiting:
            of.add(numbers[waiting[-1][0]])
            for holder in left.pop(waiting.pop(), set()) - holders:
                holders.add(holder)
                waiting.extend(of_holder[holder])
        if holders:
            stage_words, name = place
            only = of.pop() if len(of) == 1 else None
            found.append(_Joined(f"`{name}` of {stage_words}", kinds[place], sorted(holders), only))
    return found


def _half_tied(joined: _Joined, ties: Mapping[tuple[int, int], str]) -> list[str]:
    """What is wrong where some of a parameter's copies are tied by a name, in words."""
    tied = [holder for holder in joined.holders if holder in ties]
    if not tied:
        return []
    name = ties[tied[0]]
    for holder in joined.holders:
        if ties.get(holder) != name:
            return [
                f"{joined.name} is tied as {name!r} on rank {tied[0][0]}, but a copy of it on rank {holder[0]} is not; "
                "every copy must have that name, and all that a rank holds of it be one Parameter"
            ]
    return []


# ---------------------------------------------------------------------- tensors


def _without(owners: Iterable[int], rank: int) -> list[int]:
    return [owner for owner in owners if owner != rank]


def _group_words(group: Sequence[_Shared]) -> str:
    """What a group is called in messages."""
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} more"


def _buckets(group: Sequence[_Shared]) -> list[list[_Shared]]:
    """Neighbours that are sent together: of one type, and not too many."""
    found: list[list[_Shared]] = []
    size = 0
    for each in group:
        own = each.own[0].numel() * each.own[0].element_size()
        if not found or size + own > _BUCKET or found[-1][0].gradient_type != each.gradient_type:
            found.append([])
            size = 0
        found[-1].append(each)
        size += own
    return found


def _local_sum(shared: _Shared) -> torch.Tensor:
    """The gradient of this rank's copies of a parameter together, in the first one's place."""
    for q in shared.own:
        if q.grad is None:
            q.grad = torch.zeros_like(q, dtype=gradient_type(q))
        if q.grad.is_sparse:
            raise ValueError(f"the gradient of {shared.name} is sparse, which cannot be summed over copies")
        if str(q.grad.dtype) != shared.gradient_type:
            raise ValueError(
                f"the gradient of {shared.name} is {q.grad.dtype}, but {shared.gradient_type} was agreed on; set its "
                "grad_dtype, in all copies, before the Pipeline is made"
            )
    first, *others = (local_part(q.grad) for q in shared.own if q.grad is not None)
    for other in others:
        first += other
    return first


def _parameter_digest(x: torch.Tensor) -> torch.Tensor:
    """A number, on its device, that two tensors have in common only if they are equal, or by a chance of 1 in 2^60."""
    data = local_part(x).contiguous().view(-1).view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for start in range(0, len(data), _DIGEST_CHUNK):
        words = data[start : start + _DIGEST_CHUNK]
        place = torch.arange(start, start + len(words), device=data.device)
        mixed = (words ^ (words >> 29)) * _MIX[0] + place * _MIX[1]
        total += ((mixed ^ (mixed >> 32)) * _MIX[0]).sum()
    return total
