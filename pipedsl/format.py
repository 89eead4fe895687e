"""Canonical text (`pipedsl fmt`): the author's line breaks and comments, everything else one way.

A block written on one line stays on one line if it fits, otherwise its contents stand between lines of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from pipedsl import syntax, unparse
from pipedsl.diagnostics import Span

WIDTH = 100
_INDENT = "    "
_SPACE = " \t\r\n\f"


def format_schedule(schedule: syntax.Schedule) -> str:
    """The canonical text. Parsing it gives an equal tree but for spans, and formatting that gives it again."""
    layout = _Layout(schedule)
    layout.items(schedule.items)
    return "\n".join(layout.lines) + "\n"


def format_expression(expr: syntax.Expr) -> str:
    """An expression on one line."""
    return unparse.expression(expr)


@dataclass(frozen=True)
class _Entry:
    """A line's worth in a block: a claim, a cost, a size."""

    text: str
    span: Span


class _Layout:
    """The lines so far, and how many of the comments they hold."""

    def __init__(self, schedule: syntax.Schedule) -> None:
        self.text = schedule.source.text
        self.comments = schedule.comments
        self.comment_starts = [comment.span.start for comment in schedule.comments]
        self.placed = 0
        self.lines: list[str] = []
        self.prefix = ""  # of the next line that is no comment
        self.opened = True  # the last line opens a block, or there is none
        self.commented = False  # the last line is or ends with a comment

    # ------------------------------------------------------------- the source's layout

    def _has_break(self, start: int, end: int) -> bool:
        return "\n" in self.text[start:end]

    def _has_comment(self, start: int, end: int) -> bool:
        i = bisect_left(self.comment_starts, start)
        return i < len(self.comments) and self.comment_starts[i] < end

    def _blank_before(self, position: int) -> bool:
        i = position
        # A `||` starts the line of its operand, so what stands before it counts.
        while i > 0 and (self.text[i - 1] in _SPACE or self.text[i - 1] == "|"):
            i -= 1
        return self.text.count("\n", i, position) > 1

    def _find(self, char: str, start: int) -> int:
        """Where `char` stands next outside a comment. It must be there."""
        position = self.text.index(char, start)
        i = bisect_left(self.comment_starts, position) - 1
        while i >= 0 and position < self.comments[i].span.end:
            position = self.text.index(char, self.comments[i].span.end)
            i = bisect_left(self.comment_starts, position) - 1
        return position

    def _closing(self, body: syntax.Word) -> int:
        """Where the brace of the block stands that holds `body`."""
        if isinstance(body, syntax.Sequence) and not body.items:  # its span is the block's own
            return body.span.end - 1
        return self._find("}", body.span.end)

    def _group_end(self, body: syntax.Word) -> int:
        """Where the parenthesis stands that closes the group of `body`."""
        if isinstance(body, syntax.Sequence | syntax.Shuffle):
            return body.span.end - 1
        return self._find(")", body.span.end)

    # ------------------------------------------------------------- lines and comments

    def _line(self, text: str, depth: int) -> None:
        self.lines.append(_INDENT * depth + self.prefix + text)
        self.prefix = ""
        self.opened = text.endswith(("{", "("))
        self.commented = False

    def _comment(self, depth: int) -> None:
        """The next comment on a line of its own."""
        self.lines.append(_INDENT * depth + self.comments[self.placed].text)
        self.placed += 1
        self.opened = False
        self.commented = True

    def _blank(self, position: int) -> None:
        """A blank line if the author has one before `position`, but none at the start of a block or the text."""
        if self._blank_before(position) and not self.opened:
            self.lines.append("")

    def _comments_until(self, position: int, depth: int) -> None:
        """Each comment before `position` that no line holds yet, on a line of its own."""
        while self.placed < len(self.comments) and self.comment_starts[self.placed] < position:
            self._blank(self.comment_starts[self.placed])
            self._comment(depth)

    def _start(self, span: Span, end: int, depth: int) -> None:
        """Before the line of what stands at `span`: the comments above it, and those within it up to `end`."""
        self._comments_until(span.start, depth)
        self._blank(span.start)
        while self.placed < len(self.comments) and self.comment_starts[self.placed] < end:
            self._comment(depth)

    def _trailing(self, end: int) -> None:
        """The comment behind what ends at `end`, on the last line."""
        if self.placed == len(self.comments) or self.commented:
            return
        comment = self.comments[self.placed]
        # Nothing else may stand between, but the `||` that goes to the next line.
        if not comment.own_line and not self.text[end : comment.span.start].strip(" \t\r\f|"):
            self.lines[-1] += f"  {comment.text}"
            self.placed += 1
            self.commented = True

    # ------------------------------------------------------------------------- items

    def items(self, items: tuple[syntax.Item, ...]) -> None:
        for item in items:
            self._item(item)
        self._comments_until(len(self.text) + 1, 0)

    def _item(self, item: syntax.Item) -> None:
        span = item.span
        match item:
            case syntax.RankBlock(variable, where, body):
                head = f"rank {variable}" + ("" if where is None else f" where {unparse.expression(where)}")
                opening = self._find("{", span.start if where is None else where.span.end)
                closing = span.end - 1
                line = f"{head} {unparse.block(body)}"
                if self._fits(line, 0) and not self._has_break(opening, closing):
                    self._whole(line, span)
                    return
                self._start(span, opening, 0)
                self._line(f"{head} {{", 0)
                self._block(body, opening, closing, 0)
                self._line("}", 0)
                self._trailing(span.end)
            case syntax.CostBlock(variable, costs):
                entries = [_Entry(f"{cost.name} = {unparse.expression(cost.value)}", cost.span) for cost in costs]
                self._entries("cost" if variable is None else f"cost {variable}", entries, span, alone=False)
            case syntax.MemoryBlock(sizes):
                entries = [
                    _Entry(f"{size.name}({size.variable}) = {unparse.expression(size.value)}", size.span)
                    for size in sizes
                ]
                self._entries("memory", entries, span, alone=False)
            case syntax.ExpectBlock(claims):
                entries = [_Entry(_claim(claim, i == 0), claim.span) for i, claim in enumerate(claims)]
                self._entries("expect", entries, span, alone=True)
            case syntax.Replica(name, place):
                self._entries(f"replica {name}", [_Entry(_line_of(place), place.span)], span, alone=True)
            case syntax.Header():
                # A comment inside goes below: above it would become documentation.
                self._start(span, span.start, 0)
                self._line(_line_of(item), 0)
                self._comments_until(span.end, 0)
                self._trailing(span.end)
            case _:
                self._whole(_line_of(item), span)

    def _whole(self, line: str, span: Span) -> None:
        self._start(span, span.end, 0)
        self._line(line, 0)
        self._trailing(span.end)

    def _entries(self, head: str, entries: list[_Entry], span: Span, *, alone: bool) -> None:
        """A block of entries; broken, each on its own line if `alone`, else on the author's lines."""
        opening, closing = self._find("{", span.start), span.end - 1
        inside = "  ".join(entry.text for entry in entries)
        line = f"{head} {{ {inside} }}" if entries else f"{head} {{}}"
        if self._fits(line, 0) and not self._has_break(opening, closing):
            self._whole(line, span)
            return
        self._start(span, opening, 0)
        self._line(f"{head} {{", 0)
        self._trailing(opening + 1)
        end = opening
        row = ""
        for entry in entries:
            longer = f"{row}  {entry.text}"
            if row and not alone and not self._has_break(end, entry.span.start) and self._fits(longer, 1):
                if self._has_comment(entry.span.start, entry.span.end):
                    self._comments_until(entry.span.end, 1)
                row = longer
            else:
                self._flush(row, end, 1)
                self._start(entry.span, entry.span.end, 1)
                row = entry.text
            end = entry.span.end
        self._flush(row, end, 1)
        self._comments_until(closing, 1)
        self._line("}", 0)
        self._trailing(span.end)

    # ------------------------------------------------------------------------- words

    def _fits(self, text: str, depth: int) -> bool:
        return len(_INDENT) * depth + len(self.prefix) + len(text) <= WIDTH

    def _flush(self, row: str, end: int, depth: int) -> None:
        if row:
            self._line(row, depth)
            self._trailing(end)

    def _block(self, body: syntax.Word, opening: int, closing: int, depth: int) -> None:
        """The contents of a broken block, from the comment behind its opening to the last one before its end."""
        self._trailing(opening + 1)
        self._contents(body, depth + 1)
        self._comments_until(closing, depth + 1)

    def _contents(self, body: syntax.Word, depth: int) -> None:
        if isinstance(body, syntax.Shuffle):
            self._shuffle(body, depth)
        else:
            self._terms(body.items if isinstance(body, syntax.Sequence) else (body,), depth)

    def _shuffle(self, body: syntax.Shuffle, depth: int) -> None:
        """On one line if the author has it so and it fits; else a line an operand, all but the first with `||`."""
        line = unparse.word(body)
        if self._fits(line, depth) and not self._parts_are_broken(body.operands):
            self._start(body.operands[0].span, body.span.end, depth)
            self._flush(line, body.operands[-1].span.end, depth)
            return
        for i, operand in enumerate(body.operands):
            self.prefix = "|| " if i else self.prefix
            self._terms(operand.items if isinstance(operand, syntax.Sequence) else (operand,), depth)

    def _terms(self, terms: tuple[syntax.Word, ...], depth: int) -> None:
        """Terms in sequence on the author's lines, wrapped where a line is too long."""
        row, end = "", 0
        for term in terms:
            line = unparse.term(term)
            whole = isinstance(term, syntax.Op | syntax.Let | syntax.Overlap) or (
                self._fits(line, depth) and not self._is_broken(term)
            )
            if not whole:
                self._flush(row, end, depth)
                self._broken(term, depth)
                row = ""
            elif (
                row
                and not self._has_break(end, term.span.start)
                and not self._has_comment(term.span.start, term.span.end)
                and self._fits(f"{row} {line}", depth)
            ):
                row = f"{row} {line}"
            else:
                self._flush(row, end, depth)
                self._start(term.span, term.span.end, depth)
                row = line
            end = term.span.end
        self._flush(row, end, depth)

    def _is_broken(self, word: syntax.Word) -> bool:
        """Whether the author has a line break (so perhaps a comment) inside the brackets or between the parts."""
        match word:
            case syntax.Sequence(parts) | syntax.Shuffle(parts):
                if not parts:
                    return self._has_break(word.span.start, word.span.end)
                return self._has_break(word.span.start, parts[0].span.start) or self._parts_are_broken(parts)
            case syntax.Repeat(body):
                if not unparse.needs_group(body):
                    return self._is_broken(body)
                return self._is_broken(body) or self._has_comment(word.span.start, self._group_end(body))
            case syntax.For(_, _, stop, body):
                opening = self._find("{", stop.span.end)
                return self._has_break(opening, word.span.end) or self._has_comment(word.span.start, opening)
            case syntax.If(condition, then, orelse):
                if self._has_break(self._find("{", condition.span.end), self._closing(then)):
                    return True
                if orelse is None:
                    return False
                if isinstance(orelse, syntax.If):
                    return self._is_broken(orelse)
                start = self._find("{", self._closing(then))
                return self._has_break(start, self._closing(orelse))
            case _:
                return False

    def _parts_are_broken(self, parts: tuple[syntax.Word, ...]) -> bool:
        """Whether the author has a line break between or inside the parts."""
        between = any(self._has_break(a.span.end, b.span.start) for a, b in pairwise(parts))
        return between or any(self._is_broken(part) for part in parts)

    def _broken(self, word: syntax.Word, depth: int) -> None:
        """A word with brackets over several lines."""
        match word:
            case syntax.For(_, _, stop, body):
                opening = self._find("{", stop.span.end)
                self._start(word.span, opening, depth)
                self._line(f"{unparse.for_head(word)} {{", depth)
                self._block(body, opening, word.span.end - 1, depth)
                self._line("}", depth)
            case syntax.If():
                self._if(word, depth)
            case _:
                self._group(word, depth)
        self._trailing(word.span.end)

    def _if(self, word: syntax.If, depth: int) -> None:
        opening = self._find("{", word.condition.span.end)
        self._start(word.span, opening, depth)
        head = f"if {unparse.expression(word.condition)} {{"
        while True:
            self._line(head, depth)
            closing = self._closing(word.then)
            self._block(word.then, opening, closing, depth)
            if word.orelse is None:
                break
            if not isinstance(word.orelse, syntax.If):
                opening = self._find("{", closing)
                self._comments_until(opening, depth + 1)
                self._line("} else {", depth)
                self._block(word.orelse, opening, self._closing(word.orelse), depth)
                break
            word = word.orelse
            opening = self._find("{", word.condition.span.end)
            self._comments_until(opening, depth + 1)
            head = f"}} else if {unparse.expression(word.condition)} {{"
        self._line("}", depth)

    def _group(self, word: syntax.Word, depth: int) -> None:
        """`(`, the contents, `) * n`."""
        span, counts = word.span, ""
        while isinstance(word, syntax.Repeat):
            counts = f" * {unparse.simple(word.count)}{counts}"
            word = word.body
        if not unparse.needs_group(word):
            self._start(span, span.end, depth)
            self._line(unparse.word(word) + counts, depth)
            return
        self._start(span, span.start, depth)
        self._line("(", depth)
        self._block(word, span.start, self._group_end(word), depth)
        self._line(f"){counts}", depth)
        self._comments_until(span.end, depth)


