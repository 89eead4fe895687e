"""The word of one rank for all m: the tree of its block to segments, each repeated a number of times linear in q.

A loop over a range that grows is taken `per` rounds at a time, where `//` and `%` of its variable have that period, and
its range is split where a comparison in its body changes; so the segments are derived from the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pipedsl.diagnostics import Limits, Span
from pipedsl.evaluate import Budget, Closure, Environment, Evaluator, Value, as_truth, fail, show
from pipedsl.parametric.values import Growing, NeedsRounds, Scope, Split, Unanalysable, of_line
from pipedsl.program import COMPUTE, Kind
from pipedsl.shape import words
from pipedsl.syntax import Expr, For, If, Let, Op, RankBlock, Repeat, Sequence, Word
from verify.forall import Linear, NeedsPeriod, Operation, Segment
from verify.forall.linear import ONE, floor_divided

MOST_OPERATIONS = 50_000
"""Operations of one rank's word, each round counted once."""

MOST_ROUNDS = 2_000
"""Rounds of a loop that may be taken as one."""

MOST_SINGLE_ROUNDS = 200_000
"""Rounds that are taken one by one for one rank's word."""

MOST_PIECES = 500
"""Pieces that the range of one loop may fall into."""


class Unknown(Exception):
    """Something that is not analysed for all m: where it is, and why."""

    def __init__(self, span: Span, why: str) -> None:
        self.span = span
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class _Row:
    """One operation of a body. `index`: multiple of the round and line, None where counted."""

    number: int
    chunk: int
    index: tuple[int, Linear] | None


@dataclass(frozen=True, slots=True)
class _Piece:
    count: Linear
    rows: list[_Row]


class _Output:
    """The pieces so far. Inside a loop that grows, only single operations may be added."""

    def __init__(self, inner: bool) -> None:
        self.inner = inner
        self.pieces: list[_Piece] = []
        self.size = 0

    def add(self, row: _Row) -> None:
        if not self.pieces or self.pieces[-1].count != ONE:
            self.pieces.append(_Piece(ONE, []))
        self.pieces[-1].rows.append(row)
        self.size += 1

    def repeat(self, count: Linear, rows: list[_Row]) -> None:
        if rows:
            self.pieces.append(_Piece(count, rows))
            self.size += len(rows)

    def rows(self) -> list[_Row]:
        return [row for piece in self.pieces for row in piece.rows]


