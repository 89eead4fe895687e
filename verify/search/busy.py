"""What a rank runs before an operation takes its time, and so does what it runs after it: windows that say so.

Chains know of one operation after another. But what a rank runs before an operation in every order within a limit has
to be done on that one rank, each no sooner than at its own earliest start, and only then can it start; and so for what
comes after. (A part of edge finding; Carlier and Pinson 1989.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from verify.search.lost import Lost
from verify.search.model import Model
from verify.search.windows import Window

BUSY = 0.9  # ranks are looked at whose work is such a part of the most


def busy_ranks(model: Model) -> list[int]:
    """Those with the most to do."""
    load = [sum(model.duration[row] for pair in pairs for row in range(*pair)) for pairs in model.strands]
    return [r for r, work in enumerate(load) if work >= BUSY * max(load)]


def later_starts(window: Window, r: int, lost: Lost | None = None) -> list[tuple[int, int]]:
    """(x, time): row x of the rank starts no sooner, though its window begins before."""
    pairs, earliest, duration = window.model.strands[r], window.earliest, window.model.duration
    places = [(k, place, row) for k, pair in enumerate(pairs) for place, row in enumerate(range(*pair))]
    found = _all_done(places, _ahead(window, r), earliest, duration, lost.before if lost else {})
    return [(row, least) for row, least in found if least > earliest[row]]


def sooner_starts(window: Window, r: int, lost: Lost | None = None) -> list[tuple[int, int]]:
    """(x, time): row x of the rank starts no later, though its window ends after."""
    latest, duration = window.latest, window.model.duration
    due = [-at - time for at, time in zip(latest, duration, strict=True)]  # the same with time turned round
    pairs = window.model.strands[r]
    places = [(k, place, row) for k, pair in enumerate(pairs) for place, row in enumerate(reversed(range(*pair)))]
    # From when a row starts, itself included: so besides its own time.
    after = {row: time - window.limit for row, time in lost.after.items()} if lost else {}
    found = _all_done(places, _behind(window, r), due, duration, after)
    ends = ((row, -done - duration[row]) for row, done in found)
    return [(row, most) for row, most in ends if most < latest[row]]


def spread(window: Window, r: int, lost: Lost) -> Lost:
    """What is lost before an operation is lost before those that come after it, too; and the other way round."""
    model, before, after = window.model, dict(lost.before), dict(lost.after)
    pairs = model.strands[r]
    ahead, behind = _ahead(window, r), _behind(window, r)
    for row in sorted(ahead, key=window.earliest.__getitem__):
        last = [pair[0] + count - 1 for pair, count in zip(pairs, ahead[row], strict=True) if count]
        before[row] = max(before[row], *(before[x] for x in last), 0)
    for row in sorted(behind, key=window.earliest.__getitem__, reverse=True):
        next_ones = [pair[1] - count for pair, count in zip(pairs, behind[row], strict=True) if count]
        after[row] = max(after[row], *(after[x] for x in next_ones), 0)
    return Lost(before, after)


def _all_done(
    places: list[tuple[int, int, int]],
    counts: dict[int, list[int]],
    release: Sequence[int],
    duration: Sequence[int],
    lost: Mapping[int, int],
) -> Iterator[tuple[int, int]]:
    """When one machine can have done what comes before each row, at the soonest; of rows that something comes before.

    It is, for each of that, its release and all work that is released no sooner. `places`: (strand, place, row);
    `counts`: by row, how many of each strand, from the first place on.
    `lost`: by row, until when the machine could do nothing if it did all of that at once.
    """
    queue = sorted(((release[row], k, place, duration[row]) for k, place, row in places), reverse=True)
    for row, before in counts.items():
        if any(before) or row in lost:
            work, best = 0, None
            for released, k, place, time in queue:
                if place < before[k]:
                    work += time
                    if best is None or released + work > best:
                        best = released + work
            if row in lost:
                best = lost[row] + work if best is None else max(best, lost[row] + work)
            assert best is not None
            yield row, best


def _ahead(window: Window, r: int) -> dict[int, list[int]]:
    """How many of each strand of the rank come before each of its rows, in the order of their earliest starts."""
    model, pairs = window.model, window.model.strands[r]
    at = {row: (k, row - first + 1) for k, (first, last) in enumerate(pairs) for row in range(first, last)}
    found: dict[int, list[int]] = {}
    for row in sorted(at, key=window.earliest.__getitem__):
        counts = [0] * len(pairs)
        for x, _ in window.before[row]:
            if model.rank[x] == r:
                strand, count = at[x]
                counts = [max(pair) for pair in zip(counts, found[x], strict=True)]
                counts[strand] = max(counts[strand], count)
        found[row] = counts
    return found


def _behind(window: Window, r: int) -> dict[int, list[int]]:
    """How many of each strand of the rank come after each of its rows."""
    model, pairs = window.model, window.model.strands[r]
    at = {row: (k, last - row) for k, (first, last) in enumerate(pairs) for row in range(first, last)}
    found = {row: [0] * len(pairs) for row in at}
    for row in sorted(at, key=window.earliest.__getitem__, reverse=True):
        strand, count = at[row]
        for x, _ in window.before[row]:
            if model.rank[x] == r:
                counts = [max(pair) for pair in zip(found[x], found[row], strict=True)]
                counts[strand] = max(counts[strand], count)
                found[x] = counts
    return found
