"""How far apart the first stage's F are in every order: what is known of some microbatches alone, for chains to use.

Of any order look at microbatches i to i + k alone. They run in an order of the same problem with k + 1 microbatches, no
sooner than there, from the start of F[i] on, which comes before all else of them. So what is shown of few microbatches
holds anywhere among many: of the least start of F[k], and of the least makespan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipedsl.program import Kind
from verify.search.model import Model


@dataclass(frozen=True)
class Spacing:
    """`apart`: (k, time): F[i + k] of the first stage starts at least that after F[i] does, whatever i. `rest`: (n,
    time): so long it takes at least from the start of the last n F of the first stage to the end of everything.
    `starts`: (x, time): row x starts no sooner. `ends`: (x, time): so long it takes at least from the end of row x.

    Only for problems that are fully open in microbatch order; `rest` and `ends` only for makespans. In the problem's
    units.
    """

    apart: tuple[tuple[int, int], ...] = ()
    rest: tuple[tuple[int, int], ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    ends: tuple[tuple[int, int], ...] = ()

    def edges(self, model: Model) -> Iterator[tuple[int, int, int]]:
        """(x, y, gap): y starts at least gap after x ends."""
        firsts = first_rows(model)
        for k, time in self.apart:
            for x, y in zip(firsts, firsts[k:], strict=False):
                yield x, y, time - model.duration[x]

    def tails(self, model: Model) -> Iterator[tuple[int, int]]:
        """(x, time): so long it takes at least from the end of x to the end of everything."""
        firsts = first_rows(model)
        for n, time in self.rest:
            if n <= len(firsts):
                yield firsts[-n], time - model.duration[firsts[-n]]
        yield from self.ends


def first_rows(model: Model) -> list[int]:
    """F of the first stage, in the order of the microbatches."""
    return [row for row, operation in enumerate(model.operations) if operation[:2] == (Kind.F, 0)]
