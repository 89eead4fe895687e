"""Ranks whose words agree but for their counts, as one word whose counts are `a * r + b`.

The words at both ends of a run of ranks are laid over each other: each is read as the same bodies with counts of its
own, 0 where it lacks one. That gives every count at two ranks, and with it a line; the run is a class if those lines
give the words of all ranks between, operation for operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipedsl.folding import Term, body_text, expand_term, fold, term_text

MOST_TERMS = 24
"""Terms of a word that is tried to be shared; an irregular one has more, and is alike nowhere."""

MOST_FOLDED_TWICE = 50_000
"""Operations up to which both ways to fold are tried."""

_FIRST_SIGN = 0x4E00  # letters from here on have no meaning in any text
Body = tuple[Term | str, ...]


@dataclass(frozen=True)
class SharedTerm:
    """`body` `slope * r + base` times."""

    body: Body
    slope: int
    base: int

    def at(self, rank: int) -> int:
        return self.slope * rank + self.base


@dataclass(frozen=True)
class RankClass:
    """The word of the ranks `first` .. `last`."""

    first: int
    last: int
    terms: tuple[SharedTerm, ...]


def rank_classes(words: Sequence[Sequence[str]]) -> list[RankClass]:
    """The words of all ranks as few classes, in the order of the ranks."""
    # One sign a name, so that words are texts and compared as such.
    sign = {name: chr(_FIRST_SIGN + k) for k, name in enumerate(dict.fromkeys(name for word in words for name in word))}
    name = {each: one for one, each in sign.items()}
    texts = ["".join(sign[each] for each in word) for word in words]
    ways = (False, True) if sum(map(len, texts)) <= MOST_FOLDED_TWICE else (False,)
    found = [_named(_classes(texts, late), name) for late in ways]
    return min(found, key=lambda classes: (len(classes), sum(len(each.terms) for each in classes)))


def _named(classes: list[RankClass], name: Mapping[str, str]) -> list[RankClass]:
    """The classes with names in place of signs."""

    def body(parts: Body) -> Body:
        return tuple(name[part] if isinstance(part, str) else Term(body(part.body), part.count) for part in parts)

    return [replace(c, terms=tuple(replace(term, body=body(term.body)) for term in c.terms)) for c in classes]


def _classes(words: Sequence[str], late: bool) -> list[RankClass]:
    folded = {word: fold(word, late) for word in dict.fromkeys(words)}
    terms = [folded[word] for word in words]
    classes = []
    first = 0
    while first < len(words):
        shared = None
        for last in range(len(words) - 1, first, -1):
            shared = _shared(words, terms, first, last)
            if shared is not None:
                break
        else:
            last = first
        classes.append(RankClass(first, last, shared or tuple(SharedTerm(t.body, 0, t.count) for t in terms[first])))
        first = last + 1
    return classes


def _shared(
    words: Sequence[str], terms: Sequence[tuple[Term, ...]], first: int, last: int
) -> tuple[SharedTerm, ...] | None:
    """The word of all ranks `first` .. `last`; None where they have none."""
    if words[first] == words[last]:
        if all(words[rank] == words[first] for rank in range(first, last)):
            return tuple(SharedTerm(term.body, 0, term.count) for term in terms[first])
        return None
    if max(len(terms[first]), len(terms[last])) > MOST_TERMS:
        return None
    bodies = _merged([term.body for term in terms[first]], [term.body for term in terms[last]])
    flat = ["".join(expand_term(Term(body, 1))) for body in bodies]
    low, high = _counts(words[first], flat), _counts(words[last], flat)
    if low is None or high is None:
        return None
    if last == first + 1 and (0 in low or 0 in high):
        return None  # two ranks always fit on a line, whatever is laid over each other
    found = []
    for body, here, there in zip(bodies, low, high, strict=True):
        slope, rest = divmod(there - here, last - first)
        if rest:
            return None
        found.append(SharedTerm(body, slope, here - slope * first))
    for rank in range(first + 1, last):
        counts = [term.at(rank) for term in found]
        length = sum(n * len(once) for n, once in zip(counts, flat, strict=True))
        if length != len(words[rank]) or min(counts) < 0:
            return None
        if "".join(once * n for n, once in zip(counts, flat, strict=True)) != words[rank]:
            return None
    return tuple(term for term in found if term.slope or term.base)


def _merged(one: Sequence[Body], other: Sequence[Body]) -> list[Body]:
    """The shortest sequence that has both in it."""
    texts = [body_text(body) for body in one], [body_text(body) for body in other]
    rows, columns = len(one), len(other)
    alike = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            same = texts[0][i] == texts[1][j]
            alike[i][j] = 1 + alike[i + 1][j + 1] if same else max(alike[i + 1][j], alike[i][j + 1])
    found: list[Body] = []
    i = j = 0
    while i < rows and j < columns:
        if texts[0][i] == texts[1][j]:
            found.append(one[i])
            i, j = i + 1, j + 1
        elif alike[i + 1][j] >= alike[i][j + 1]:
            found.append(one[i])
            i += 1
        else:
            found.append(other[j])
            j += 1
    return [*found, *one[i:], *other[j:]]


def _counts(text: str, bodies: Sequence[str]) -> list[int] | None:
    """How often each body runs in the word, one after the other; the first ones as often as they can."""
    # ends[k]: the places from which the bodies from the k-th on make up the rest.
    ends: list[set[int]] = [{len(text)}]
    for body in reversed(bodies):
        found: set[int] = set()
        for at in ends[0]:
            while at not in found:
                found.add(at)
                if at < len(body) or text[at - len(body) : at] != body:
                    break
                at -= len(body)
        ends.insert(0, found)
    if 0 not in ends[0]:
        return None
    counts = []
    at = 0
    for body, rest in zip(bodies, ends[1:], strict=True):
        stop, place = at, at
        while text.startswith(body, place):
            place += len(body)
            if place in rest:
                stop = place
        counts.append((stop - at) // len(body))
        at = stop
    return counts


def class_words(found: RankClass, counts: Sequence[str]) -> list[str]:
    """The text of each term, with these texts as counts."""
    return [term_text(Term(term.body, 2), count) for term, count in zip(found.terms, counts, strict=True)]
