"""Text to syntax tree: `read_source` for bytes, `parse` for the text. Several errors a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipedsl import syntax
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Source, Span
from pipedsl.grammar import lark_parser
from pipedsl.syntax_errors import not_an_item, syntax_error
from pipedsl.tokens import ITEM_KEYWORDS, ItemTokens, clean, split
from pipedsl.treebuilder import build

# More findings than anyone reads; keeps hostile text from producing megabytes of them.
_MOST_FINDINGS = 50


def read_source(name: str, data: bytes, limits: Limits = Limits()) -> Source:
    """The text of a file. Raises DiagnosticError (PD101): not UTF-8, a NUL byte, or over `limits.source_bytes`."""
    if len(data) > limits.source_bytes:
        raise DiagnosticError([Diagnostic("PD101", f"{name} has more than {limits.source_bytes} bytes, the limit")])
    content = data.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        text, message = content.decode(), ""
    except UnicodeDecodeError as error:
        text = content[: error.start].decode()
        message = f"this is not UTF-8 text: byte 0x{content[error.start]:02x} is not a character"
    if not message and "\0" in text:
        text, message = text[: text.index("\0")], "the file holds a NUL byte, so it is not a text"
    if message:
        # The rest of the line would only garble the excerpt.
        source = Source(name, text + "\N{REPLACEMENT CHARACTER}")
        raise DiagnosticError([Diagnostic("PD101", message, Span(source, len(text), len(text) + 1))])
    return Source(name, text)


def parse(source: Source, limits: Limits = Limits()) -> syntax.Schedule:
    """The tree of a `.sched` text. Raises DiagnosticError with everything found (PD101 to PD106, PD115)."""
    diagnostics: list[Diagnostic] = []
    tokens, comments = clean(source, lark_parser().lex(source.text, dont_ignore=True), limits, diagnostics)
    items: list[syntax.Item] = []
    for item_tokens in split(source, tokens, limits, diagnostics):
        item = _parse_item(source, item_tokens, limits, diagnostics)
        if item is not None:
            items.append(item)
    header = _header(source, items, comments, diagnostics)
    if diagnostics or header is None:
        diagnostics.sort(key=lambda d: d.span.start if d.span else 0)
        raise DiagnosticError(diagnostics[:_MOST_FINDINGS])
    items = [header if isinstance(item, syntax.Header) else item for item in items]
    return syntax.Schedule(source, header, tuple(items), comments, Span(source, 0, len(source.text)))


def _parse_item(source: Source, item: ItemTokens, limits: Limits, diagnostics: list[Diagnostic]) -> syntax.Item | None:
    """The item, or None after adding what is wrong with it to `diagnostics`."""
    from lark import UnexpectedToken

    if item.broken:
        return None
    tokens = item.tokens
    if tokens[0].type not in ITEM_KEYWORDS:
        diagnostics.append(not_an_item(source, tokens[0]))
        return None
    # lark's interactive parser is untyped.
    parser: Any = lark_parser().parse_interactive()
    fed = 0
    try:
        for token in tokens:
            parser.feed_token(token)
            fed += 1
        tree = parser.feed_eof(tokens[-1])
    except UnexpectedToken:
        diagnostics.append(syntax_error(source, tokens, fed, frozenset(parser.accepts())))
        return None
    try:
        return build(source, tree, limits)
    except DiagnosticError as error:
        diagnostics.extend(error.diagnostics)
        return None


def _header(
    source: Source, items: list[syntax.Item], comments: tuple[syntax.Comment, ...], diagnostics: list[Diagnostic]
) -> syntax.Header | None:
    """The one header, its documentation filled in."""
    headers = [item for item in items if isinstance(item, syntax.Header)]
    if not headers:
        # After another finding it may well be there and only not have been understood.
        if not diagnostics:
            message = "there is no `schedule name(p, m)`"
            help_ = "start the file with it; `p` is the number of ranks, `m` of microbatches"
            diagnostics.append(Diagnostic("PD115", message, Span(source, 0, 0), help=help_))
        return None
    for header in headers[1:]:
        label = Label(headers[0].span, "the first is here")
        message = "a file holds one schedule"
        diagnostics.append(Diagnostic("PD106", message, header.span, labels=(label,), help="use a file for each"))
    return replace(headers[0], doc=_documentation(headers[0], comments))


def _documentation(header: syntax.Header, comments: tuple[syntax.Comment, ...]) -> str:
    """The comment lines right above the header, without `#` and one space."""
    lines: list[str] = []
    above = header.span.line - 1
    for comment in reversed(comments):
        if comment.span.start > header.span.start:
            continue
        if not comment.own_line or comment.span.line != above:
            break
        lines.append(comment.text.removeprefix("#").removeprefix(" "))
        above -= 1
    return "\n".join(reversed(lines))
