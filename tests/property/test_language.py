"""Random texts: parsing and formatting lose nothing, mean what Python means, and never fail but with a diagnostic."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from pathlib import Path

import fuzz
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import bare, tree

from pipedsl import syntax
from pipedsl.diagnostics import DiagnosticError
from pipedsl.format import format_schedule
from pipedsl.parser import parse, read_source

TEXTS = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "schedules").glob("*.sched"))]

# ------------------------------------------------------------------- texts of the language, as lists of tokens

Tokens = list[str]
NAMES = st.sampled_from(["p", "m", "r", "k", "x", "cap", "F", "send"])


def joined(*parts: Tokens) -> Tokens:
    return [token for part in parts for token in part]


def in_parentheses(tokens: Tokens) -> Tokens:
    return ["(", *tokens, ")"]


ATOMS = st.one_of(
    NAMES.map(lambda name: [name]),
    st.integers(0, 99).map(lambda value: [str(value)]),
    st.sampled_from(["0.5", "1.25", "00.10", "true", "false"]).map(lambda text: [text]),
    st.tuples(st.integers(0, 9), st.sampled_from(["KiB", "GiB"])).map(lambda pair: [str(pair[0]), pair[1]]),
)
BINARY = st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", "and", "or"])


def larger_expressions(inner: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    # Operands may be anything, in parentheses or not: where not, precedence decides, which is what is tested.
    operand = st.one_of(inner, inner.map(in_parentheses))
    guarded = inner.map(in_parentheses)
    return st.one_of(
        st.tuples(operand, BINARY, operand).map(lambda t: joined(t[0], [t[1]], t[2])),
        operand.map(lambda tokens: ["-", *tokens]).map(lambda t: t if t[1] != "not" else ["-", "(", *t[1:], ")"]),
        guarded.map(lambda tokens: ["not", *tokens]),
        st.tuples(guarded, guarded, operand).map(lambda t: joined(t[0], ["if"], t[1], ["else"], t[2])),
        st.lists(operand, max_size=3).map(lambda args: ["min(", *[t for a in args for t in [",", *a]][1:], ")"]),
    )


EXPRESSIONS = st.recursive(ATOMS, larger_expressions, max_leaves=6)
SIMPLE = st.one_of(NAMES.map(lambda name: [name]), EXPRESSIONS.map(in_parentheses))
KINDS = st.sampled_from(["F", "B", "I", "W", "SEND_F", "RECV_B", "OFFLOAD"])


@st.composite
def operations(draw: st.DrawFn) -> Tokens:
    tokens = [draw(KINDS)]
    if draw(st.booleans()):
        tokens += ["@", *draw(SIMPLE)]
    if draw(st.booleans()):
        tokens += ["[", *draw(EXPRESSIONS), "]"]
    return tokens


def larger_words(inner: st.SearchStrategy[Tokens]) -> st.SearchStrategy[Tokens]:
    block = st.one_of(inner.map(lambda tokens: ["{", *tokens, "}"]), st.just(["{", "}"]))
    group = inner.map(in_parentheses)
    return st.one_of(
        st.tuples(group, SIMPLE).map(lambda t: joined(t[0], ["*"], t[1])),
        st.tuples(group, group).map(lambda t: joined(t[0], ["&"], t[1])),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: joined(*parts)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: [t for p in parts for t in ["||", *p]][1:]),
        st.tuples(EXPRESSIONS, EXPRESSIONS, block).map(lambda t: joined(["for", "k", "in"], t[0], [".."], t[1], t[2])),
        st.tuples(EXPRESSIONS, block).map(lambda t: joined(["if"], *t)),
        st.tuples(EXPRESSIONS, block, block).map(lambda t: joined(["if"], t[0], t[1], ["else"], t[2])),
        st.tuples(EXPRESSIONS, block, EXPRESSIONS, block).map(
            lambda t: joined(["if"], t[0], t[1], ["else", "if"], t[2], t[3])
        ),
        EXPRESSIONS.map(lambda tokens: ["let", "x", "=", *tokens]),
        group,
    )


WORDS = st.recursive(operations(), larger_words, max_leaves=6)
CLAIMS = st.tuples(EXPRESSIONS, st.one_of(st.just([]), EXPRESSIONS.map(lambda tokens: ["when", *tokens]))).map(
    lambda t: joined(in_parentheses(t[0]), t[1])
)
ITEMS = st.one_of(
    EXPRESSIONS.map(lambda tokens: ["stages", *tokens]),
    EXPRESSIONS.map(lambda tokens: ["require", *tokens, ",", '"why \\" \\\\"']),
    EXPRESSIONS.map(lambda tokens: ["place", "s", "->", *tokens]),
    EXPRESSIONS.map(lambda tokens: ["fn", "f(", "x", ",", "y", ")", "=", *tokens]),
    WORDS.map(lambda tokens: ["rank", "r", "{", *tokens, "}"]),
    st.tuples(EXPRESSIONS, WORDS).map(lambda t: joined(["rank", "r", "where"], t[0], ["{"], t[1], ["}"])),
    st.lists(CLAIMS, max_size=3).map(lambda claims: ["expect", "{", *joined(*claims), "}"]),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda t: ["cost", "s", "{", "F", "=", *t[0], "W", "=", *t[1], "}"]),
    EXPRESSIONS.map(lambda tokens: ["memory", "{", "cap(", "r", ")", "=", *tokens, "}"]),
)
GAPS = ["", " ", " ", " ", "   ", "\n", "\n\n\n", "\r\n", "\t", " # a comment\n", "\n  # one\n  # two\n\n", "#\n"]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A text of the language with whatever may stand between two tokens."""
    tokens = joined(["schedule", "name(", "p", ",", "m", ")"], *draw(st.lists(ITEMS, max_size=3)))
    rng = draw(st.randoms(use_true_random=False))
    out = []
    for token in tokens:
        gap = rng.choice(GAPS)
        # Words run together without a gap, and a `(` right behind a name makes it a call.
        if not gap and out and (out[-1][-1].isalnum() or out[-1][-1] == "_") and (token[0].isalnum() or token == "("):
            gap = " "
        if not gap and out and out[-1][-1] in "-<=>*/&|." and token[0] in "-<=>*/&|.":
            gap = " "
        out += [gap, token]
    return "".join(out)


