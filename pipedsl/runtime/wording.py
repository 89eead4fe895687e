"""A failure in words: one line for who, where and what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipedsl.runtime.patience import StoreSilent
from pipedsl.runtime.position import Report
from pipedsl.runtime.wire import Wire, called, text_of

ENDED = "has ended (the connection to it is closed)"


@dataclass(frozen=True)
class Account:
    """What a rank says of a failure.

    `head`: what has happened, in one line; `told`: the same for other pipelines, which see nothing of `lines`.
    `sure`: it is known what it is due to.
    """

    head: str
    told: str
    sure: bool
    lines: Sequence[str]


def head_of(wire: Wire, failure: Report) -> str:
    """A failure in one line: who, where, what."""
    rank, where, text = called(wire, failure["rank"]), failure["where"], failure["text"]
    if failure["why"] == "unmet":
        return str(text)
    if failure["why"] == "raised":
        return f"{rank} failed at {where}: {text}"
    if failure["why"] == "lost":
        peer = called(wire, failure["peer"]) if failure["peer"] >= 0 else "another rank"
        return f"{rank} lost its connection to {peer} at {where}: {text}"
    if failure["why"] == "store":
        return f"{wire.store_host}, which holds the ranks' store, {text}; {rank} stood at {where}"
    if failure["why"] == "parted":
        return f"the ranks do different things: {text}; {rank} stood at {where}"
    return f"{text}: {rank} stood at {where}"


def end_of_chain(rank: int, failure: Report, states: dict[int, Report]) -> int:
    """Follow who waits for whom from `rank` to one that waits for nobody, or does not answer."""
    seen = {rank}
    peer = int(failure["peer"])
    while peer >= 0 and peer not in seen:
        seen.add(peer)
        rank = peer
        peer = int(states[rank]["peer"]) if rank in states else -1
    return rank


def waits_for(failure: Report, states: Mapping[int, Report], ranks: Sequence[int]) -> set[int]:
    """All that the rank of a failure may wait for, itself or by others that it waits for; numbers in the whole job.

    `ranks`: the number of each of this pipeline's. What the ranks of other pipelines wait for is not known.
    """
    here = {among_all: rank for rank, among_all in enumerate(ranks)}
    found: set[int] = set()
    reports = [failure]
    while reports:
        report = reports.pop()
        peers = [ranks[report["peer"]]] if report["peer"] >= 0 else []
        more = {*peers, *report["among"], *report["replicas"]} - found
        found |= more
        reports += [states[here[each]] for each in more if here.get(each) in states]
    return found


def is_due_to_one(failure: Report) -> bool:
    """Whether it is known what a failure is due to, before any rank has been asked."""
    return bool(failure["why"] != "waited" and (failure["why"] != "lost" or failure["peer"] >= 0))


def fate_of(error: Exception) -> str:
    """What has become of a store that has raised this, in words."""
    return "does not answer" if isinstance(error, StoreSilent) else ENDED


def in_short(error: BaseException) -> str:
    """An error in one line, without the places in torch's sources and the advice that gloo adds."""
    first = next((line for line in text_of(error).splitlines() if line.strip()), "")
    first = re.sub(r"^\[[^]]*\] ", "", first).split(". This is typically")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
