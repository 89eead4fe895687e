"""Windows that are narrower than chains say: what was shown of orders within a limit, or what may as well be so."""

from __future__ import annotations

from dataclasses import dataclass

from verify.search.lost import Lost


@dataclass(frozen=True)
class Narrowed:
    """`starts`: (x, time): row x starts no sooner. `ends`: (x, time): so long it takes at least from the end of row x
    to the end of everything. `early`, `late`: rows of which nothing is left open, so that those start as soon as they
    can, and these as late. `lost`: of the slowest rank.

    Only for makespans. In the problem's units.
    """

    starts: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int], ...] = ()
    early: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    lost: Lost | None = None


NOTHING = Narrowed()
