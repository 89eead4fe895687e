"""The strands of an open word allow exactly the orders that the word does, found by listing all of them."""

from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand_open
from pipedsl.program import Kind

# (kind, microbatch) of one rank with one stage and two microbatches.
OPERATIONS = [(kind, i) for kind in ("F", "I", "W") for i in (0, 1)]

Word = tuple


def words(operations: list[tuple[str, int]]) -> st.SearchStrategy[Word]:
    """Words of these operations: sequences and shuffles of parts of them."""
    if len(operations) == 1:
        return st.just(("op", *operations[0]))
    cut = st.integers(1, len(operations) - 1)
    return st.tuples(st.sampled_from(["then", "beside", "beside"]), cut).flatmap(
        lambda choice: st.tuples(st.just(choice[0]), words(operations[: choice[1]]), words(operations[choice[1] :]))
    )


def text(word: Word) -> str:
    if word[0] == "op":
        return f"{word[1]}[{word[2]}]"
    return f"({text(word[1])} {'' if word[0] == 'then' else '|| '}{text(word[2])})"


def operations(word: Word) -> list[tuple[str, int]]:
    return [(word[1], word[2])] if word[0] == "op" else operations(word[1]) + operations(word[2])


def before(word: Word) -> set[tuple[object, object]]:
    """The pairs that the word puts in order."""
    if word[0] == "op":
        return set()
    found = before(word[1]) | before(word[2])
    if word[0] == "then":
        found |= {(x, y) for x in operations(word[1]) for y in operations(word[2])}
    return found


NEEDS = {(("F", i), ("I", i)) for i in (0, 1)} | {(("I", i), ("W", i)) for i in (0, 1)}
ORDERS = [
    order for order in permutations(OPERATIONS) if all(order.index(x) < order.index(y) for x, y in NEEDS)
]  # fmt: skip


def keeps(order: tuple[object, ...], pairs: set[tuple[object, object]]) -> bool:
    place = {operation: at for at, operation in enumerate(order)}
    return all(place[x] < place[y] for x, y in pairs)


def allowed(pairs: set[tuple[object, object]]) -> set[tuple[object, ...]]:
    return {order for order in ORDERS if keeps(order, pairs)}


@settings(max_examples=300, deadline=None)
@given(st.permutations(OPERATIONS).flatmap(words))
def test_strands_allow_what_the_word_does(word: Word) -> None:
    schedule = parse_text(f"schedule x(p, m)\nstages p\nplace s -> s\nrank r {{ {text(word)} }}")
    meant = allowed(before(word))
    refused: set[str] = set()
    try:
        (found,) = expand_open(schedule, {"p": 1, "m": 2})
    except DiagnosticError as error:
        refused = {each.code for each in error.diagnostics}
    if refused:
        assert refused == {"PD601"}
        return
    program = found.program
    names = [(Kind(kind).name, int(i)) for kind, i in zip(program.kind, program.microbatch, strict=True)]
    pairs = {(names[a], names[b]) for (strands,) in [found.strands] for s in strands for a, b in pairwise(s)}
    assert len({y for _, y in found.fences}) == len(found.fences), "an operation has at most one"
    # A fence stands in place of what its operation needs of its own.
    fences = {(names[a], names[b]) for a, b in found.fences}
    fenced = {after for _, after in fences}
    pairs |= fences | {(x, y) for x, y in NEEDS if y not in fenced}
    assert {order for order in permutations(OPERATIONS) if keeps(order, pairs)} == meant


@settings(max_examples=100, deadline=None)
@given(st.permutations(OPERATIONS), st.sets(st.integers(1, 5), max_size=4))
def test_a_shuffle_of_sequences_is_never_refused(order: list[tuple[str, int]], cuts: set[int]) -> None:
    ends = [0, *sorted(cuts), len(order)]
    parts = [" ".join(f"{kind}[{i}]" for kind, i in order[a:b]) for a, b in pairwise(ends)]
    schedule = parse_text(f"schedule x(p, m)\nstages p\nplace s -> s\nrank r {{ {' || '.join(parts)} }}")
    (found,) = expand_open(schedule, {"p": 1, "m": 2})
    assert [len(strand) for strand in found.strands[0]] == [b - a for a, b in pairwise(ends)]
