"""Expressions against Python's own evaluation over Fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipedsl.api import parse_text
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.evaluate import Evaluator
from pipedsl.syntax import Expr, Function, Require

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F B }\n"
CONSTANTS = {"p": 3, "m": 7}
VARIABLES = {"k": 5, "j": -2}

atoms = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(["0.7", "2.5", "p", "m", "k", "j"]),
)


def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    condition = st.builds("{} {} {}".format, inner, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner)
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        st.builds("-{}".format, inner),
        st.builds("({} if {} else {})".format, inner, condition, inner),
        st.builds("({} if {} and not {} else {})".format, inner, condition, condition, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "f"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "ceil", "floor", "g"]), inner),
    )


numbers = st.recursive(atoms, extend, max_leaves=12)


def tree(text: str) -> tuple[Expr, dict[str, Function]]:
    schedule = parse_text(HEAD + "fn f(x, y) = x - 2 * y\nfn g(x) = f(x, p)\nrequire " + text)
    functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
    return next(item.condition for item in schedule.items if isinstance(item, Require)), functions


def python(text: str) -> object:
    """`text` under Python, every number a Fraction."""
    import re

    exact = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)", r"Fraction('\1')", text)
    names: dict[str, object] = {name: Fraction(value) for name, value in {**CONSTANTS, **VARIABLES}.items()}
    names |= {
        "Fraction": Fraction,
        "ceil": lambda x: Fraction(math.ceil(x)),
        "floor": lambda x: Fraction(math.floor(x)),
    }
    names |= {"f": lambda x, y: x - 2 * y, "g": lambda x: x - 2 * Fraction(3)}
    return eval(exact, names)


def ours(text: str, constants: dict[str, int], variables: dict[str, int]) -> object:
    expr, functions = tree(text)
    evaluator = Evaluator(functions, constants, Limits(bits=4096))
    slots = {name: slot for slot, name in enumerate(variables)}
    return evaluator.compile(expr, slots)(list(variables.values()))


@given(numbers)
def test_numbers_are_pythons(text: str) -> None:
    try:
        wanted = python(text)
    except ZeroDivisionError:
        for constants, variables in (CONSTANTS, VARIABLES), ({**CONSTANTS, **VARIABLES}, {}):
            with pytest.raises(DiagnosticError) as error:
                ours(text, constants, variables)
            assert error.value.diagnostics[0].code == "PD109"
        return
    for constants, variables in (CONSTANTS, VARIABLES), ({**CONSTANTS, **VARIABLES}, {}):
        value = ours(text, constants, variables)
        assert value == wanted
        assert type(value) is (int if Fraction(value).denominator == 1 else Fraction)  # type: ignore[call-overload]
