"""A sequence of operations as a word a person can read: what repeats at once is written once, with a count.

A *term* is a body and how often it runs; the body is made of operations and of terms again. The text of a word is that
of its terms: `F * 3 (F I) * 4 ((F I) * 2 W * 2) * 5`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 512
"""Operations in what is looked for as a repetition."""

EXACT = 32
"""Up to this length what is repeated is folded to know its cost."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Term:
    """`body` `count` times. A body of one operation is a single name."""

    body: tuple[Term | str, ...]
    count: int


def expand_term(term: Term) -> list[str]:
    """The operations of a term."""
    once: list[str] = []
    for part in term.body:
        if isinstance(part, str):
            once.append(part)
        else:
            once += expand_term(part)
    return once * term.count


def body_text(body: Sequence[Term | str]) -> str:
    return " ".join(part if isinstance(part, str) else term_text(part, str(part.count)) for part in body)


def term_text(term: Term, count: str) -> str:
    """A term with this text as its count; `1` is left out."""
    alone = len(term.body) == 1 and isinstance(term.body[0], str)
    text = body_text(term.body)
    if count == "1":
        return text
    return f"{text} * {count}" if alone else f"({text}) * {count}"


def fold(names: Sequence[str], late: bool = False) -> tuple[Term, ...]:
    """The word in few signs. `late` begins repetitions as late as it costs nothing, else as early."""
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    folder = _Folder(list(number), late)
    return folder.fold(tuple(number[name] for name in names))[1]


class _Folder:
    """Folds bodies, each once."""

    def __init__(self, names: Sequence[str], late: bool) -> None:
        self.names = names
        self.late = late
        self.known: dict[tuple[int, ...], tuple[int, tuple[Term, ...]]] = {}

    def fold(self, word: tuple[int, ...]) -> tuple[int, tuple[Term, ...]]:
        """The number of signs, and the terms."""
        found = self.known.get(word)
        if found is None:
            found = self.known[word] = self._fold(word)
        return found

    def _fold(self, word: tuple[int, ...]) -> tuple[int, tuple[Term, ...]]:
        count = len(word)
        options = _repetitions(np.array(word, np.int64))
        cost = [0] * (count + 1)  # signs from each place on
        choice = [(1, 1)] * count  # (length of the body, how often)
        for at in range(count - 1, -1, -1):
            best, pick = 1 + cost[at + 1], (1, 1)
            for length, most in options.get(at, ()):
                # What is repeated pays for itself and its count, and parentheses where it is more than one operation.
                signs = 2 if length == 1 else self._signs(word, at, length, most, cost) + 3
                for times in (most, most - 1):
                    if times > 1:
                        total = signs + cost[at + length * times]
                        if total < best or (total == best and not self.late):
                            best, pick = total, (length, times)
            cost[at], choice[at] = best, pick
        terms: list[Term] = []
        at = 0
        while at < count:
            length, times = choice[at]
            body = word[at : at + length]
            terms.append(Term((self.names[body[0]],) if length == 1 else self._body(body), times))
            at += length * times
        return cost[0], tuple(terms)

    def _signs(self, word: tuple[int, ...], at: int, length: int, most: int, cost: Sequence[int]) -> int:
        """The signs of what is repeated; of a long one, what its last round has cost where it stands alone."""
        if length <= EXACT:
            return self.fold(word[at : at + length])[0]
        last = at + (most - 1) * length
        return max(1, cost[last] - cost[last + length])

    def _body(self, word: tuple[int, ...]) -> tuple[Term | str, ...]:
        found: list[Term | str] = []
        for term in self.fold(word)[1]:
            if term.count == 1:
                found += term.body
            else:
                found.append(term)
        return tuple(found)


def _repetitions(word: Counts) -> dict[int, list[tuple[int, int]]]:
    """Per place the (length, how often) of what follows itself there; none that is itself a repetition."""
    count = len(word)
    found: dict[int, list[tuple[int, int]]] = {}
    shorter: dict[int, Counts] = {}  # by length, how far everything is as that many places on
    for length in range(1, min(LONGEST, count // 2) + 1):
        differ = np.flatnonzero(word[length:] != word[:-length])
        ends = np.append(differ, count - length)
        places = np.arange(count - length)
        alike = ends[np.searchsorted(ends, places)] - places
        repeats = alike >= length
        for short, far in shorter.items():
            if length % short == 0:
                repeats &= far[: len(repeats)] + short < length
        if repeats.any():
            shorter[length] = alike
            for at in np.flatnonzero(repeats).tolist():
                found.setdefault(at, []).append((length, 1 + int(alike[at]) // length))
    return found
