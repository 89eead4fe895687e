"""Texts to trees: every construct, the traps of the grammar, several errors a run, and hostile texts."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from trees import bare, tree

from pipedsl import syntax
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Source
from pipedsl.parser import parse, read_source

HEAD = "schedule x(p, m)\n"


def word(text: str) -> syntax.Word:
    block = tree(f"{HEAD}rank r {{ {text} }}").items[1]
    assert isinstance(block, syntax.RankBlock)
    return block.body


def expression(text: str) -> syntax.Expr:
    item = tree(f"{HEAD}stages {text}").items[1]
    assert isinstance(item, syntax.Stages)
    return item.count


def shape(expr: syntax.Expr) -> str:
    """An expression with every operation in parentheses."""
    match expr:
        case syntax.Number(value):
            return str(value)
        case syntax.Name(name):
            return name
        case syntax.Boolean(value):
            return str(value)
        case syntax.Size(value, unit):
            return f"{value}{unit}"
        case syntax.Unary(op, operand):
            return f"({op} {shape(operand)})"
        case syntax.Binary(op, left, right):
            return f"({shape(left)} {op} {shape(right)})"
        case syntax.Compare(ops, operands):
            return "(" + shape(operands[0]) + "".join(f" {o} {shape(x)}" for o, x in zip(ops, operands[1:])) + ")"  # noqa: B905
        case syntax.Conditional(condition, then, orelse):
            return f"({shape(then)} if {shape(condition)} else {shape(orelse)})"
        case syntax.Call(function, arguments):
            return f"{function}({', '.join(map(shape, arguments))})"


def findings(text: str, limits: Limits | None = None) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as caught:
        parse(Source("test.sched", text), limits or Limits())
    assert caught.value.diagnostics
    return caught.value.diagnostics


def places(text: str) -> list[tuple[str, int, int]]:
    return [(d.code, d.span.line, d.span.column) for d in findings(text) if d.span is not None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("a // b % c / d", "(((a // b) % c) / d)"),
        ("- a * b", "((- a) * b)"),
        ("--a - -b", "((- (- a)) - (- b))"),
        ("not a == b and c or d", "(((not (a == b)) and c) or d)"),
        ("a < b <= c != d", "(a < b <= c != d)"),
        ("(a < b) < c", "((a < b) < c)"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("(a if b else c) if d or f else e", "((a if b else c) if (d or f) else e)"),
        ("min(a, f(), 2 * (b + 1))", "min(a, f(), (2 * (b + 1)))"),
        ("80 GiB + 2KiB", "(80GiB + 2KiB)"),
        ("F + B * send", "(F + (B * send))"),
        ("true and false", "(True and False)"),
        ("0.7 + 3.0 + 0.125", "((7/10 + 3) + 1/8)"),
    ],
)
def test_expressions_bind_as_in_python(text: str, expected: str) -> None:
    assert shape(expression(text)) == expected


def test_whole_numbers_are_ints_and_decimals_exact() -> None:
    assert expression("3.0") == syntax.Number(3, expression("3.0").span)
    number = expression("0.7")
    assert isinstance(number, syntax.Number)
    assert number.value == Fraction(7, 10)


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("F*n(F I)*r", None),  # a call: refused
        ("F * n (F I) * r", "(F * n) ((F I) * r)"),
        ("F * f(r)\n(F I)", "(F * f(r)) (F I)"),
        ("A", None),
        ("F F * 2 B", "F (F * 2) B"),
        ("F & B * 2", "F & (B * 2)"),
        ("F B & I W", "F (B & I) W"),
        ("F B || I || W", "(F B) || I || W"),
        ("F * 2 * 3", "(F * 2) * 3"),
        ("F@k[i] * 2", "(F@(k)[(i)]) * 2"),
        ("let x = a\nif c { F } else { B }", "let x = (a) if c { F } else { B }"),
        ("let x = a if c else b if d { F }", "let x = (a if c else b) if d { F }"),
        ("if a if b else c { F } else if d { B }", "if (a if b else c) { F } else { if d { B } }"),
        ("for k in 0..m{F}", "for k in 0 .. m { F }"),
        ("for k in a if b else c .. d { }", "for k in (a if b else c) .. d {}"),
        ("((F))", "F"),
    ],
)
def test_words(text: str, same_as: str | None) -> None:
    if same_as is None:
        with pytest.raises(DiagnosticError):
            word(text)
    else:
        assert bare(word(text)) == bare(word(same_as))


def test_groups_stay_and_a_lone_let_keeps_its_scope() -> None:
    assert bare(word("(F B) I")) != bare(word("F B I"))
    assert bare(word("(let x = 1) F")) != bare(word("let x = 1 F"))
    assert bare(word("")) == ("Sequence", (), None)


def test_every_item() -> None:
    schedule = tree(
        """
