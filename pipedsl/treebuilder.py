"""From lark's parse tree of one item to the nodes of `pipedsl.syntax`, bottom up and without recursion.

The depth of every node is known as it is built, so that a tree too deep for the passes that recurse never leaves here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pipedsl import syntax
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Source, Span

if TYPE_CHECKING:
    from lark import Token, Tree

# What a rule's children have become: nodes, tokens, tuples of either, or None where an optional part is missing.
_Parts = list[Any]


def build(source: Source, tree: Tree[Token], limits: Limits) -> syntax.Item:
    """The item that `tree` derives. Raises DiagnosticError (PD104) over `limits.nesting` or `limits.bits`."""
    order: list[Any] = []
    pending: list[Any] = [tree]
    while pending:
        subtree = pending.pop()
        order.append(subtree)
        pending.extend(child for child in subtree.children if not _is_leaf(child))

    built: dict[int, tuple[Any, int]] = {}
    for subtree in reversed(order):
        depth = 0
        parts: _Parts = []
        for child in subtree.children:
            node = child
            if not _is_leaf(child):
                node, child_depth = built.pop(id(child))
                depth = max(depth, child_depth)
            parts.append(node)
        meta = subtree.meta
        span = Span(source, 0, 0) if meta.empty else Span(source, meta.start_pos, meta.end_pos)
        node = _number(parts[0], limits, span) if subtree.data == "number" else _BUILD[subtree.data](parts, span)
        if not isinstance(node, tuple) and not any(node is part for part in parts):
            depth += 1
            if depth > limits.nesting:
                raise DiagnosticError(
                    [Diagnostic("PD104", f"this nests deeper than {limits.nesting}", span, help="split it up")]
                )
        built[id(subtree)] = (node, depth)
    item: syntax.Item = built[id(tree)][0]
    return item


def _is_leaf(child: Any) -> bool:
    """Whether it is a token (a `str`) or the None of a missing part."""
    return child is None or isinstance(child, str)


# ------------------------------------------------------------------------ expressions


def _value(token: str, limits: Limits, span: Span) -> int | Fraction:
    """The exact value of digits; the length is checked first, as reading a long number is slow."""
    # A decimal digit is more than 3 bits, and leading zeros count: nobody means them.
    if 3 * len(token) <= limits.bits * 2:
        whole, _, part = token.partition(".")
        value = Fraction(int(whole + part), 10 ** len(part)) if part else Fraction(int(whole))
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= limits.bits:
            return int(value) if value.denominator == 1 else value
    raise DiagnosticError([Diagnostic("PD104", f"this number has more than {limits.bits} bits", span)])


def _number(token: Token, limits: Limits, span: Span) -> syntax.Number:
    return syntax.Number(_value(token, limits, span), span)


def _binary(parts: _Parts, span: Span) -> syntax.Binary:
    left, op, right = parts
    return syntax.Binary(str(op), left, right, span)


def _compare(parts: _Parts, span: Span) -> syntax.Compare:
    return syntax.Compare(tuple(str(op) for op in parts[1::2]), tuple(parts[0::2]), span)


def _conditional(parts: _Parts, span: Span) -> syntax.Conditional:
    then, _, condition, orelse = parts
    return syntax.Conditional(condition, then, orelse, span)


def _call(parts: _Parts, span: Span) -> syntax.Call:
    callee, *arguments = parts
    present = tuple(argument for argument in arguments if argument is not None)
    return syntax.Call(str(callee), present, _token_span(callee, span), span)


def _token_span(token: Token, near: Span) -> Span:
    return Span(near.source, token.start_pos or 0, token.end_pos or 0)


# ------------------------------------------------------------------------------ words


def _sequence(parts: _Parts, span: Span) -> syntax.Word:
    # A `let` on its own stays inside a sequence, which bounds its scope.
    if len(parts) == 1 and not isinstance(parts[0], syntax.Let):
        word: syntax.Word = parts[0]
        return word
    return syntax.Sequence(tuple(parts), span)


def _shuffle(parts: _Parts, span: Span) -> syntax.Word:
    word: syntax.Word = parts[0] if len(parts) == 1 else syntax.Shuffle(tuple(parts), span)
    return word


def _group(parts: _Parts, span: Span) -> syntax.Word:
    # Parentheses are no node. The span of what only they hold together takes them in.
    word: syntax.Word = parts[0]
    return replace(word, span=span) if isinstance(word, syntax.Sequence | syntax.Shuffle) else word


def _block(parts: _Parts, span: Span) -> syntax.Word:
    word: syntax.Word = parts[0] if parts[0] is not None else syntax.Sequence((), span)
    return word


def _repeat(parts: _Parts, span: Span) -> syntax.Repeat:
    body, _, count = parts
    return syntax.Repeat(body, count, span)


# ------------------------------------------------------------------------------ items


def _header(parts: _Parts, span: Span) -> syntax.Header:
    # The comment above is not a token of the item; `parser` fills in `doc`.
    return syntax.Header(str(parts[0]), parts[1], "", span)


def _require(parts: _Parts, span: Span) -> syntax.Require:
    condition, why = parts
    text = None if why is None else re.sub(r'\\(["\\])', r"\1", why[1:-1])
    return syntax.Require(condition, text, span)


def _replica(parts: _Parts, span: Span) -> syntax.Replica:
    return syntax.Replica(str(parts[0]), parts[1], span)


def _optional_name(token: Token | None) -> str | None:
    return None if token is None else str(token)


_BUILD: dict[str, Callable[[_Parts, Span], Any]] = {
    "boolean": lambda p, span: syntax.Boolean(p[0] == "true", span),
    "name": lambda p, span: syntax.Name(str(p[0]), span),
    "size": lambda p, span: syntax.Size(p[0].value, str(p[1]), span),
    "unary": lambda p, span: syntax.Unary(str(p[0]), p[1], span),
    "binary": _binary,
    "compare": _compare,
    "conditional": _conditional,
    "call": _call,
    "op": lambda p, span: syntax.Op(str(p[0]), p[1], p[2], span),
    "overlap": lambda p, span: syntax.Overlap(p[0], p[1], span),
    "repeat": _repeat,
    "sequence": _sequence,
    "shuffle": _shuffle,
    "group": _group,
    "block": _block,
    "for": lambda p, span: syntax.For(str(p[0]), p[1], p[2], p[3], span),
    "if": lambda p, span: syntax.If(p[0], p[1], p[2], span),
    "let": lambda p, span: syntax.Let(str(p[0]), p[1], span),
    "header": _header,
    "parameters": lambda p, span: tuple(part for part in p if part is not None),
    "parameter": lambda p, span: syntax.Parameter(str(p[0]), p[1], span),
    "require": _require,
    "stages": lambda p, span: syntax.Stages(p[0], span),
    "place": lambda p, span: syntax.Place(str(p[0]), p[1], span),
    "place_open": lambda p, span: syntax.Place(None, None, span, tuple(str(part) for part in p if part)),
    "replica": _replica,
    "names": lambda p, span: tuple(str(part) for part in p if part is not None),
    "function": lambda p, span: syntax.Function(str(p[0]), p[1], p[2], span),
    "rank": lambda p, span: syntax.RankBlock(str(p[0]), p[1], p[2], span),
    "cost": lambda p, span: syntax.CostBlock(_optional_name(p[0]), tuple(p[1:]), span),
    "cost_entry": lambda p, span: syntax.CostEntry(str(p[0]), p[1], span),
    "memory": lambda p, span: syntax.MemoryBlock(tuple(p), span),
    "memory_entry": lambda p, span: syntax.MemoryEntry(str(p[0]), str(p[1]), p[2], span),
    "expect": lambda p, span: syntax.ExpectBlock(tuple(p), span),
    "claim": lambda p, span: syntax.Claim(p[0], p[1], span),
    "minimize": lambda p, span: syntax.Minimize(str(p[0]), span),
    "subject_to": lambda p, span: syntax.SubjectTo(p[0], span),
    "depend": lambda p, span: syntax.Depend(p[0], p[1], p[2], span),
    "depend_ref": lambda p, span: syntax.DependRef(str(p[0]), p[1], p[2], span),
}