@settings(max_examples=150, deadline=None)
@given(texts())
def test_formatting_changes_nothing_but_the_layout(text: str) -> None:
    try:
        before = tree(text)
    except DiagnosticError as error:
        # Operands without parentheses make some texts wrong, such as `1 + not x`.
        assert {d.code for d in error.diagnostics} <= {"PD103"}  # noqa: PT017
        return
    once = format_schedule(before)
    after = tree(once)
    assert bare(after.items) == bare(before.items)
    assert [comment.text for comment in after.comments] == [comment.text for comment in before.comments]
    assert format_schedule(after) == once


# ---------------------------------------------------------------------------------- expressions are Python's


def value(expr: syntax.Expr) -> object:
    """The tree evaluated, naively."""
    match expr:
        case syntax.Number(number):
            return number
        case syntax.Boolean(truth):
            return truth
        case syntax.Name(name):
            return VALUES[name]
        case syntax.Unary("-", operand):
            return -value(operand)  # type: ignore[operator]
        case syntax.Unary(_, operand):
            return not value(operand)
        case syntax.Binary("and", left, right):
            return value(left) and value(right)
        case syntax.Binary("or", left, right):
            return value(left) or value(right)
        case syntax.Binary(op, left, right):
            return eval(f"a {op} b", {}, {"a": value(left), "b": value(right)})
        case syntax.Compare(ops, operands):
            names = [f"x{i}" for i in range(len(operands))]
            text = names[0] + "".join(f" {op} {name}" for op, name in zip(ops, names[1:], strict=True))
            return eval(text, {}, dict(zip(names, map(value, operands), strict=True)))
        case syntax.Conditional(condition, then, orelse):
            return value(then) if value(condition) else value(orelse)
        case syntax.Call(_, arguments):
            return min(map(value, arguments))  # type: ignore[type-var]
        case _:
            raise AssertionError(expr)


VALUES = {name: Fraction(i) for i, name in enumerate(["p", "m", "r", "k", "x", "cap", "F", "send"], start=2)}


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS)
def test_expressions_are_read_and_written_as_python_reads_them(tokens: Tokens) -> None:
    text = " ".join(tokens).replace("00.10", "0.10")
    try:
        schedule = tree(f"schedule x(p, m)\nstages {text}")
    except DiagnosticError:
        return
    stages = schedule.items[1]
    assert isinstance(stages, syntax.Stages)
    rewritten = format_schedule(schedule).split("stages ", 1)[1].strip()
    if "iB" in text:
        return
    names = {**VALUES, "true": True, "false": False}
    try:
        expected = eval(text, {"__builtins__": {"min": min}}, names)
    except (ZeroDivisionError, TypeError, ValueError):  # no value: nothing to compare
        return
    assert value(stages.count) == pytest.approx(expected)
    assert eval(rewritten, {"__builtins__": {"min": min}}, names) == pytest.approx(expected)


# -------------------------------------------------------------------------------------------- hostile inputs


@pytest.mark.parametrize("seed", range(8))
def test_hostile_inputs_end_in_a_diagnostic_or_a_tree(seed: int) -> None:
    rng = random.Random(seed)
    understood = 0
    for _ in range(400):
        data = fuzz.mutate(rng, rng.choice(TEXTS)) if rng.random() < 0.8 else fuzz.garbage(rng)
        started = time.perf_counter()
        try:
            schedule = parse(read_source("x", data))
        except DiagnosticError as error:
            assert error.diagnostics  # noqa: PT017
            for found in error.diagnostics:
                assert found.code.startswith("PD1")
                assert found.span is None or 0 <= found.span.start <= found.span.end
            continue
        finally:
            assert time.perf_counter() - started < 5
        understood += 1
        once = format_schedule(schedule)
        again = tree(once)
        assert bare(again.items) == bare(schedule.items)
        assert [comment.text for comment in again.comments] == [comment.text for comment in schedule.comments]
        assert format_schedule(again) == once
    assert understood > 40