class ParametricBlock:
    """A `rank` block under one residue class of m. `ops` are its operations in the order of the text."""

    def __init__(self, block: RankBlock, evaluator: Evaluator, scope: Scope, limits: Limits, budget: Budget) -> None:
        self.block = block
        self.ops = [word for word in words(block.body) if isinstance(word, Op)]
        self._number = {id(op): number for number, op in enumerate(self.ops)}
        self._evaluator = evaluator
        self._scope = scope
        self._limits = limits
        self._budget = budget
        self._closures: dict[int, Closure] = {}
        self._slots: dict[int, int] = {}
        self._chunks = 0
        self._rounds = 0

    def covers(self, rank: int) -> bool:
        """Whether the block is the program of `rank`. Raises Unknown and DiagnosticError."""
        where = self.block.where
        if where is None:
            return True
        return as_truth(self._value(where, {self.block.variable: 0}, [rank]), where.span, "what stands after `where`")

    def run(self, rank: int, stages: list[int]) -> tuple[Segment, ...]:
        """The word of `rank`, which holds `stages`; span numbers are those of `ops`.

        Raises Unknown, NeedsPeriod, TooLate, and DiagnosticError for what is wrong from some m on.
        """
        self._chunks, self._rounds = len(stages), 0
        output = _Output(inner=False)
        environment: Environment = [None] * (1 + sum(isinstance(word, For | Let) for word in words(self.block.body)))
        environment[0] = rank
        self._word(self.block.body, {self.block.variable: 0}, environment, output)
        return self._numbered(output.pieces, stages)

    # ----------------------------------------------------------------- words

    def _word(self, word: Word, scope: Mapping[str, int], env: Environment, out: _Output) -> Mapping[str, int]:
        """Add the operations of a word; gives the scope of what follows."""
        match word:
            case Op():
                self._op(word, scope, env, out)
            case Sequence():
                inner = scope
                for item in word.items:
                    inner = self._word(item, inner, env, out)
            case Repeat():
                self._repeat(word, scope, env, out)
            case For():
                self._for(word, scope, env, out)
            case If():
                condition = self._value(word.condition, scope, env)
                if as_truth(condition, word.condition.span, "the condition of `if`"):
                    self._word(word.then, scope, env, out)
                elif word.orelse is not None:
                    self._word(word.orelse, scope, env, out)
            case Let():
                scope = self._variable(word, word.name, scope)
                env[scope[word.name]] = self._value(word.value, scope, env)
            case _:
                raise AssertionError("refused by check")
        return scope

    def _variable(self, word: For | Let, name: str, scope: Mapping[str, int]) -> Mapping[str, int]:
        slot = self._slots.setdefault(id(word), len(self._slots) + 1)
        return {**scope, name: slot}

    def _repeat(self, word: Repeat, scope: Mapping[str, int], env: Environment, out: _Output) -> None:
        count = self._line(word.count, scope, env, "a count")
        if not self._never_negative(count):
            help = "`max(0, ...)` if none is meant"
            fail("PD114", "this count is negative for large m", word.count.span, help=help)
        if not count.grows:
            for _ in range(int(count.constant)):
                size = out.size
                self._budget.spend(1, word.span)
                self._word(word.body, scope, env, out)
                self._check_size(out, word.span)
                if out.size == size:
                    return
            return
        self._refuse_inner(out, word.count)
        body = _Output(inner=True)
        self._word(word.body, scope, env, body)
        out.repeat(count, body.rows())
        self._check_size(out, word.span)

    def _for(self, word: For, scope: Mapping[str, int], env: Environment, out: _Output) -> None:
        start, stop = self._value(word.start, scope, env), self._value(word.stop, scope, env)
        with self._located(word.start):
            first, of_first = _plane(start, word.start.span)
        with self._located(word.stop):
            end, of_end = _plane(stop, word.stop.span)
        rounds = end - first
        if of_first != of_end or (out.inner and rounds.grows):
            raise Unknown(word.stop.span, "it counts the rounds of a loop inside a loop that grows with m")
        if not self._never_negative(rounds):
            fail("PD114", "this range is negative for large m", word.start.span.to(word.stop.span))
        inner = self._variable(word, word.variable, scope)
        loop = _Loop(self, word, inner, env, out)
        if rounds.grows:
            loop.pieces(first, rounds)
        else:
            loop.singles(first, 0, int(rounds.constant), of_first)

    def _op(self, word: Op, scope: Mapping[str, int], env: Environment, out: _Output) -> None:
        if word.kind == "REDUCE":
            raise Unknown(word.span, "`REDUCE` is not analysed for all m")
        if Kind[word.kind] not in COMPUTE:
            raise Unknown(word.span, "communication is written by hand, which is not analysed for all m")
        chunk: Value = 0
        if word.chunk is not None:
            chunk = self._value(word.chunk, scope, env)
            if isinstance(chunk, Growing):
                raise Unknown(word.chunk.span, "the chunk depends on m or on the round of a loop")
        if type(chunk) is not int or not 0 <= chunk < self._chunks or (word.chunk is None and self._chunks != 1):
            fail("PD204", f"`{word.kind}` does not name a chunk of its rank for large m", word.span)
        index = None
        if word.index is not None:
            value = self._value(word.index, scope, env)
            with self._located(word.index):
                line, per_round = _plane(value, word.index.span)
                index = (per_round, line)
        out.add(_Row(self._number[id(word)], chunk, index))

    # ---------------------------------------------------------------- values

    def _value(self, expr: Expr, scope: Mapping[str, int], env: Environment) -> Value:
        with self._located(expr):
            closure = self._closures.get(id(expr))
            if closure is None:
                closure = self._closures[id(expr)] = self._evaluator.compile(expr, scope)
            return closure(env)

    @contextmanager
    def _located(self, expr: Expr) -> Iterator[None]:
        try:
            yield
        except Unanalysable as error:
            raise Unknown(expr.span, str(error)) from None
        except NeedsPeriod as need:
            need.where = need.where or expr
            raise

    def _line(self, expr: Expr, scope: Mapping[str, int], env: Environment, what: str) -> Linear:
        value = self._value(expr, scope, env)
        with self._located(expr):
            line, per_round = _plane(value, expr.span)
        if per_round:
            raise Unknown(expr.span, f"{what} depends on the round of a loop that grows with m")
        return line

    def _never_negative(self, line: Linear) -> bool:
        return self._scope.threshold.never_negative(line)

    def _refuse_inner(self, out: _Output, expr: Expr) -> None:
        if out.inner:
            raise Unknown(expr.span, "a count that grows with m inside a repetition that grows with m")

    def _check_size(self, out: _Output, span: Span) -> None:
        if out.size > MOST_OPERATIONS:
            raise Unknown(span, f"more than {MOST_OPERATIONS:,} operations apart from those that only repeat")

    def _take(self, rounds: int, span: Span) -> None:
        """Count rounds before they are taken: a range may be of any length, and its rounds empty."""
        self._budget.spend(rounds, span)
        self._rounds += rounds
        if self._rounds > MOST_SINGLE_ROUNDS:
            raise Unknown(span, f"more than {MOST_SINGLE_ROUNDS:,} rounds of loops that are taken one by one")

    # --------------------------------------------------------------- numbers

    def _numbered(self, pieces: list[_Piece], stages: list[int]) -> tuple[Segment, ...]:
        """Operations with microbatches: those that are counted take the next of their kind and chunk."""
        counts: dict[tuple[str, int], Linear] = {}
        forms: dict[tuple[str, int], bool] = {}
        segments = []
        for piece in pieces:
            per_round = Counter(self._key(row) for row in piece.rows)
            seen: Counter[tuple[str, int]] = Counter()
            body = []
            for row in piece.rows:
                op, key = self.ops[row.number], self._key(row)
                if forms.setdefault(key, row.index is None) is not (row.index is None):
                    fail("PD203", f"`{op.kind}` is both counted and indexed", op.span)
                if row.index is None:
                    stride = per_round[key]
                    first = counts.get(key, Linear(0, 0)).plus(seen[key])
                    seen[key] += 1
                else:
                    stride, first = row.index
                if piece.count == ONE:
                    stride = 0
                body.append(Operation(Kind[op.kind], stages[row.chunk], first, stride, row.number))
            for key, number in per_round.items():
                counts[key] = counts.get(key, Linear(0, 0)) + piece.count.times(number)
            segments.append(Segment(piece.count, tuple(body)))
        return tuple(segments)

    def _key(self, row: _Row) -> tuple[str, int]:
        return self.ops[row.number].kind, row.chunk


