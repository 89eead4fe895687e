"""Changes of the calls themselves that make them safe: batches of neighbours, and exchanges of neighbours.

Greedy: of the changes around a shortest cycle the one is taken that leaves the fewest events stuck, until none is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.program import Ints
from verify.buffers import check_buffers
from verify.matching import RECEIVES, SENDS, match
from verify.script import BLOCKING, Entry, Script, read_script, write_script
from verify.transports import BY_NAME, Communicators, Transport
from verify.trial import Exhausted, Help, Searcher, Trial

_ROUNDS = 8
_TRIES = 24  # per round
_SHARE = 14  # a greedy search may cost that part of the budget
_NAMED = 4


@dataclass(frozen=True)
class _Move:
    """One change: the scripts after it, and what it is."""

    scripts: list[Script]
    text: str = ""


def batched(search: Searcher, calls: Calls, transport: Transport) -> Help | None:
    """Neighbours on the cycles as batches, and the other ends of their messages too, so both ends have one form."""
    if transport.communicators is Communicators.NONE:
        return None
    search.afford(calls)
    scripts = read_script(calls)
    same_form = None if scripts is None else _wrap(scripts, _unlike(calls, scripts))
    if same_form is None:
        return None
    changed = _greedy(search, write_script(calls, same_form), transport, _joins)
    if changed is None:
        return None
    batches = _new_batches(calls, changed[0])
    texts = [
        f"{_listed(labels)} on rank {rank} in {'one' if len(labels) > 1 else 'a'} batch" for rank, labels in batches
    ]
    more = f", and {len(texts) - _NAMED} batches more" if len(texts) > _NAMED else ""
    return Help(
        changed[0],
        kind="batch",
        details={"batches": [{"rank": rank, "calls": labels} for rank, labels in batches]},
        text=f"put {', '.join(texts[:_NAMED])}{more}",
    )


def reordered(search: Searcher, calls: Calls, transport: Transport) -> Help | None:
    """A few exchanges of neighbours; where they are not enough, all messages in one global order."""
    changed = _greedy(search, calls, transport, _exchanges)
    if changed is not None and changed[1]:
        moves = changed[1]
        return Help(changed[0], kind="order", details={"moves": moves}, text="; ".join(moves))
    mended = search.mended(calls)
    if mended is None or not search.safe(Help(mended), transport):
        return None
    moves = _moves_of(calls, mended)
    text = "let both ends list their messages in one global order, as `--fix` writes it"
    return Help(
        mended, kind="order", details={"moves": moves}, text=f"{text}: {'; '.join(moves[:2])}" if moves else text
    )


def _greedy(
    search: Searcher,
    calls: Calls,
    transport: Transport,
    changes: Callable[[Calls, Sequence[Script], Sequence[int]], Iterator[_Move]],
) -> tuple[Calls, list[str]] | None:
    """Changed calls that are safe, and the changes; None if some round makes nothing better, or it costs too much."""
    try:
        with search.share(_SHARE):
            return _rounds(search, calls, transport, changes)
    except Exhausted:
        return None


def _rounds(
    search: Searcher,
    calls: Calls,
    transport: Transport,
    changes: Callable[[Calls, Sequence[Script], Sequence[int]], Iterator[_Move]],
) -> tuple[Calls, list[str]] | None:
    trial, done = search.trial(Help(calls), transport), list[str]()
    for _ in range(_ROUNDS):
        if trial.safe:
            return calls, done
        scripts = read_script(calls)
        best: tuple[Trial, Calls, str] | None = None
        moves = () if scripts is None else changes(calls, scripts, trial.rows_on_cycle())
        for _, move in zip(range(_TRIES), moves, strict=False):
            after = write_script(calls, move.scripts)
            if len(check_buffers(after)) > len(check_buffers(calls)):
                continue
            attempt = search.trial(Help(after), transport)
            if best is None or attempt.badness < best[0].badness:
                best = attempt, after, move.text
            if attempt.safe:
                break
        if best is None or best[0].badness >= trial.badness:
            return None
        trial, calls, text = best
        done.append(text)
    return (calls, done) if trial.safe else None


# -------------------------------------------------------------------- batches


def _joins(calls: Calls, scripts: Sequence[Script], rows: Sequence[int]) -> Iterator[_Move]:
    """Two neighbours of which one is on the cycle, both first; then all neighbours around it."""
    wanted = set(rows)
    runs = [(rank, run) for rank, script in enumerate(scripts) for run in _runs(script)]
    runs = [(rank, run) for rank, run in runs if len(run) > 1 and any(wanted & set(e.rows) for e in run)]
    pairs = [(rank, list(pair)) for rank, run in runs for pair in pairwise(run)]
    pairs = [(rank, pair) for rank, pair in pairs if any(wanted & set(entry.rows) for entry in pair)]
    pairs.sort(key=lambda each: -sum(bool(wanted & set(entry.rows)) for entry in each[1]))
    for rank, joined in (*pairs, *(run for run in runs if len(run[1]) > 2)):
        after = [list(script) for script in scripts]
        at = after[rank].index(joined[0])
        rows_of_all = tuple(row for entry in joined for row in entry.rows)
        after[rank][at : at + len(joined)] = [replace(joined[0], rows=rows_of_all, batched=True)]
        wrapped = _wrap(after, _unlike(calls, after))
        if wrapped is not None:
            yield _Move(wrapped)


def _runs(script: Script) -> list[list[Entry]]:
    """Neighbours that no wait, no computation and no blocking call parts."""
    runs: list[list[Entry]] = [[]]
    for entry in script:
        if entry.kind in (CallKind.ISEND, CallKind.IRECV):
            runs[-1].append(entry)
        elif runs[-1]:
            runs.append([])
    return runs


def _unlike(calls: Calls, scripts: Sequence[Script]) -> set[int]:
    """Rows of single calls whose messages are in a batch on the other end."""
    by_tag = match(calls, BY_NAME["gloo"])
    partner = dict(zip(by_tag.send.tolist(), by_tag.recv.tolist(), strict=True))
    partner |= {recv: send for send, recv in partner.items()}
    rows = {row for script in scripts for entry in script if entry.batched for row in entry.rows}
    return {partner[row] for row in rows} - rows


def _wrap(scripts: Sequence[Script], rows: set[int]) -> list[Script] | None:
    """The scripts with these rows in batches, neighbours in one; None if a call among them blocks."""
    wrapped: list[Script] = []
    for script in scripts:
        new: Script = []
        grows = False
        for entry in script:
            taken = entry.issues and not entry.batched and entry.rows[0] in rows
            if taken and entry.kind in BLOCKING:
                return None
            if taken and grows:
                new[-1] = replace(new[-1], rows=new[-1].rows + entry.rows)
            else:
                new.append(replace(entry, batched=True) if taken else entry)
            grows = taken
        wrapped.append(new)
    return wrapped


def _new_batches(before: Calls, after: Calls) -> list[tuple[int, list[str]]]:
    """The rank and the calls of every batch that was not there before."""
    old, found = Counter(_batches(before)), list[tuple[int, list[str]]]()
    for rank, labels in _batches(after):
        if old[rank, labels]:
            old[rank, labels] -= 1
        else:
            found.append((rank, list(labels)))
    return found


def _batches(calls: Calls) -> list[tuple[int, tuple[str, ...]]]:
    scripts = read_script(calls) or []
    return [
        (rank, tuple(calls.label(row) for row in entry.rows))
        for rank, script in enumerate(scripts)
        for entry in script
        if entry.batched
    ]


def _listed(labels: Sequence[str]) -> str:
    shown = [f"`{label}`" for label in labels[:_NAMED]]
    return " and ".join(shown) + (f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else "")


# ------------------------------------------------------------------ exchanges


def _exchanges(calls: Calls, scripts: Sequence[Script], rows: Sequence[int]) -> Iterator[_Move]:
    """Exchanges of neighbours of which one is on the cycle: receives earlier first, on the lowest rank first."""
    wanted = set(rows)
    found: list[tuple[bool, int, int]] = []
    for rank, script in enumerate(scripts):
        for at in range(len(script) - 1):
            first, second = script[at], script[at + 1]
            if wanted.isdisjoint((*first.rows, *second.rows)) or not _may_pass(calls, first, second):
                continue
            found.append((second.kind in SENDS, rank, at))
    for _, rank, at in sorted(found):
        after = [list(script) for script in scripts]
        first, second = after[rank][at : at + 2]
        after[rank][at : at + 2] = [second, first]
        text = f"on rank {rank}, `{calls.label(second.rows[0])}` before `{calls.label(first.rows[0])}`"
        yield _Move(after, text)


def _may_pass(calls: Calls, first: Entry, second: Entry) -> bool:
    """Whether `second` can come before `first`: what is sent must not have been made of what `first` brings."""
    if second.kind not in SENDS + RECEIVES or first.kind is CallKind.COMPUTE or first.batched or second.batched:
        return False
    if second.kind in RECEIVES:  # into a buffer of its own
        return True
    return first.kind in (CallKind.ISEND, CallKind.SEND, CallKind.IRECV) or (
        first.kind is CallKind.WAIT and calls.kind[first.waits] == CallKind.ISEND
    )


def _moves_of(before: Calls, after: Calls) -> list[str]:
    """For each rank whose messages stand in another order now: the first that does, and what it comes before."""
    found = []
    for rank in range(before.ranks):
        old, new = (_messages(calls, rank) for calls in (before, after))
        other = np.flatnonzero((old != new).any(axis=1))
        if len(other):
            first, second = (_told(before, messages[other[0]].tolist()) for messages in (new, old))
            found.append(f"on rank {rank}, {first} before {second}")
    return found


def _messages(calls: Calls, rank: int) -> Ints:
    """Whether it is sent, the peer and the tag of each of a rank's messages, in its order: (messages, 3)."""
    rows = slice(int(calls.offsets[rank]), int(calls.offsets[rank + 1]))
    sends, talks = np.isin(calls.kind[rows], SENDS), np.isin(calls.kind[rows], SENDS + RECEIVES)
    columns: Ints = np.stack([sends, calls.peer[rows], calls.tag[rows]], axis=1)[talks]
    return columns


def _told(calls: Calls, message: list[int]) -> str:
    sends, peer, tag = message
    return f"{'send' if sends else 'receive'} {calls.tags[tag]} {'to' if sends else 'from'} rank {peer}"
