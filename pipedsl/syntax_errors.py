"""Syntax errors in words: what was found, what may stand there, and what was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Diagnostic, Label, Source, Span
from pipedsl.tokens import ITEM_KEYWORDS, OTHER_KEYWORDS

if TYPE_CHECKING:
    from lark import Token

_KINDS = "F B I W SEND_F RECV_F SEND_B RECV_B OFFLOAD RELOAD RECOMPUTE REDUCE".split()
_KEYWORDS = {**ITEM_KEYWORDS, **OTHER_KEYWORDS}
_SYMBOL = {
    "LPAR": "(",
    "RPAR": ")",
    "LBRACE": "{",
    "RBRACE": "}",
    "LSQB": "[",
    "RSQB": "]",
    "COMMA": ",",
    "EQUAL": "=",
    "ARROW": "->",
    "RANGE": "..",
    "SHUFFLE": "||",
    "OVERLAP": "&",
    "AT": "@",
    "QMARK": "?",
    "STAR": "*",
}
_ATOM = frozenset("NUMBER NAME KIND CALLEE LPAR".split())
_EXPRESSION = _ATOM | frozenset("MINUS NOT TRUE FALSE".split())
_OPERATION = frozenset("KIND LPAR FOR IF LET".split())
_INFIX = frozenset("OR AND COMPARE PLUS MINUS STAR SLASH PERCENT TERNARY UNIT OVERLAP SHUFFLE AT LSQB".split())


def syntax_error(source: Source, tokens: Sequence[Token], at: int, expected: frozenset[str]) -> Diagnostic:
    """PD103 at `tokens[at]` (at the end of the item if `at == len(tokens)`), where only `expected` may stand.

    `expected` holds the names of the grammar's terminals.
    """
    previous = tokens[at - 1] if at else None
    if at == len(tokens):
        assert previous is not None
        span = Span(source, previous.start_pos or 0, previous.end_pos or 0)
        return Diagnostic(
            "PD103", f"expected {_in_words(expected)} after `{_shorten(previous)}`, found the end", span,
            help=_help_at_end(expected),
        )  # fmt: skip
    token = tokens[at]
    span = Span(source, token.start_pos or 0, token.end_pos or 0)
    call = _call_around(tokens, at)
    if call is not None:
        # `(F I) * r(F I W)`: the only way for an operation to stand in the arguments of a call.
        label = Label(Span(source, call.start_pos or 0, call.end_pos or 0), "read as a call")
        message = f"the arguments of `{call}(...)` are expressions, found `{_shorten(token)}`"
        help_ = f"for the count `{call}` and then a group write `{call} (...)`, with a space"
        return Diagnostic("PD103", message, span, labels=(label,), help=help_)
    message = f"expected {_in_words(expected)}, found `{_shorten(token)}`"
    if "NAME" in expected and "NUMBER" not in expected and (token.type in _KEYWORDS or token.type == "KIND"):
        message = f"`{token}` is a word of the language and cannot be a name"
        return Diagnostic("PD103", message, span, help="choose another name")
    return Diagnostic("PD103", message, span, help=_help(token, previous, tokens, at, expected))


def not_an_item(source: Source, token: Token) -> Diagnostic:
    """PD103 for a text that starts with no item keyword."""
    message = f"expected an item ({', '.join(ITEM_KEYWORDS.values())}), found `{_shorten(token)}`"
    span = Span(source, token.start_pos or 0, token.end_pos or 0)
    help_ = _help_function(token) or _did_you_mean(str(token), list(ITEM_KEYWORDS.values()))
    return Diagnostic("PD103", message, span, help=help_)


def _shorten(token: Token) -> str:
    return str(token) if len(token) <= 40 else f"{token[:37]}..."


def _in_words(expected: frozenset[str]) -> str:
    """`an operation or `}``, from the names of the terminals that may stand there."""
    rest = set(expected)
    words = []
    if rest >= _EXPRESSION - {"NOT"}:  # `not` binds less than arithmetic
        words.append("an expression")
        rest -= _EXPRESSION
    elif rest >= _OPERATION:
        words.append("an operation")
        rest -= _OPERATION
    elif rest >= _ATOM:
        words.append("a number, a name or an expression in parentheses")
        rest -= _ATOM
    elif rest >= {"KIND", "LPAR"}:
        words.append("an operation")
        rest -= _OPERATION
    # Operators may follow nearly everything: named only where nothing else is left.
    if words or rest - _INFIX:
        rest -= _INFIX
    elif rest:
        words.append("an operator")
        rest.clear()
    names = {"NAME": "a name", "CALLEE": "a name", "NUMBER": "a number", "KIND": "an operation", "STRING": "a text"}
    names["$END"] = "the next item"
    for terminal in sorted(rest, key=lambda t: (t not in names, t)):
        word = names.get(terminal) or f"`{_KEYWORDS.get(terminal) or _SYMBOL.get(terminal) or terminal.lower()}`"
        if word not in words:
            words.append(word)
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _call_around(tokens: Sequence[Token], at: int) -> Token | None:
    """The callee whose parentheses `tokens[at]` stands in, if that call is a repetition count and holds operations."""
    if tokens[at].type not in ("KIND", "STAR", "FOR", "LET"):
        return None
    depth = 0
    for i in range(at - 1, 1, -1):
        if tokens[i].type == "RPAR":
            depth += 1
        elif tokens[i].type == "LPAR":
            depth -= 1
            if depth < 0:
                is_count = tokens[i - 1].type == "CALLEE" and tokens[i - 2].type == "STAR"
                return tokens[i - 1] if is_count else None
    return None


def _help_at_end(expected: frozenset[str]) -> str | None:
    if expected == {"LBRACE"}:
        return "add `{ ... }`"
    return None


def _help(
    token: Token, previous: Token | None, tokens: Sequence[Token], at: int, expected: frozenset[str]
) -> str | None:
    if token == "=" and "COMPARE" in expected:
        return "`==` compares, `=` defines"
    if token == "==" and "EQUAL" in expected:
        return "`=` defines, `==` compares"
    if token == "{" and "RANGE" in expected:
        return "a loop is `for k in 0 .. n { ... }`"
    if "CALLEE" in expected and token.type == "NAME" and tokens[at + 1 : at + 2] == ["="]:  # in `memory`
        return f"write `{token}({'r' if token == 'cap' else 's'}) = ...`, also where it is the same for all"
    if token.type == "NUMBER" and previous is not None and previous.type == "RANK":
        return f"one rank's program is `rank r where r == {token} {{ ... }}`"
    in_program = not expected.isdisjoint(("KIND",)) and not expected >= _EXPRESSION
    if in_program and token.type in ("TERNARY", "ELSE", "IF"):
        return "a choice is `if condition { ... } else { ... }`"
    if in_program and token == "elif":
        return "write `else if`"
    if expected >= _ATOM and token.type in _KEYWORDS:
        return f"`{token}` is a word of the language; as a name choose another"
    if token.type in ("PLUS", "MINUS", "SLASH", "PERCENT") and (in_program or "KIND" in expected):
        return _help_count(tokens, at)
    if token.type in ("NAME", "CALLEE"):
        if in_program and previous is not None and previous.type == "NAME" and at > 1 and tokens[at - 2].type == "STAR":
            return f"a call has its arguments in parentheses: `{previous}({token})`"
        if in_program and token.upper() in _KINDS:
            return f"did you mean `{token.upper()}`?"
        candidates = [_KEYWORDS[t] for t in expected if t in _KEYWORDS]
        if "$END" in expected and (help_ := _help_function(token)):
            return help_
        if "$END" in expected:
            candidates += ITEM_KEYWORDS.values()
        if in_program:
            candidates += _KINDS
        return _did_you_mean(str(token), candidates)
    return None


def _help_function(token: Token) -> str | None:
    """For other languages' words where an item may stand."""
    return "a function is `fn name(x) = expression`" if token in ("def", "func", "function", "lambda") else None


def _help_count(tokens: Sequence[Token], at: int) -> str:
    """For `F * p - 1` and `F * -1`."""
    star = next((i for i in range(at - 1, max(at - 12, 0), -1) if tokens[i].type == "STAR"), None)
    if star is None or star == at - 1:
        return "arithmetic stands in parentheses here"
    count = " ".join(tokens[star + 1 : at + 2])
    return f"a count of several parts stands in parentheses: `* ({count})`"


def _did_you_mean(word: str, candidates: list[str]) -> str | None:
    import difflib  # only wanted when something is wrong

    close = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None
