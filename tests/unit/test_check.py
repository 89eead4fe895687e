"""What is said about a schedule before any number is known."""

import pytest

from pipedsl.api import parse_text, verify_text
from pipedsl.check import check
from pipedsl.diagnostics import Diagnostic

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\n"
BODY = "rank r { F * m B * m }\n"


def found(text: str) -> list[Diagnostic]:
    return check(parse_text(text))


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in found(text)]


def test_a_schedule_without_mistakes() -> None:
    assert codes(HEAD + BODY + "expect { peak(r) <= m  bubble < 1 when m > 1  makespan >= F * m }") == []


MISTAKES = [
    ("PD105", HEAD + "rank r { F * q B * m }"),
    ("PD105", HEAD + "rank r { F * warmup(r) B * m }"),
    ("PD105", HEAD + BODY + "expect { peek(r) == m }"),
    ("PD105", HEAD + BODY + "memory { activations(s) = 1 }"),
    ("PD105", HEAD + BODY + "cost { G = 1 }"),
    ("PD105", HEAD + "rank r { for k in 0 .. m { F } B * k }"),
    ("PD105", HEAD + "rank r { if m > 1 { let x = 1 F * x } B * x }"),
    ("PD105", HEAD + BODY + "require r > 0"),
    ("PD105", "schedule x(p, m, v = w, w = 2)\nstages p\nplace s -> s\n" + BODY),
    ("PD106", "schedule x(p, m, p)\nstages p\nplace s -> s\n" + BODY),
    ("PD106", HEAD + BODY + "stages p"),
    ("PD106", HEAD + BODY + "place s -> s"),
    ("PD106", HEAD + BODY + "fn f(x) = x\nfn f(y) = y"),
    ("PD106", HEAD + BODY + "fn f(x, x) = x"),
    ("PD106", HEAD + BODY + "fn min(x) = x"),
    ("PD106", HEAD + BODY + "cost { F = 1 F = 2 }"),
    ("PD106", HEAD + BODY + "cost s { F = 1 } cost t { F = 2 }"),
    ("PD106", HEAD + BODY + "memory { cap(r) = 1 } memory { cap(r) = 2 }"),
    ("PD106", HEAD + "rank p { F * m B * m }"),
    ("PD106", HEAD + "rank r { let x = 1 let x = 2 F * m B * m }"),
    ("PD106", HEAD + "rank r { for r in 0 .. m { F B } }"),
    ("PD106", "schedule x(p, m, bubble = 1)\nstages p\nplace s -> s\n" + BODY),
    ("PD107", HEAD + BODY + "require p"),
    ("PD107", HEAD + BODY + "require p > 1 and m"),
    ("PD107", HEAD + "rank r { F * (m > 1) B * m }"),
    ("PD107", HEAD + "rank r { if m { F * m } B * m }"),
    ("PD107", HEAD + "rank r { F * F B * m }"),
    ("PD107", HEAD + "rank r { F * peak(r) B * m }"),
    ("PD107", HEAD + BODY + "expect { bubble < 1 when F > 1 }"),
    ("PD107", HEAD + BODY + "expect { m + 1 }"),
    ("PD107", HEAD + BODY + "cost { B = I + 1 }"),
    ("PD107", HEAD + BODY + "fn f(x) = 1\nrequire f(1)"),
    ("PD107", HEAD + BODY + "fn f(x) = x > 1\nrequire f(1) + 1 > 2"),
    ("PD108", HEAD + BODY + "fn f(x) = x\nrequire f(1, 2) > 1"),
    ("PD108", HEAD + BODY + "require min() > 1"),
    ("PD108", HEAD + BODY + "require abs(1, 2) > 1"),
    ("PD108", HEAD + BODY + "expect { peak == m }"),
    ("PD108", HEAD + BODY + "expect { makespan(1) == m }"),
    ("PD110", HEAD + BODY + "fn f(x) = f(x - 1)"),
    ("PD110", HEAD + BODY + "fn f(x) = g(x)\nfn g(x) = h(x)\nfn h(x) = f(x)"),
    ("PD601", HEAD + "rank r { F * m || B * m }"),
    ("PD113", HEAD + "rank r { (F & B) * m }"),
    ("PD205", HEAD + "rank r { F * m B * m REDUCE[0] }"),
    ("PD113", HEAD + "rank r { F * m B * m OFFLOAD }"),
    ("PD601", "schedule x(p, m)\nstages p\nplace ?\n" + BODY),
    ("PD115", "schedule x(p, m)\nstages p\nreplica up { place s -> s }\n" + BODY),
    ("PD601", HEAD + BODY + "minimize makespan"),
    ("PD601", HEAD + BODY + "subject to p > 1"),
    ("PD113", HEAD + BODY + "depend F[k]@s on F[k - 1]@s"),
    ("PD115", "schedule x(p, m)\nplace s -> s\n" + BODY),
    ("PD115", "schedule x(p, m)\nstages p\n" + BODY),
    ("PD115", HEAD),
    ("PD115", "schedule x(p)\nstages p\nplace s -> s\nrank r { F B }"),
]