# A title.
#   A source.
schedule all(p, m, v = 2)
require m >= p, "say \\"why\\""
stages p * v
place s -> s % p
replica up { place s -> s }
fn zero() = 0
fn f(x, y) = x
rank r where r == 0 { F@0[1] SEND_F RECV_B@(1) OFFLOAD RELOAD RECOMPUTE REDUCE }
rank r where r > 0 {}
cost { F = 1 send = 0.5 }
cost s { W = s }
memory { activation(s) = 1 GiB cap(r) = memory(r) }
expect { peak(r) == p  bubble <= 1/2 when m >= p  makespan == F }
minimize makespan
subject to peak(r) <= 2
depend F[k]@s on B[k - 1]@(s + 1) when k > 0
place ?
"""
    )
    kinds = [type(item).__name__ for item in schedule.items]
    assert (
        kinds
        == (
            "Header Require Stages Place Replica Function Function RankBlock RankBlock CostBlock CostBlock MemoryBlock "
            "ExpectBlock Minimize SubjectTo Depend Place"
        ).split()
    )
    assert schedule.header is schedule.items[0]
    assert schedule.header.doc == "A title.\n  A source."
    assert [parameter.name for parameter in schedule.header.parameters] == ["p", "m", "v"]
    require = schedule.items[1]
    assert isinstance(require, syntax.Require)
    assert require.why == 'say "why"'
    expect = schedule.items[12]
    assert isinstance(expect, syntax.ExpectBlock)
    assert [claim.guard is None for claim in expect.claims] == [True, False, True]
    assert schedule.items[-1] == syntax.Place(None, None, schedule.items[-1].span)
    for item in schedule.items:
        assert item.span.text.split()[0].split("(")[0] in (
            "schedule require stages place replica fn rank cost memory expect minimize subject depend"
        )


def test_spans_are_the_text_that_wrote_the_node() -> None:
    body = word("F@(k + 1)[i]  (F B) * (m - 1)")
    assert isinstance(body, syntax.Sequence)
    first, second = body.items
    assert first.span.text == "F@(k + 1)[i]"
    assert isinstance(first, syntax.Op)
    assert first.chunk is not None
    assert first.chunk.span.text == "k + 1"
    assert isinstance(second, syntax.Repeat)
    assert (second.span.text, second.body.span.text, second.count.span.text) == ("(F B) * (m - 1)", "(F B)", "m - 1")
    call = expression("1 + min(a, b)")
    assert isinstance(call, syntax.Binary)
    assert isinstance(call.right, syntax.Call)
    assert (call.right.span.text, call.right.name_span.text) == ("min(a, b)", "min")


@pytest.mark.parametrize(
    ("text", "doc"),
    [
        ("# a\n# b\nschedule x(p, m)", "a\nb"),
        ("# a\n\n# b\nschedule x(p, m)", "b"),
        ("# a\n\nschedule x(p, m)", ""),
        ("stages p # a\nschedule x(p, m)", ""),
        ("schedule x(p, m) # a", ""),
        ("#a\r\nschedule x(p, m)\r\n", "a"),
    ],
)
def test_documentation_is_the_block_right_above(text: str, doc: str) -> None:
    assert tree(text).header.doc == doc


def test_comments_know_whether_a_line_is_theirs() -> None:
    schedule = tree("# one\nschedule x(p, m) # two\n  # three\nstages p#four")
    assert [(c.text, c.own_line) for c in schedule.comments] == [
        ("# one", True),
        ("# two", False),
        ("# three", True),
        ("#four", False),
    ]


def test_one_run_finds_an_error_in_every_item() -> None:
    text = """schedule x(p, m
stages p +
place s => s
rank r { F * p - 1 }
fn f(x) = 2x
expect { bubble = 1 }
cost { F == 1 }
rank r { F ) }
"""
    assert places(text) == [
        ("PD103", 1, 11),
        ("PD103", 2, 10),
        ("PD102", 3, 9),
        ("PD103", 4, 16),
        ("PD103", 5, 11),
        ("PD103", 6, 17),
        ("PD103", 7, 10),
        ("PD103", 8, 12),
    ]


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("rank r { (F I) * r(F I W) }", "arguments of `r(...)` are expressions", "`r (...)`, with a space"),
        ("rank r { F * p - 1 }", "found `-`", "`* (p - 1)`"),
        ("rank r { f * p }", "found `f`", "did you mean `F`?"),
        ("rank r { if x { F } elif y { B } }", "found `elif`", "write `else if`"),
        ("rank r { if x F else B }", "found `if`", "if condition { ... } else { ... }"),
        ("rank r { for k in range(m) { F } }", "expected `..`", "for k in 0 .. n { ... }"),
        ("rank 0 { F }", "found `0`", "rank r where r == 0"),
        ("rank r: { F }", "unexpected `:`", "braces"),
        ("rank r { F", "`{` is never closed", "add `}`"),
        ("rank r { F } }", "closes nothing", "remove it"),
        ("rank r { (F } }", "`(` is never closed", "add `)`"),
        ("rank r where r = 0 { F }", "found `=`", "`==` compares"),
        ("fn f(x) == x", "found `==`", "`=` defines"),
        ("stages p ** 2", "unexpected `**`", "multiply"),
        ("stages p ^ 2", "unexpected `^`", "multiply"),
        ("require p > 1 && m > 1", "unexpected `&&`", "`and`"),
        ("require True", "`True`", "`true`"),
        ("require p > 1, 'why'", "unexpected `'`", "double quotes"),
        ('require p > 1, "why', "does not end", "own line"),
        ("stages 2p", "`2p`", "`2 * p`"),
        ("fn F(x) = 1", "`F` is a word of the language", "another name"),
        ("place stages -> 1", "`stages` is a word of the language", "another name"),
        ("expct { }", "found `expct`", "did you mean `expect`?"),
        ("stages", "after `stages`, found the end", None),
        ("memory { cap = 4 }", "found `cap`", "write `cap(r) = ...`"),
        ("memory { cap(r) = 4  weights = 2 }", "found `weights`", "write `weights(s) = ...`"),
    ],
)
def test_messages_say_what_to_write(text: str, message: str, help_: str | None) -> None:
    found = findings(f"{HEAD}{text}\n")
    assert message in found[0].message
    assert found[0].help is None if help_ is None else help_ in (found[0].help or "")
    assert not any(terminal in d.message for d in found for terminal in ("LPAR", "RBRACE", "__ANON", "KIND", "$END"))


def test_a_missing_brace_does_not_hide_the_next_item() -> None:
    found = findings(HEAD + "rank r {\n    F\n\nstages p +\n")
    assert [d.code for d in found] == ["PD103", "PD103"]
    assert found[0].labels[0].span.line == 5


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "PD115"), ("# nothing\n", "PD115"), ("stages p", "PD115"), (HEAD + HEAD, "PD106"), ("hello", "PD103")],
)
def test_one_header(text: str, code: str) -> None:
    assert [d.code for d in findings(text)] == [code]


# ------------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"ab\nc\xffd", (2, 2)),
        (b"\xef\xbb\xbfab\n\xff", (2, 1)),
        (b"ab\0", (1, 3)),
        ("é\n".encode() + b"\xe9", (2, 1)),
        (b"\xef\xbb", (1, 1)),
    ],
)
def test_unreadable_bytes_have_a_place(data: bytes, place: tuple[int, int]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_source("x", data)
    (found,) = caught.value.diagnostics
    assert found.code == "PD101"
    assert found.span is not None
    assert (found.span.line, found.span.column) == place


def test_byte_order_mark_and_carriage_returns_are_accepted() -> None:
    source = read_source("x", b"\xef\xbb\xbfschedule x(p, m)\r\nstages p\r\n")
    assert bare(parse(source).items) == bare(tree("schedule x(p, m)\nstages p\n").items)


def test_too_large() -> None:
    with pytest.raises(DiagnosticError, match="PD101"):
        read_source("x", b"#" * 101, Limits(source_bytes=100))


# ------------------------------------------------------------------------ limits


def _deep(count: int) -> dict[str, str]:
    return {
        "sum": "stages " + "1 + " * count + "1",
        "unary": "stages " + "-" * count + "1",
        "not": "require " + "not " * count + "true",
        "ternary": "stages " + "1 if true else " * count + "1",
        "brackets": "stages " + "(" * count + "1" + ")" * count,
        "calls": "stages " + "f(" * count + "1" + ")" * count,
        "groups": "rank r { " + "(" * count + "F" + ")" * count + " }",
        "repeats": "rank r { F" + " * 2" * count + " }",
        "overlaps": "rank r { F" + " & B" * count + " }",
        "loops": "rank r { " + "for k in 0 .. 1 { " * count + "F" + " }" * count + " }",
        "else ifs": "rank r { if true { F }" + " else if true { F }" * count + " }",
    }


@pytest.mark.parametrize("name", _deep(1))
def test_depth_is_limited(name: str) -> None:
    assert tree(HEAD + _deep(95)[name])
    for count in (101, 5_000):
        started = time.perf_counter()
        assert {d.code for d in findings(HEAD + _deep(count)[name])} == {"PD104"}
        assert time.perf_counter() - started < 10


def test_numbers_are_limited() -> None:
    assert expression(str(2**256 - 1))
    for text in (str(2**256), "9" * 5000, "0." + "1" * 5000, "0." + "0" * 300 + "1"):
        assert [d.code for d in findings(f"{HEAD}stages {text}")] == ["PD104"]


def test_tokens_are_limited() -> None:
    assert [d.code for d in findings(HEAD + "F " * 200, Limits(tokens=100))] == ["PD104"]


@pytest.mark.parametrize(
    "text",
    [
        "é" * 100_000,
        "é " * 40_000,
        "(" * 60_000,
        "(" * 40_000 + "]" * 40_000,
        "([" * 45_000 + ")]" * 45_000,
        "stages " * 60_000,
        "\n" * 1_000_000,
        "# x\n" * 60_000,
        '"' * 60_000,
        "if " * 60_000,
        "9" * 1_000_000,
        "x" * 1_000_000,
        HEAD + "rank r { " + "F " * 60_000 + "}",
    ],
    ids=lambda text: f"{text[:6]!r}",
)
def test_large_texts_take_bounded_time(text: str) -> None:
    started = time.perf_counter()
    try:
        parse(Source("x", text))
    except DiagnosticError as error:
        assert len(error.diagnostics) <= 50  # noqa: PT017
    assert time.perf_counter() - started < 30
