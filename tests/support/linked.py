"""Both ends of a link in one process, and what it holds of the system's."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from pathlib import Path

import torch

from pipedsl.runtime.shared_memory import Link, Window

LIMIT = 60.0  # seconds; nothing on a link takes more than a moment, but the machine may be busy


def pair(room: int = 2, spin: float = 0.0, ahead: int = 0) -> tuple[Link, Link]:
    """Both ends, with room for so many messages each way; `ahead` of them may have no receive when a later one has."""
    one, other = socket.socketpair()
    window = Window(room, ahead, 9)
    return Link(one, window, window, spin), Link(other, window, window, spin)


def descriptors_of(what: str) -> int:
    """How many descriptors this process has of such things."""
    gc.collect()
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that which lists the folder is gone
            found += what in os.readlink(path)
    return found


def take(link: Link, like: torch.Tensor, tag: int) -> torch.Tensor:
    """Post a receive, and wait for it."""
    link.expect()
    tensor = torch.empty_like(like)
    link.receive([tensor], tag)
    return tensor
