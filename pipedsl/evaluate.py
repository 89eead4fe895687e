"""Expressions, compiled to closures over exact numbers.

A value is an int, a Fraction (never whole) or a bool; a bool is no number. `/` divides exactly, `//` and `%` are
Python's. Names known before (parameters) are constants and folded; the others are slots of a list, the environment.
Arithmetic also works on any object with Python's operators, which is how claims are evaluated to forms in the costs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.syntax import (
    Binary,
    Boolean,
    Call,
    Compare,
    Conditional,
    Expr,
    Function,
    Name,
    Number,
    Size,
    Unary,
)

Value = Any
"""int | Fraction | bool, or an object that brings its own arithmetic."""

Environment = list[Value]
Closure = Callable[[Environment], Value]

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

BUILTINS: Mapping[str, int | None] = {"min": None, "max": None, "abs": 1, "ceil": 1, "floor": 1}
"""Built-in functions and their number of arguments; None is one or more."""

NODES_PER_STEP = 16
"""Nodes of expressions that one step pays for, so that a step costs about the same everywhere."""

MEMO = 1 << 16
"""Results that are kept of each `fn`: it gives the same for the same arguments, and a loop asks often."""


class Budget:
    """The steps (loop rounds and function calls) that are left."""

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.steps
        self.left = limits.steps

    def spend(self, steps: int, span: Span) -> None:
        """Take `steps`; PD104 at `span` when they are not left."""
        self.left -= steps
        if self.left < 0:
            fail(
                "PD104",
                f"this takes more than {self.limit:,} loop rounds and function calls",
                span,
                help="make the counts smaller, or raise the limit on steps",
            )


def fail(code: str, message: str, span: Span, help: str | None = None) -> NoReturn:
    """Raise one diagnostic."""
    raise DiagnosticError([Diagnostic(code, message, span, help=help)])


def show(value: Value) -> str:
    """A value as the language writes it: `3`, `7/10`, `true`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_number(value: Value, span: Span, what: str) -> Value:
    """`value`, which must be a number; else PD107."""
    if isinstance(value, bool):
        fail("PD107", f"{what} must be a number, not {show(value)}", span)
    return value


def as_int(value: Value, span: Span, what: str) -> int:
    """`value`, which must be an integer; else PD107."""
    if type(value) is not int:
        fail(
            "PD107",
            f"{what} must be an integer, not {show(value)}",
            span,
            help=None if isinstance(value, bool) else "round it with `//`, `floor` or `ceil`",
        )
    return value


