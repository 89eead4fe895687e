"""Windows that are narrower than chains say: what was shown of orders within a limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Narrowed:
    """`starts`: (x, time): row x starts no sooner. `ends`: (x, time): so long it takes at least from the end of row x
    to the end of everything.

    Only for makespans. In the problem's units.
    """

    starts: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int], ...] = ()


NOTHING = Narrowed()
