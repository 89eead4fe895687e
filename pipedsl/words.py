"""Words to arrays: the program of one rank, from the tree of its block.

A block is compiled once to closures that append one integer per operation (which `Op` of the text, chunk, index),
and run once per rank. `A * n` runs its body once and tiles the array, as a body cannot see the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipedsl.diagnostics import Limits, Span
from pipedsl.evaluate import NODES_PER_STEP, Budget, Closure, Environment, Evaluator, as_int, as_truth, fail
from pipedsl.replicas import Named
from pipedsl.shape import size, words
from pipedsl.syntax import Expr, For, If, Let, Name, Op, Overlap, RankBlock, Repeat, Sequence, Shuffle, Word

Codes = NDArray[np.int64]

SMALL = 256
"""Up to this many operations a repetition extends a list instead of making an array of its own."""


OPEN, NEXT, CLOSE = -1, -2, -3
"""Marks among the operations of an open word: `(`, `||` and `)`."""


class Output:
    """The operations of one rank so far: arrays that are done, and the list that grows.

    `spare`: how long the list may become before the limit on operations. `named`: the chunks of each replica.
    """

    def __init__(self, chunks: int, left: int, limit: int, named: Named) -> None:
        self.chunks = chunks
        self.named = named
        self.limit = limit
        self.spare = left
        self.tail: list[int] = []
        self._done: list[Codes] = []

    def scratch(self) -> Output:
        """A place for the body of a repetition."""
        return Output(self.chunks, self.spare, self.limit, self.named)

    def check(self, more: int, span: Span) -> None:
        """PD104 when `more` operations do not fit any more."""
        if len(self.tail) + more > self.spare:
            fail(
                "PD104",
                f"this expands to more than {self.limit:,} operations",
                span,
                help="make the counts smaller, or raise the limit on operations",
            )

    def add(self, codes: Codes) -> None:
        self.flush()
        self._done.append(codes)
        self.spare -= len(codes)

    def flush(self) -> None:
        if self.tail:
            tail, self.tail = np.array(self.tail, np.int64), []
            self.add(tail)

    def small(self) -> bool:
        """Whether everything is in the list."""
        return not self._done

    def array(self) -> Codes:
        self.flush()
        if len(self._done) == 1:
            return self._done[0]
        return np.concatenate(self._done) if self._done else np.empty(0, np.int64)


Run = Callable[[Environment, Output], None]


@dataclass(frozen=True, eq=False)
class Operations:
    """Rows of one rank. `op`: which `Op` of the block; `index`: the microbatch as written, -1 where counted.

    `marks`: where the word is open, the row numbers with OPEN, NEXT and CLOSE between them, as the text has them.
    """

    op: NDArray[np.int64]
    chunk: NDArray[np.int64]
    index: NDArray[np.int64]
    marks: NDArray[np.int64] | None = None


def ops_of(block: RankBlock) -> list[Op]:
    """The operations of a block, in the order that `Operations.op` counts them."""
    return [word for word in words(block.body) if isinstance(word, Op)]


class Block:
    """A `rank` block, compiled. `ops` are its operations in the order of the text."""

    def __init__(
        self,
        block: RankBlock,
        evaluator: Evaluator,
        microbatches: int,
        limits: Limits,
        budget: Budget,
        replicas: Collection[str] = (),
    ):
        self._replicas = replicas
        self._evaluator = evaluator
        self._microbatches = microbatches
        self._budget = budget
        self._limits = limits
        self._slots = 1
        self.block = block
        self.ops = ops_of(block)
        self._open = any(isinstance(word, Shuffle) for word in words(block.body))
        self._number = {id(op): number for number, op in enumerate(self.ops)}
        scope = {block.variable: 0}
        self._where = None if block.where is None else evaluator.compile(block.where, scope)
        self._run, _ = self._word(block.body, scope)

    def covers(self, rank: int) -> bool:
        """Whether the block is the program of `rank`."""
        if self._where is None or self.block.where is None:
            return True
        return as_truth(self._where([rank]), self.block.where.span, "what stands after `where`")

    def run(self, rank: int, chunks: int, left: int, named: Named) -> Operations:
        """The operations of `rank`, at most `left`; it holds `chunks` chunks. Raises DiagnosticError."""
        output = Output(chunks, left, self._limits.operations, named)
        environment: Environment = [None] * self._slots
        environment[0] = rank
        self._run(environment, output)
        output.check(0, self.block.span)
        codes, marks = output.array(), None
        if self._open:
            rows = codes >= 0
            marks = np.where(rows, np.cumsum(rows) - 1, codes)
            codes = codes[rows]
        codes, index = np.divmod(codes, self._microbatches + 1)
        op, chunk = np.divmod(codes, max(chunks, 1))
        return Operations(op, chunk, index - 1, marks)

    # ------------------------------------------------------------- compiling

    def _word(self, word: Word, scope: Mapping[str, int]) -> tuple[Run, Mapping[str, int]]:
        """A closure, and the scope of what follows in the same block."""
        match word:
            case Op():
                return self._op(word, scope), scope
            case Sequence():
                return self._sequence(word, scope), scope
            case Repeat():
                return self._repeat(word, scope), scope
            case For():
                return self._for(word, scope), scope
            case If():
                return self._if(word, scope), scope
            case Let():
                return self._let(word, scope)
            case Shuffle():
                return self._shuffle(word, scope), scope
            case Overlap():
                raise AssertionError("refused by check")

    def _variable(self, name: str, scope: Mapping[str, int]) -> tuple[int, Mapping[str, int]]:
        slot = self._slots
        self._slots += 1
        return slot, {**scope, name: slot}

    def _sequence(self, word: Sequence, scope: Mapping[str, int]) -> Run:
        runs: list[Run] = []
        for item in word.items:
            run, scope = self._word(item, scope)
            runs.append(run)
        if len(runs) == 1:
            return runs[0]

        def sequence(env: Environment, out: Output) -> None:
            for run in runs:
                run(env, out)

        return sequence

    def _shuffle(self, word: Shuffle, scope: Mapping[str, int]) -> Run:
        """The operands one after the other, with marks that say where each begins."""
        runs = [self._word(operand, scope)[0] for operand in word.operands]

        def shuffle(env: Environment, out: Output) -> None:
            mark = OPEN
            for run in runs:
                out.tail.append(mark)
                run(env, out)
                mark = NEXT
            out.tail.append(CLOSE)

        return shuffle

    def _let(self, word: Let, scope: Mapping[str, int]) -> tuple[Run, Mapping[str, int]]:
        value = self._evaluator.compile(word.value, scope)
        slot, inner = self._variable(word.name, scope)

        def let(env: Environment, out: Output) -> None:
            env[slot] = value(env)

        return let, inner

    def _if(self, word: If, scope: Mapping[str, int]) -> Run:
        condition, span = self._evaluator.compile(word.condition, scope), word.condition.span
        then, _ = self._word(word.then, scope)
        orelse = None if word.orelse is None else self._word(word.orelse, scope)[0]

        def choose(env: Environment, out: Output) -> None:
            if as_truth(condition(env), span, "the condition of `if`"):
                then(env, out)
            elif orelse is not None:
                orelse(env, out)

        return choose

    def _repeat(self, word: Repeat, scope: Mapping[str, int]) -> Run:
        body, _ = self._word(word.body, scope)
        count = self._count(word.count, scope)

        def repeat(env: Environment, out: Output) -> None:
            times = count(env)
            if times == 0:
                return
            once = out.scratch()
            body(env, once)
            if once.small() and len(once.tail) * times <= SMALL:
                out.check(len(once.tail) * times, word.span)
                out.tail.extend(once.tail * times)
                return
            codes = once.array()
            out.check(len(codes) * times, word.span)
            out.add(np.tile(codes, times))

        return repeat

    def _count(self, expr: Expr, scope: Mapping[str, int]) -> Callable[[Environment], int]:
        value = self._evaluator.compile(expr, scope)

        def count(env: Environment) -> int:
            times = as_int(value(env), expr.span, "a count")
            if times < 0:
                fail(
                    "PD114", f"this count is negative: it is {times}", expr.span, help="`max(0, ...)` if none is meant"
                )
            return times

        return count

    def _for(self, word: For, scope: Mapping[str, int]) -> Run:
        start, stop = self._evaluator.compile(word.start, scope), self._evaluator.compile(word.stop, scope)
        slot, inner = self._variable(word.variable, scope)
        body, _ = self._word(word.body, inner)
        budget, price = self._budget, 1 + size(word.body) // NODES_PER_STEP

        def loop(env: Environment, out: Output) -> None:
            first = as_int(start(env), word.start.span, "the start of a range")
            end = as_int(stop(env), word.stop.span, "the end of a range")
            if end < first:
                fail(
                    "PD114",
                    f"this range is negative: {first} .. {end} has {end - first} rounds",
                    word.start.span.to(word.stop.span),
                    help="`max(...)` around the end if no round is meant",
                )
            budget.spend((end - first) * price, word.span)
            for value in range(first, end):
                env[slot] = value
                body(env, out)
                if len(out.tail) > out.spare:
                    out.check(0, word.span)

        return loop

    def _op(self, word: Op, scope: Mapping[str, int]) -> Run:
        """One operation as `(number of the Op * chunks + chunk) * (m + 1) + microbatch + 1`; 0 for a counted one."""
        number, stride = self._number[id(word)], self._microbatches + 1
        microbatch = None if word.index is None else self._index(word.index, scope)
        if word.chunk is None:

            def alone(env: Environment, out: Output) -> None:
                if out.chunks != 1:
                    self._refuse_chunk(word, out.chunks)
                out.tail.append(number * stride + (0 if microbatch is None else microbatch(env)))

            return alone
        if isinstance(word.chunk, Name) and word.chunk.id in self._replicas:
            name = word.chunk.id

            def of_replica(env: Environment, out: Output) -> None:
                held = out.named[name]
                if len(held) != 1:
                    _refuse_replica(word, name, held)
                at = (number * out.chunks + held[0]) * stride
                out.tail.append(at if microbatch is None else at + microbatch(env))

            return of_replica
        chunk, span = self._evaluator.compile(word.chunk, scope), word.chunk.span

        def of_chunk(env: Environment, out: Output) -> None:
            which = chunk(env)
            if type(which) is not int or not 0 <= which < out.chunks:
                self._refuse_chunk(word, out.chunks, as_int(which, span, "the number of a chunk"))
            at = (number * out.chunks + which) * stride
            out.tail.append(at if microbatch is None else at + microbatch(env))

        return of_chunk

    def _index(self, expr: Expr, scope: Mapping[str, int]) -> Closure:
        value, microbatches = self._evaluator.compile(expr, scope), self._microbatches

        def index(env: Environment) -> int:
            which = value(env)
            if type(which) is not int or not 0 <= which < microbatches:
                which = as_int(which, expr.span, "the number of a microbatch")
                fail(
                    "PD205",
                    f"there is no microbatch {which}: they are 0 .. {microbatches - 1}",
                    expr.span,
                )
            return which + 1

        return index

    def _refuse_chunk(self, op: Op, chunks: int, which: int | None = None) -> None:
        """PD204 for an operation whose chunk, `which`, is not one of the rank's."""
        if chunks == 0:
            fail("PD204", f"`{op.kind}` on a rank that holds no stage", op.span, help="see `place`, or add a `where`")
        if which is None:
            names = f"`{op.kind}@0` .. `{op.kind}@{chunks - 1}`"
            fail("PD204", f"`{op.kind}` must name its chunk: this rank holds {chunks}", op.span, help=f"write {names}")
        held = "only chunk 0" if chunks == 1 else f"chunks 0 .. {chunks - 1}"
        fail("PD204", f"there is no chunk {which}: this rank holds {held}", op.span)


def _refuse_replica(op: Op, name: str, held: range) -> None:
    """PD204 for an operation of a replica of which the rank holds no stage, or several."""
    assert op.chunk is not None
    if not held:
        message = f"`{op.kind}@{name}` on a rank that holds no stage of `{name}`"
        fail("PD204", message, op.chunk.span, help="see where the replica is placed, or add a `where`")
    message = f"this rank holds {len(held)} stages of `{name}`"
    fail("PD204", message, op.chunk.span, help=f"name the chunk: `{op.kind}@{held[0]}` .. `{op.kind}@{held[-1]}`")