def as_truth(value: Value, span: Span, what: str) -> bool:
    """`value`, which must be true or false; else PD107."""
    if not isinstance(value, bool):
        fail("PD107", f"{what} must be true or false, not {show(value)}", span, help="compare it with something")
    return value


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions right below one."""
    match expr:
        case Unary():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case Compare():
            return expr.operands
        case Conditional():
            return (expr.condition, expr.then, expr.orelse)
        case Call():
            return expr.arguments
        case _:
            return ()


def nodes(expr: Expr) -> list[Expr]:
    """An expression and everything below it, without recursion."""
    found = [expr]
    for node in found:
        found.extend(children(node))
    return found


@dataclass(frozen=True)
class Intrinsic:
    """A function that whoever evaluates brings along (`peak`): one argument, and the span of the call."""

    run: Callable[[Value, Span], Value]


class _Code(NamedTuple):
    """A compiled expression; `constant` when it needs no environment."""

    run: Closure
    constant: bool


class Evaluator:
    """Compiles the expressions of one schedule under known constants.

    Expects a checked tree (`pipedsl.check`): names resolve, arities fit, no recursion, depth bounded. `functions` are
    the file's; `constants` the names whose value is known. Every closure raises DiagnosticError: PD104 for numbers too
    large or steps used up, PD107 for wrong types, PD109 for division by zero.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        constants: Mapping[str, Value],
        limits: Limits,
        budget: Budget | None = None,
        intrinsics: Mapping[str, Intrinsic] | None = None,
    ) -> None:
        self._functions = functions
        self._constants = constants
        self._bound = 1 << limits.bits
        self._bits = limits.bits
        self._budget = budget if budget is not None else Budget(limits)
        self._intrinsics = intrinsics or {}
        self._bodies: dict[str, _Code] = {}
        self._memos: dict[str, dict[tuple[Value, ...], Value]] = {}

    def compile(self, expr: Expr, slots: Mapping[str, int] | None = None) -> Closure:
        """A closure from an environment to the value of `expr`; `slots` says where variables are."""
        return self._compile(expr, slots or {}).run

    def value(self, expr: Expr) -> Value:
        """The value of an expression without variables."""
        return self.compile(expr)([])

    # ------------------------------------------------------------- compiling

    def _compile(self, expr: Expr, slots: Mapping[str, int]) -> _Code:
        match expr:
            case Number():
                return self._literal(expr.value, expr.span)
            case Size():
                return self._literal(expr.value * UNITS[expr.unit], expr.span)
            case Boolean():
                return _constant(expr.value)
            case Name():
                return self._name(expr, slots)
            case Unary():
                code = self._compile(expr.operand, slots)
                make = self._negate if expr.op == "-" else self._not
                return self._fold(make(expr, code.run), code)
            case Binary(op="and" | "or"):
                return self._logic(expr, slots)
            case Binary():
                left, right = self._compile(expr.left, slots), self._compile(expr.right, slots)
                return self._fold(self._arithmetic(expr, left, right), left, right)
            case Compare():
                codes = [self._compile(operand, slots) for operand in expr.operands]
                return self._fold(self._compare(expr, codes), *codes)
            case Conditional():
                return self._conditional(expr, slots)
            case Call():
                return self._call(expr, slots)

    def _fold(self, run: Closure, *parts: _Code) -> _Code:
        """The value at once where all parts are constant; an error stays where it is, it may never be reached."""
        if not all(part.constant for part in parts):
            return _Code(run, False)
        try:
            return _constant(run([]))
        except DiagnosticError:
            return _Code(run, False)

    def _literal(self, value: Value, span: Span) -> _Code:
        return _constant(self._tidy(value, span))

    def _name(self, expr: Name, slots: Mapping[str, int]) -> _Code:
        slot = slots.get(expr.id)
        if slot is not None:
            return _Code(operator.itemgetter(slot), False)
        return _constant(self._constants[expr.id])

    def _negate(self, expr: Unary, operand: Closure) -> Closure:
        def negate(env: Environment) -> Value:
            return -as_number(operand(env), expr.operand.span, "what `-` negates")

        return negate

    def _not(self, expr: Unary, operand: Closure) -> Closure:
        def negate(env: Environment) -> Value:
            return not as_truth(operand(env), expr.operand.span, "what `not` negates")

        return negate

    def _logic(self, expr: Binary, slots: Mapping[str, int]) -> _Code:
        left, right = self._compile(expr.left, slots), self._compile(expr.right, slots)
        first, second, decided = left.run, right.run, expr.op == "or"
        what = f"each side of `{expr.op}`"

        def logic(env: Environment) -> Value:
            if as_truth(first(env), expr.left.span, what) is decided:
                return decided
            return as_truth(second(env), expr.right.span, what)

        return self._fold(logic, left, right)

    def _conditional(self, expr: Conditional, slots: Mapping[str, int]) -> _Code:
        condition = self._compile(expr.condition, slots)
        then, orelse = self._compile(expr.then, slots), self._compile(expr.orelse, slots)
        test, yes, no, span = condition.run, then.run, orelse.run, expr.condition.span

        def choose(env: Environment) -> Value:
            chosen = test(env)
            if chosen is True:
                return yes(env)
            if chosen is False:
                return no(env)
            return as_truth(chosen, span, "the condition")

        if condition.constant and isinstance(condition.run([]), bool):
            return then if condition.run([]) else orelse
        return self._fold(choose, condition, then, orelse)

    # ------------------------------------------------------------ arithmetic

    def _arithmetic(self, expr: Binary, left: _Code, right: _Code) -> Closure:
        """The operator on two values. Two ints are the fast path of every loop."""
        first, second, bound = left.run, right.run, self._bound
        slow = self._slow(expr)
        if expr.op == "/":
            return lambda env: slow(first(env), second(env))
        apply = _OPERATORS[expr.op]
        total = expr.op not in ("//", "%")
        by = second([]) if right.constant else None
        if type(by) is int and (by or total):
            known = by

            def with_constant(env: Environment) -> Value:
                x = first(env)
                if type(x) is int:
                    result = apply(x, known)
                    if -bound < result < bound:
                        return result
                return slow(x, known)

            return with_constant

        def arithmetic(env: Environment) -> Value:
            x = first(env)
            y = second(env)
            if type(x) is int and type(y) is int and (y or total):
                result = apply(x, y)
                if -bound < result < bound:
                    return result
            return slow(x, y)

        return arithmetic

    def _slow(self, expr: Binary) -> Callable[[Value, Value], Value]:
        """The operator on any two values, with every check."""
        apply = _OPERATORS[expr.op]
        what = f"each side of `{expr.op}`"

        def slow(x: Value, y: Value) -> Value:
            as_number(x, expr.left.span, what)
            as_number(y, expr.right.span, what)
            if expr.op == "/" and type(x) is int and type(y) is int:
                x = Fraction(x)
            try:
                result = apply(x, y)
            except ZeroDivisionError:
                fail("PD109", f"division by zero: {show(x)} {expr.op} {show(y)}", expr.span)
            return self._tidy(result, expr.span)

        return slow

    def _tidy(self, value: Value, span: Span) -> Value:
        """A whole Fraction as an int; PD104 when the number is too large."""
        if isinstance(value, Fraction):
            if value.denominator >= self._bound:
                self._too_large(span)
            if value.denominator == 1:
                value = value.numerator
            elif not -self._bound < value.numerator < self._bound:
                self._too_large(span)
        if isinstance(value, int) and not -self._bound < value < self._bound:
            self._too_large(span)
        return value

    def _too_large(self, span: Span) -> NoReturn:
        fail("PD104", f"this number needs more than {self._bits} bits", span, help="use smaller numbers")

    def _compare(self, expr: Compare, codes: list[_Code]) -> Closure:
        if len(codes) == 2:
            return self._compare_two(expr, codes[0].run, codes[1].run)
        first, rest = codes[0].run, [code.run for code in codes[1:]]

        def chain(env: Environment) -> Value:
            x = as_number(first(env), expr.operands[0].span, "what is compared")
            for name, run, operand in zip(expr.ops, rest, expr.operands[1:], strict=True):
                y = as_number(run(env), operand.span, "what is compared")
                if not _COMPARISONS[name](x, y):
                    return False
                x = y
            return True

        return chain

    def _compare_two(self, expr: Compare, first: Closure, second: Closure) -> Closure:
        apply = _COMPARISONS[expr.ops[0]]

        def compare(env: Environment) -> Value:
            x = first(env)
            y = second(env)
            if type(x) is bool or type(y) is bool:
                as_number(x, expr.operands[0].span, "what is compared")
                as_number(y, expr.operands[1].span, "what is compared")
            return apply(x, y)

        return compare

    # ----------------------------------------------------------------- calls

    def _call(self, expr: Call, slots: Mapping[str, int]) -> _Code:
        codes = [self._compile(argument, slots) for argument in expr.arguments]
        name = expr.function
        if name in self._functions:
            return _Code(self._user_call(expr, [code.run for code in codes]), False)
        if name in self._intrinsics:
            return _Code(self._intrinsic_call(expr, codes[0].run, self._intrinsics[name]), False)
        return self._fold(self._builtin_call(expr, [code.run for code in codes]), *codes)

    def _user_call(self, expr: Call, arguments: list[Closure]) -> Closure:
        body, budget, span = self._body(expr.function).run, self._budget, expr.name_span
        cost = 1 + len(nodes(self._functions[expr.function].body)) // NODES_PER_STEP

        memo = self._memos.setdefault(expr.function, {})

        def call(env: Environment) -> Value:
            values = [argument(env) for argument in arguments]
            key = (
                tuple(values) if {int}.issuperset(map(type, values)) else None
            )  # truth values and symbols are not kept
            known = None if key is None else memo.get(key)
            budget.left -= cost if known is None else 1
            if budget.left < 0:
                budget.spend(0, span)
            if known is not None:
                return known
            result = body(values)
            if key is not None and len(memo) < MEMO:
                memo[key] = result
            return result

        return call

    def _body(self, name: str) -> _Code:
        code = self._bodies.get(name)
        if code is None:
            function = self._functions[name]
            code = self._compile(function.body, {name: slot for slot, name in enumerate(function.parameters)})
            self._bodies[name] = code
        return code

    def _intrinsic_call(self, expr: Call, argument: Closure, intrinsic: Intrinsic) -> Closure:
        return lambda env: intrinsic.run(argument(env), expr.span)

    def _builtin_call(self, expr: Call, arguments: list[Closure]) -> Closure:
        apply = _BUILTINS[expr.function]
        what = f"the argument of `{expr.function}`"

        def call(env: Environment) -> Value:
            values = [argument(env) for argument in arguments]
            for value, argument in zip(values, expr.arguments, strict=True):
                if type(value) is bool:
                    as_number(value, argument.span, what)
            return values[0] if expr.function in ("min", "max") and len(values) == 1 else apply(*values)

        return call


def _constant(value: Value) -> _Code:
    return _Code(lambda env: value, True)


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
}
