"""Words as arrays against a second, naive expansion that walks the tree and builds lists."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand
from pipedsl.program import Kind, Program
from pipedsl.syntax import For, If, Let, Op, RankBlock, Repeat, Sequence, Word

MICROBATCHES = 40
HEAD = "schedule x(p, m)\nstages 2 * p\nplace s -> s % p\n"
NAMES = {"a", "b", "c", "d"}

Env = dict[str, int]
Naive = list[tuple[str, int, int | None, str]]

kinds = st.sampled_from(["F", "B", "I", "W"])


def numbers(variables: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Small numbers, some of them negative, that depend on the variables in scope."""
    names = st.sampled_from(["r", *variables])
    return st.one_of(
        st.integers(0, 3).map(str),
        st.builds("({} % {})".format, names, st.integers(1, 3)),
        st.builds("({} - {})".format, names, st.integers(0, 1)),
    )


@st.composite
def words(draw: st.DrawFn, variables: tuple[str, ...], depth: int) -> str:
    fresh = sorted(NAMES - set(variables))
    choice = draw(st.integers(0, 9 if depth and fresh else 2))
    number = numbers(variables)
    if choice <= 1:
        return f"{draw(kinds)}@({draw(number)} % 2)"
    if choice == 2:
        return f"{draw(kinds)}@({draw(number)} % 2)[{draw(number)}]"
    if choice <= 4:
        return f"({draw(words(variables, depth - 1))}) * {draw(number)}"
    if choice <= 6:
        body = draw(words((*variables, fresh[0]), depth - 1))
        return f"for {fresh[0]} in {draw(number)} .. {draw(number)} {{ {body} }}"
    if choice == 7:
        other = draw(words(variables, depth - 1))
        return f"if {draw(number)} < {draw(number)} {{ {draw(words(variables, depth - 1))} }} else {{ {other} }}"
    if choice == 8:
        return f"if true {{ let {fresh[0]} = {draw(number)} {draw(words((*variables, fresh[0]), depth - 1))} }}"
    return " ".join(draw(st.lists(words(variables, depth - 1), min_size=2, max_size=4)))


def number(expr: object, env: Env) -> int:
    """The tree's own text, read by Python: another evaluator than the one under test."""
    value = eval(expr.span.text, {}, dict(env))  # type: ignore[attr-defined]
    return int(Fraction(value))


class Negative(Exception):
    """A count below 0."""


def naive(word: Word, env: Env) -> Naive:
    match word:
        case Op():
            assert word.chunk is not None
            index = None if word.index is None else number(word.index, env)
            return [(word.kind, number(word.chunk, env), index, word.span.text)]
        case Sequence():
            inner, found = dict(env), []
            for item in word.items:
                if isinstance(item, Let):
                    inner[item.name] = number(item.value, inner)
                else:
                    found += naive(item, inner)
            return found
        case Repeat():
            count = number(word.count, env)
            if count < 0:
                raise Negative
            return [op for _ in range(count) for op in naive(word.body, env)]
        case For():
            start, stop = number(word.start, env), number(word.stop, env)
            if stop < start:
                raise Negative
            return [op for k in range(start, stop) for op in naive(word.body, {**env, word.variable: k})]
        case If():
            condition = bool(eval(word.condition.span.text.replace("true", "True"), {}, dict(env)))
            chosen = word.then if condition else word.orelse
            return [] if chosen is None else naive(chosen, env)
        case Let():
            return []
        case _:
            raise AssertionError(word)


def count_up(ops: Naive) -> list[tuple[str, int, int, str]] | str:
    """Microbatches by counting, or the code of what is wrong."""
    groups: dict[tuple[str, int], list[int | None]] = {}
    for kind, chunk, index, _ in ops:
        groups.setdefault((kind, chunk), []).append(index)
        if index is not None and not 0 <= index < MICROBATCHES:
            return "PD205"
    if any(None in group and any(each is not None for each in group) for group in groups.values()):
        return "PD203"
    if any(None in group and len(group) > MICROBATCHES for group in groups.values()):
        return "PD205"
    taken: dict[tuple[str, int], int] = {}
    found = []
    for kind, chunk, index, text in ops:
        position = taken.get((kind, chunk), 0)
        taken[kind, chunk] = position + 1
        found.append((kind, chunk, position if index is None else index, text))
    return found


def rows(program: Program, rank: int) -> list[tuple[str, int, int, str]]:
    chunk_of = {stage: chunk for chunk, (_, stage) in enumerate(program.chunks(rank))}
    return [
        (
            Kind(program.kind[row]).name,
            chunk_of[int(program.stage[row])],
            int(program.microbatch[row]),
            program.span_of(row).text,
        )
        for row in program.rows(rank)
    ]


@settings(max_examples=300, deadline=None)
@given(words((), 4), words((), 4))
def test_arrays_are_the_naive_lists(first: str, second: str) -> None:
    text = f"{HEAD}rank r where r < 1 {{ {first} }}\nrank r where r >= 1 {{ {second} }}\n"
    schedule = parse_text(text)
    blocks = [item for item in schedule.items if isinstance(item, RankBlock)]
    wanted: list[object] = []
    for rank, block in enumerate((blocks[0], blocks[1], blocks[1])):
        try:
            wanted.append(count_up(naive(block.body, {"r": rank})))
        except Negative:
            wanted.append("PD114")
    try:
        program = expand(schedule, {"p": 3, "m": MICROBATCHES})
    except DiagnosticError as error:
        codes = {diagnostic.code for diagnostic in error.diagnostics}
        broken = {each for each in wanted if isinstance(each, str)}
        # One rank may show several mistakes; the naive expansion stops at another first one of them.
        assert broken
        assert codes <= {"PD114", "PD203", "PD205"}
        return
    assert [rows(program, rank) for rank in range(3)] == wanted
    assert np.array_equal(np.diff(program.offsets), [len(each) for each in wanted])  # type: ignore[arg-type]
