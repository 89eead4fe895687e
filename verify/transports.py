"""What the transports do (design section 6), as a table. Everything else about them follows from these columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Communicators(Enum):
    """Which communicator, and so which stream, a call uses."""

    NONE = "no streams: calls of a rank do not wait for each other"
    PAIR = "one per unordered pair of ranks, one stream for both directions; batches use the group's"
    WORLD = "the group's, one stream for all peers"
    DIRECTION = "one per ordered pair of ranks"


@dataclass(frozen=True)
class Transport:
    """`buffered`: a send finishes at once. `by_tag`: matching honours tags, else order alone counts.

    `cold`: first use of a communicator or direction holds the host until the peer gets there.
    """

    name: str
    buffered: bool
    by_tag: bool
    communicators: Communicators
    cold: bool


_TABLE = (
    #         name                    buffered by_tag communicators            cold
    Transport("buffered", True, True, Communicators.NONE, False),
    Transport("gloo", False, True, Communicators.NONE, False),
    Transport("nccl-lazy-warm", False, False, Communicators.PAIR, False),
    Transport("nccl-lazy", False, False, Communicators.PAIR, True),
    Transport("nccl-eager-warm", False, False, Communicators.WORLD, False),
    Transport("nccl-eager", False, False, Communicators.WORLD, True),
    Transport("group-per-direction-warm", False, False, Communicators.DIRECTION, False),
)
BY_NAME = {transport.name: transport for transport in _TABLE}

# The transports that are meant when none is named.
DEFAULT = ("buffered", "gloo", "nccl-lazy", "nccl-eager", "nccl-lazy-warm", "nccl-eager-warm")

# A deadlock of the transport named on the right explains one of the transport on the left: it has all its waiting.
EXPLAINED_BY = {
    "gloo": "buffered",
    "nccl-lazy-warm": "gloo",
    "nccl-lazy": "nccl-lazy-warm",
    "nccl-eager-warm": "nccl-lazy-warm",
    "nccl-eager": "nccl-eager-warm",
    "group-per-direction-warm": "gloo",
}


def chosen(names: Iterable[str]) -> list[Transport]:
    """The transports of these names, in the order of the table. Raises ValueError for a name that is none."""
    wanted = set(names)
    if unknown := sorted(wanted - BY_NAME.keys()):
        raise ValueError(f"no transport is called {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    return [transport for transport in _TABLE if transport.name in wanted]