class _Loop:
    """One `for` at one place of a word."""

    def __init__(
        self, block: ParametricBlock, word: For, scope: Mapping[str, int], env: Environment, out: _Output
    ) -> None:
        self.block, self.word, self.scope, self.env, self.out = block, word, scope, env, out
        self.slot = scope[word.variable]
        self.values = block._scope
        self.count = 0

    def singles(self, first: Linear, offset: int, rounds: int, per_round: int = 0) -> None:
        """Rounds whose number is constant, one by one. `per_round`: of the loop around, what `first` grows by."""
        self.block._take(rounds, self.word.span)
        for i in range(rounds):
            self.round(of_line(self.values, first.plus(offset + i), per_round), self.out)

    def round(self, value: Value, out: _Output) -> None:
        self.env[self.slot] = value
        self.block._word(self.word.body, self.scope, self.env, out)
        self.block._check_size(out, self.word.span)

    def pieces(self, first: Linear, rounds: Linear) -> None:
        """A range that grows: `first`, and `rounds` values from there."""
        pending: list[tuple[Linear, Linear, int]] = [(first, rounds, 1)]
        while pending:
            first, rounds, per = pending.pop()
            self.count += 1
            if self.count > MOST_PIECES:
                raise Unknown(self.word.span, f"its range falls into more than {MOST_PIECES} pieces")
            if not rounds.grows:
                self.singles(first, 0, int(rounds.constant))
                continue
            try:
                self.piece(first, rounds, per)
            except NeedsRounds as need:
                if per * need.factor > MOST_ROUNDS:
                    raise Unknown(self.word.span, f"it repeats only after more than {MOST_ROUNDS:,} rounds") from None
                pending.append((first, rounds, per * need.factor))
            except Split as split:
                before = split.at.times(per)
                pending.append((first + before, rounds - before, per))
                pending.append((first, before, per))

    def piece(self, first: Linear, rounds: Linear, per: int) -> None:
        """`per` values at a time, and the few that are left over."""
        with self.block._located(self.word.stop):
            turns = floor_divided(rounds, per)
        self.block._never_negative(turns.plus(-1))
        body = _Output(inner=True)
        self.block._take(per, self.word.span)
        self.values.rounds = turns
        try:
            for i in range(per):
                self.round(of_line(self.values, first.plus(i), per), body)
        finally:
            self.values.rounds = None
        done = turns.times(per)
        self.out.repeat(turns, body.rows())
        self.singles(first + done, 0, int((rounds - done).constant))


def _plane(value: Value, span: Span) -> tuple[Linear, int]:
    """A value as line in q and multiple of the round; PD107 where it is no integer."""
    if isinstance(value, Growing):
        try:
            per_round, line = value.plane("it is no sum of multiples of m and a number")
        except ValueError:
            fail("PD107", "this must be an integer, and is not for large m", span)
        return line, per_round
    if type(value) is not int:
        fail("PD107", f"this must be an integer, not {show(value)}", span)
    return Linear(0, value), 0
