"""From a stream of tokens to the tokens of each item: what no grammar rule can say.

Retypes the tokens that only their neighbours tell apart, checks the brackets, and splits the text at the
item keywords, so that every item is parsed on its own and an error in one does not hide those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Source, Span
from pipedsl.syntax import Comment

if TYPE_CHECKING:
    from lark import Token

ITEM_KEYWORDS = {
    word.upper(): word
    for word in "schedule require stages place replica fn rank cost memory expect minimize subject depend".split()
}
OTHER_KEYWORDS = {word.upper(): word for word in "for in if else let where when on to and or not true false".split()}

_CLOSER = {"LPAR": "RPAR", "LBRACE": "RBRACE", "LSQB": "RSQB"}
_BRACKET = {"LPAR": "(", "LBRACE": "{", "LSQB": "[", "RPAR": ")", "RBRACE": "}", "RSQB": "]"}

# An item does not end with these.
_UNFINISHED = {*ITEM_KEYWORDS, *"ARROW EQUAL COMMA PLUS MINUS STAR SLASH PERCENT COMPARE AND OR NOT TERNARY".split()}

_INSTEAD = {
    ":": "blocks stand in braces: `{ ... }`",
    "−": "write `-`, the minus sign of the keyboard",
    "–": "write `-`, the minus sign of the keyboard",
    "×": "write `*`",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "→": "write `->`",
    "“": 'write `"`, the straight quotation mark',
    "”": 'write `"`, the straight quotation mark',
    "$": "parameters and variables have no sign before their names",
    ";": "nothing stands between two statements, or a line break",
    "'": 'texts stand in double quotes: "..."',
    '"': 'a text ends on its own line: "..."',
    "!": "write `not`",
    "|": "any interleaving of two programs is `A || B`",
    "^": "there is no power; multiply",
    "**": "there is no power; multiply",
    "&&": "write `and`",
    "=>": "the arrow is `->`, the comparison `>=`",
    "<>": "write `!=`",
    ":=": "write `=`",
    "+=": "names do not change; `let` a new one",
    "-=": "names do not change; `let` a new one",
    ".": "a range is `a .. b`, a number `0.5`",
    "\\": "lines need no continuation mark",
    "\ufeff": "a byte order mark may only be the first character of the file",
}


@dataclass
class ItemTokens:
    """The tokens of one item. `broken`: already reported, so parsing it would only repeat that."""

    tokens: list[Token] = field(default_factory=list)
    broken: bool = False


def clean(
    source: Source, raw: Iterable[Token], limits: Limits, diagnostics: list[Diagnostic]
) -> tuple[list[Token], tuple[Comment, ...]]:
    """Drop space, take out comments, report what no schedule may hold, and retype calls.

    A token that was reported has the type `BAD` afterwards. Raises DiagnosticError (PD104) over `limits.tokens`.
    """
    tokens: list[Token] = []
    comments: list[Comment] = []
    count = 0
    for token in raw:
        if token.type == "SPACE":
            continue
        count += 1
        if count > limits.tokens:
            message = f"the file has more than {limits.tokens} tokens"
            raise DiagnosticError([*diagnostics, Diagnostic("PD104", message, _span(source, token))])
        if token.type == "COMMENT":
            comments.append(_comment(source, token, tokens[-1] if tokens else None))
            continue
        previous = tokens[-1] if tokens else None
        touching = previous is not None and previous.end_pos == token.start_pos
        if token.type in ("UNKNOWN", "UNEXPECTED"):
            if not (touching and previous is not None and previous.type == "BAD"):
                diagnostics.append(_unexpected(source, token))
            token.type = "BAD"
        elif previous is not None and touching:
            if token.type == "LPAR" and previous.type in ("NAME", "MEMORY"):
                previous.type = "CALLEE"
            elif previous.type == "NUMBER" and token.type not in ("UNIT", "RANGE") and _is_word(token):
                diagnostics.append(_glued(source, previous, token))
                token.type = "BAD"
        if token.type == "NAME" and token in ("True", "False"):
            help_ = f"write `{token.lower()}`"
            diagnostics.append(Diagnostic("PD103", f"`{token}` is not known here", _span(source, token), help=help_))
            token.type = "BAD"
        tokens.append(token)
    return tokens, tuple(comments)


def split(
    source: Source, tokens: Iterable[Token], limits: Limits, diagnostics: list[Diagnostic]
) -> Iterator[ItemTokens]:
    """The items of the text, brackets checked and every `if` of an expression retyped to `TERNARY`."""
    item = ItemTokens()
    open_: list[Token] = []
    # For every open bracket, the `if`s that neither a `{` nor an `else` has claimed yet.
    ifs: list[list[Token]] = [[]]

    def report(diagnostic: Diagnostic) -> None:
        if not item.broken:
            diagnostics.append(diagnostic)
        item.broken = True

    previous: Token | None = None
    for token in tokens:
        if token.type in ITEM_KEYWORDS and _starts_item(token, previous, item, bool(open_)):
            if open_:
                report(_unclosed(source, open_[-1], token, "the next item starts here"))
            if item.tokens:
                yield item
            item, open_, ifs = ItemTokens(), [], [[]]
        item.tokens.append(token)
        previous = token
        if token.type == "BAD":
            item.broken = True
        elif token.type == "IF":
            ifs[-1].append(token)
        elif token.type == "ELSE" and ifs[-1]:
            ifs[-1].pop().type = "TERNARY"
        elif token.type in _CLOSER:
            if token.type == "LBRACE" and ifs[-1]:
                ifs[-1].pop()
            open_.append(token)
            ifs.append([])
            if len(open_) > limits.nesting:
                message = f"brackets nest deeper than {limits.nesting}"
                report(Diagnostic("PD104", message, _span(source, token)))
        elif token.type in _BRACKET:
            if not any(_CLOSER[opener.type] == token.type for opener in open_[-limits.nesting :]):
                report(_unopened(source, token))
                continue
            while _CLOSER[open_[-1].type] != token.type:
                report(_unclosed(source, open_.pop(), token, "something else is closed here"))
                ifs.pop()
            open_.pop()
            ifs.pop()
    if open_:
        report(_unclosed(source, open_[-1], None, ""))
    if item.tokens:
        yield item


def _starts_item(token: Token, previous: Token | None, item: ItemTokens, nested: bool) -> bool:
    if nested and token.type == "PLACE" and item.tokens[0].type == "REPLICA":
        return False
    # Inside brackets an item keyword at the start of a line means that a bracket was not closed. Elsewhere on a
    # line, inside brackets or where an item cannot end, it is a name badly chosen.
    unfinished = nested or (previous is not None and previous.type in _UNFINISHED)
    return not unfinished or _first_on_line(token, previous)


def _first_on_line(token: Token, previous: Token | None) -> bool:
    return previous is None or (previous.end_line or 0) < (token.line or 0)


def _comment(source: Source, token: Token, previous: Token | None) -> Comment:
    text = token.rstrip()
    start = token.start_pos or 0
    return Comment(text, _first_on_line(token, previous), Span(source, start, start + len(text)))


def _is_word(token: Token) -> bool:
    return token[0].isalnum() or token[0] == "_"


def _span(source: Source, token: Token) -> Span:
    return Span(source, token.start_pos or 0, token.end_pos or 0)


def _unexpected(source: Source, token: Token) -> Diagnostic:
    shown = f"`{token}`" if token.isprintable() else f"U+{ord(token[0]):04X}"
    message = f"unexpected {shown}"
    if token == '"':
        message = "the text that starts here does not end"
    elif token.isalpha():
        message += ": names are made of the letters A to Z, digits and `_`"
    return Diagnostic("PD102", message, _span(source, token), help=_INSTEAD.get(str(token)))


def _glued(source: Source, number: Token, word: Token) -> Diagnostic:
    span = Span(source, number.start_pos or 0, word.end_pos or 0)
    message = f"`{number}{word}` is neither a number nor a name"
    help_ = f"a product is `{number} * {word}`; a name starts with a letter"
    return Diagnostic("PD103", message, span, help=help_)


def _unclosed(source: Source, opener: Token, where: Token | None, seen: str) -> Diagnostic:
    labels = (Label(_span(source, where), seen),) if where is not None else ()
    bracket, closer = _BRACKET[opener.type], _BRACKET[_CLOSER[opener.type]]
    return Diagnostic(
        "PD103", f"this `{bracket}` is never closed", _span(source, opener), labels=labels, help=f"add `{closer}`"
    )


def _unopened(source: Source, token: Token) -> Diagnostic:
    return Diagnostic("PD103", f"this `{token}` closes nothing", _span(source, token), help="remove it")
