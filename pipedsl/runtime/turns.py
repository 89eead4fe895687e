"""Do all ranks do the same things in the same order?

A step, and whatever else ranks do together, is a turn, and every rank counts its own. A rank that has stood still for
long says which turns it has had lately; whoever waits for it compares them with its own. So a rank that evaluates
where the others train is found out before time is up, and nothing is exchanged while all is well.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Mapping

from pipedsl.runtime.wire import Store

_SAID = 16  # turns that a rank tells the others


class Turns:
    """This rank's turns. The main thread begins them, the watch's tells and compares them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lately: deque[tuple[int, str]] = deque(maxlen=_SAID)
        self._now = self._told = (0, True)  # the turns that have begun, and whether the last one is over

    def begin(self, label: str) -> None:
        """Another turn, in words that all ranks have for it: `step 7 (training)`."""
        turn = self._now[0] + 1
        self._lately.append((turn, label))
        self._now = turn, False

    def end(self) -> None:
        """The turn is over."""
        self._now = self._now[0], True

    @property
    def label(self) -> str:
        """The last turn that has begun; empty before the first."""
        return self._lately[-1][1] if self._lately else ""

    def tell(self, store: Store) -> None:
        """Let the others know of the last turns, and whether the last one is over; once."""
        turn, over = news = self._now  # another may begin meanwhile
        if news != self._told:
            self._told = news
            store.set(
                self._key(self._rank), json.dumps([over, [each for each in self._lately.copy() if each[0] <= turn]])
            )

    def told(self, store: Store, rank: int) -> tuple[bool, dict[int, str]]:
        """What another rank has last told: whether its last turn was over, and its turns by number."""
        key = self._key(rank)
        if not store.check([key]):
            return False, {}
        over, lately = json.loads(store.get(key))
        return over, dict(map(tuple, lately))

    def is_over(self, store: Store, rank: int) -> bool:
        """Whether another rank has told that it is done with the turn that this one is in."""
        over, theirs = self.told(store, rank)
        return over and max(theirs) >= self._now[0]

    def parted(self, store: Store, others: Iterable[int]) -> str:
        """Which of these ranks did something else in one turn than this rank did, and what; empty where none did."""
        own = dict(self._lately.copy())
        for rank in others:
            _, theirs = self.told(store, rank)
            for turn in sorted(own.keys() & theirs.keys()):
                if own[turn] != theirs[turn]:
                    (_, first), (_, second) = both = sorted([(self._rank, own[turn]), (rank, theirs[turn])])
                    return f"{first} on rank {both[0][0]}, but {second} on rank {both[1][0]}"
        return ""

    def apart(self, store: Store, turns: Mapping[int, str], silent: Iterable[int]) -> list[str]:
        """Where ranks were in different turns, which; in a line, if any. `turns`: those of the ranks that answer."""
        known = dict(turns)
        with contextlib.suppress(Exception):
            for rank in silent:
                over, lately = self.told(store, rank)
                if lately:
                    known[rank] = f"{'after ' if over else ''}{lately[max(lately)]}, when it last said so"
        ranks: dict[str, list[str]] = {}
        for rank in sorted(known):
            ranks.setdefault(known[rank] or "before the first step", []).append(str(rank))
        if len(ranks) < 2:
            return []
        return ["  " + "; ".join(f"rank {', '.join(each)}: {turn}" for turn, each in ranks.items())]

    @staticmethod
    def _key(rank: int) -> str:
        return f"turns/{rank}"
