"""Values, kinds of values, and the limits of evaluation."""

from fractions import Fraction

import pytest

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.evaluate import Evaluator, Value
from pipedsl.syntax import Function, Require

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F B }\n"


def value(text: str, functions: str = "", limits: Limits | None = None, **constants: Value) -> Value:
    schedule = parse_text(f"{HEAD}{functions}\nrequire {text}")
    found = {item.name: item for item in schedule.items if isinstance(item, Function)}
    condition = next(item.condition for item in schedule.items if isinstance(item, Require))
    return Evaluator(found, constants, limits or Limits()).value(condition)


def code(text: str, functions: str = "", limits: Limits | None = None, **constants: Value) -> tuple[str, str]:
    """The code, and the text that it points at."""
    with pytest.raises(DiagnosticError) as error:
        value(text, functions, limits, **constants)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.span is not None
    return diagnostic.code, diagnostic.span.text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7 / 2", Fraction(7, 2)),
        ("6 / 2", 3),
        ("0.7 * 10", 7),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 / 2 // 1", 3),
        ("1 < 2 <= 2 < 3", True),
        ("1 < 2 > 2", False),
        ("true and not false or false", True),
        ("min(3)", 3),
        ("max(1, 5, 2)", 5),
        ("ceil(7 / 2) + floor(7 / 2) + abs(-1)", 8),
        ("80 GiB", 80 << 30),
        ("0.5 KiB", 512),
        ("1 if true else 1 // 0", 1),
        ("false and 1 // 0 > 1", False),
        ("true or 1 // 0 > 1", True),
    ],
)
def test_value(text: str, wanted: Value) -> None:
    found = value(text)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2 + 3 // (1 - 1)", ("PD109", "3 // (1 - 1)")),
        ("2 % 0", ("PD109", "2 % 0")),
        ("2 / 0", ("PD109", "2 / 0")),
        ("f(0)", ("PD109", "1 // x")),
        ("f(b)", ("PD107", "x")),
        ("-b", ("PD107", "b")),
        ("1 + b", ("PD107", "b")),
        ("1 < b", ("PD107", "b")),
        ("0 < 1 < b", ("PD107", "b")),
        ("max(1, b)", ("PD107", "b")),
        ("not one", ("PD107", "one")),
        ("b and one", ("PD107", "one")),
        ("1 if one else 2", ("PD107", "one")),
    ],
)
def test_mistakes_point_at_the_place(text: str, wanted: tuple[str, str]) -> None:
    assert code(text, "fn f(x) = 1 // x", b=True, one=1) == wanted


@pytest.mark.parametrize("op", ["*", "+", "-"])
@pytest.mark.parametrize("big", [1 << 15, -(1 << 15), Fraction(1 << 15, 3)])
def test_numbers_over_the_limit_are_refused(op: str, big: Value) -> None:
    assert code(f"big {op} other", limits=Limits(bits=16), big=big, other=big * (-3 if op == "-" else 3))[0] == "PD104"


def test_literals_and_denominators_over_the_limit_are_refused() -> None:
    assert code("65536", limits=Limits(bits=16))[0] == "PD104"
    assert code("1 TiB", limits=Limits(bits=16))[0] == "PD104"
    assert code("1 / 40000 / 40000", limits=Limits(bits=16))[0] == "PD104"


def test_calls_that_double_at_every_level_end_at_the_limit() -> None:
    functions = "fn f0(x) = x\n" + "\n".join(
        f"fn f{i}(x) = f{i - 1}(2 * x) + f{i - 1}(2 * x + 1)" for i in range(1, 60)
    )
    assert code("f59(1)", functions, Limits(steps=10_000))[0] == "PD104"


def test_arithmetic_works_on_objects_that_bring_their_own() -> None:
    class Symbol:
        def __init__(self, text: str) -> None:
            self.text = text

        def __radd__(self, other: object) -> "Symbol":
            return Symbol(f"({other} + {self.text})")

        def __rmul__(self, other: object) -> "Symbol":
            return Symbol(f"({other} * {self.text})")

    assert value("2 + 3 * F", F=Symbol("F")).text == "(2 + (3 * F))"
