"""Syntax trees back to text, each on one line, with no more parentheses than their meaning needs."""

from __future__ import annotations

from fractions import Fraction

from pipedsl import syntax

# How tightly each form binds, as in the grammar; an operand that binds less stands in parentheses.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(9)
_BINARY = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}


def expression(expr: syntax.Expr) -> str:
    """`min(p - r, m)`."""
    return _expression(expr, _CONDITIONAL)


def simple(expr: syntax.Expr) -> str:
    """A count or a chunk: in parentheses if it has an operator."""
    return _expression(expr, _ATOM)


def string(text: str) -> str:
    """A text in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def number(value: int | Fraction) -> str:
    """`0.7` for 7/10. The denominator has no prime factors but 2 and 5, as only decimals can be written."""
    fraction = Fraction(value)
    places = 0
    while (fraction * 10**places).denominator != 1:
        places += 1
    digits = str(int(fraction * 10**places)).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def _expression(expr: syntax.Expr, least: int) -> str:
    text, binds = _parts(expr)
    return text if binds >= least else f"({text})"


def _parts(expr: syntax.Expr) -> tuple[str, int]:
    """The text of an expression and how tightly it binds."""
    match expr:
        case syntax.Number(value):
            return number(value), _ATOM
        case syntax.Size(value, unit):
            return f"{number(value)} {unit}", _ATOM
        case syntax.Boolean(truth):
            return str(truth).lower(), _UNARY  # not a count: `F * true` does not parse
        case syntax.Name(name):
            return name, _ATOM
        case syntax.Unary("not", operand):
            return f"not {_expression(operand, _NOT)}", _NOT
        case syntax.Unary(op, operand):
            return f"{op}{_expression(operand, _UNARY)}", _UNARY
        case syntax.Binary(op, left, right):
            binds = _BINARY[op]
            return f"{_expression(left, binds)} {op} {_expression(right, binds + 1)}", binds
        case syntax.Compare(ops, operands):
            texts = [_expression(operand, _COMPARE + 1) for operand in operands]
            return texts[0] + "".join(f" {op} {text}" for op, text in zip(ops, texts[1:], strict=True)), _COMPARE
        case syntax.Conditional(condition, then, orelse):
            text = f"{_expression(then, _OR)} if {_expression(condition, _OR)} else {expression(orelse)}"
            return text, _CONDITIONAL
        case syntax.Call(function, arguments):
            return f"{function}({', '.join(expression(argument) for argument in arguments)})", _ATOM


def needs_group(word: syntax.Word) -> bool:
    """Whether `word` stands in parentheses as the body of a repetition, or beside `&`."""
    return not isinstance(word, syntax.Op | syntax.Repeat)


def word(tree: syntax.Word) -> str:
    """`(F I) * r`: a word as the whole of a block."""
    match tree:
        case syntax.Op(kind, chunk, index):
            at = "" if chunk is None else f"@{simple(chunk)}"
            return kind + at + ("" if index is None else f"[{expression(index)}]")
        case syntax.Sequence(items):
            return " ".join(term(item) for item in items)
        case syntax.Repeat(body, count):
            return f"{_group_if(needs_group(body), body)} * {simple(count)}"
        case syntax.Overlap(left, right):
            grouped = needs_group(left) and not isinstance(left, syntax.Overlap)
            return f"{_group_if(grouped, left)} & {_group_if(needs_group(right), right)}"
        case syntax.Shuffle(operands):
            return " || ".join(_group_if(isinstance(operand, syntax.Shuffle), operand) for operand in operands)
        case syntax.For(_, _, _, body):
            return f"{for_head(tree)} {block(body)}"
        case syntax.If(condition, then, orelse):
            text = f"if {expression(condition)} {block(then)}"
            if orelse is None:
                return text
            return f"{text} else {word(orelse) if isinstance(orelse, syntax.If) else block(orelse)}"
        case syntax.Let(name, value):
            return f"let {name} = {expression(value)}"


def term(tree: syntax.Word) -> str:
    """A word among others in a sequence."""
    return _group_if(isinstance(tree, syntax.Sequence | syntax.Shuffle), tree)


def for_head(loop: syntax.For) -> str:
    return f"for {loop.variable} in {expression(loop.start)} .. {expression(loop.stop)}"


def block(body: syntax.Word) -> str:
    inside = word(body)
    return f"{{ {inside} }}" if inside else "{}"


def _group_if(needed: bool, tree: syntax.Word) -> str:
    return f"({word(tree)})" if needed else word(tree)