@pytest.mark.parametrize(("code", "text"), MISTAKES)
def test_one_mistake_is_one_diagnostic(code: str, text: str) -> None:
    assert codes(text) == [code]


@pytest.mark.parametrize(("code", "text"), [each for each in MISTAKES if "rank r {" in each[1]])
def test_no_mistake_keeps_another_from_being_told(code: str, text: str) -> None:
    """Findings about numbers of operations are pointed at loops, whose numbers a text with mistakes may not have."""
    report = verify_text(text.replace("rank r {", "rank r { REDUCE[0] "), {"p": 2, "m": 2})
    assert {code, "PD205"} <= {each.code for each in report.diagnostics}


def test_several_mistakes_are_all_found_in_the_order_of_the_text() -> None:
    text = HEAD + "require p\nfn f(x) = y\nrank r { F * ff(1) B * q }\nexpect { bubble < 1 when send > 1 }"
    assert codes(text) == ["PD107", "PD105", "PD105", "PD105", "PD107"]


def test_a_missing_p_is_not_also_an_unknown_name() -> None:
    assert codes("schedule x(m)\nstages p\nplace s -> s\nrank r { F * (m + p) B * m }") == ["PD115"]


def test_an_unknown_name_is_reported_once() -> None:
    assert codes(HEAD + "rank r { F * q B * q }") == ["PD105"]


def test_help_names_what_was_probably_meant() -> None:
    text = HEAD + "fn warmup(r) = r\nrank r { F * warmpu(r) B * m }"
    assert [d.help for d in found(text)] == ["did you mean `warmup`?"]


@pytest.mark.parametrize("name", ["send", "F", "bubble", "peak(r)"])
def test_a_guard_is_not_what_is_claimed(name: str) -> None:
    (diagnostic,) = found(HEAD + BODY + f"expect {{ makespan >= 0 * send when {name} == 0 }}")
    assert diagnostic.code == "PD107"
    assert diagnostic.message.endswith("may stand in what a claim says, not in its `when`")
    assert diagnostic.help is None


def test_the_cycle_of_a_recursion_is_shown() -> None:
    (diagnostic,) = found(HEAD + BODY + "fn f(x) = g(x)\nfn g(x) = f(x)")
    assert "`f` -> `g` -> `f`" in diagnostic.message


def test_a_duplicate_points_at_the_first() -> None:
    (diagnostic,) = found(HEAD + BODY + "cost { F = 1 F = 2 }")
    assert diagnostic.span is not None
    assert diagnostic.span.text == "F = 2"
    assert [label.span.text for label in diagnostic.labels] == ["F = 1"]


def test_a_function_may_call_its_parameter_like_a_parameter_of_the_schedule() -> None:
    assert codes(HEAD + BODY + "fn f(p) = p + 1\nrequire f(1) > 1") == []


def test_long_chains_of_functions_are_refused_and_not_followed() -> None:
    chain = "fn f0(x) = x\n" + "".join(f"fn f{i}(x) = f{i - 1}(x)\n" for i in range(1, 3000))
    assert codes(HEAD + BODY + chain) == ["PD104"]


def test_many_functions_that_call_all_others_are_checked_quickly() -> None:
    calls = [f"fn f{i}(x) = {' + '.join(f'f{k}(x)' for k in range(max(0, i - 20), i)) or 'x'}\n" for i in range(40)]
    assert codes(HEAD + BODY + "".join(calls)) == []


def test_every_cycle_of_functions_is_found_once() -> None:
    functions = "fn a(x) = b(x) + c(x)\nfn b(x) = b(x)\nfn c(x) = d(x) + a(x)\nfn d(x) = x\nfn e(x) = a(x)"
    messages = [diagnostic.message for diagnostic in found(f"{HEAD}{BODY}{functions}")]
    assert messages == [
        "functions must not be recursive: `a` -> `c` -> `a`",
        "functions must not be recursive: `b` -> `b`",
    ]
