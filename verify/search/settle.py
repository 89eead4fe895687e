"""Let orders settle: fill idle time from their begin, then from their end, and so on while that helps.

From the end everything runs as late as it may, which leaves idle time, and memory, where there was none from the begin:
as when a schedule is justified to the right and to the left by turns (Valls, Ballestin and Quintanilla 2005).
"""

from __future__ import annotations

from time import monotonic

from verify.search.fill import fill
from verify.search.mirror import mirrored, turned
from verify.search.model import Model, run

TURNS = 12  # at most
PATIENCE = 2  # turns without anything better


def settle(model: Model, rows: list[list[int]], stop: float) -> tuple[list[list[int]], int]:
    """The best that comes of orders that fit, themselves at worst, and how often idle time was filled."""
    found = run(model, rows)
    if found is None:
        return rows, 0
    other = mirrored(model)
    sides = [model] if other is None else [model, other]
    best, value = rows, found.value
    turn = last = 0
    while turn < TURNS and turn - last < PATIENCE and monotonic() < stop:
        seen = sides[turn % len(sides)]
        rows = fill(model, rows) if seen is model else turned(model, fill(seen, turned(model, rows)))
        turn += 1
        found = run(model, rows)
        if found is not None and found.value < value:
            best, value, last = rows, found.value, turn
    return best, turn