def _claim(claim: syntax.Claim, first: bool) -> str:
    condition = unparse.expression(claim.condition)
    if condition.startswith("-") and not first:
        condition = f"({condition})"  # else the sign would join it to the claim before
    return condition if claim.guard is None else f"{condition} when {unparse.expression(claim.guard)}"


def _reference(ref: syntax.DependRef) -> str:
    return f"{ref.kind}[{unparse.expression(ref.index)}]@{unparse.simple(ref.stage)}"


def _line_of(item: syntax.Item) -> str:
    """The text of an item without a block."""
    match item:
        case syntax.Header(name, parameters):
            texts = [p.name + ("" if p.default is None else f" = {unparse.expression(p.default)}") for p in parameters]
            return f"schedule {name}({', '.join(texts)})"
        case syntax.Require(condition, why):
            return f"require {unparse.expression(condition)}" + ("" if why is None else f", {unparse.string(why)}")
        case syntax.Stages(count):
            return f"stages {unparse.expression(count)}"
        case syntax.Place(variable, rank):
            if rank is None:
                return "place ?" + (f" in {', '.join(item.choices)}" if item.choices else "")
            return f"place {variable} -> {unparse.expression(rank)}"
        case syntax.Function(name, names, body):
            return f"fn {name}({', '.join(names)}) = {unparse.expression(body)}"
        case syntax.Minimize(objective):
            return f"minimize {objective}"
        case syntax.SubjectTo(condition):
            return f"subject to {unparse.expression(condition)}"
        case syntax.Depend(target, on, guard):
            when = "" if guard is None else f" when {unparse.expression(guard)}"
            return f"depend {_reference(target)} on {_reference(on)}{when}"
        case _:
            raise AssertionError(item)
