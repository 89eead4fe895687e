"""Which line of a text to change, where the verifier's findings cannot know it.

The verifier sees that microbatch 7 of stage 2 has no W, not which of five loops forgot it. Here the operations of each
loop are counted on every rank and held against what would be complete. In this order, where more than one would do:

1. a loop's body lacks an operation, or has one too many: on every rank, one for each of its rounds is missing;
2. a loop runs too few or too many rounds: on every rank, what is missing is a multiple of its body;
3. a line is missing at the end: what is missing is of what the block begins with, as the backwards of a warm-up are;
4. an `if` without `else` leaves ranks without any operation.

A cap that is broken is pointed at where it is given, as a claim is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipedsl import syntax
from pipedsl.check import check
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Span
from pipedsl.evaluate import Budget, Evaluator, as_int
from pipedsl.expand import parameter_values
from pipedsl.program import Ints
from pipedsl.replicas import held_chunks, named_chunks, places_of, replicas_of
from pipedsl.shape import words
from pipedsl.syntax import For, Function, If, MemoryBlock, Op, RankBlock, Repeat, Schedule, Stages
from pipedsl.words import Block

_NUMBERS = frozenset({"PD205", "PD206"})  # what is said of numbers of operations
_NEEDS = {"B": "F", "I": "F", "W": "I"}
Counts = dict[str, int]  # of each kind of operation; what is missing is above 0, what is too many below
ByChunk = dict[tuple[str, int], int]  # the same of each kind and chunk


_Runs = dict[tuple[int, int], int]  # how often each operation of the text runs, by its number and chunk


@dataclass(frozen=True)
class _Change:
    """What would make the numbers right."""

    span: Span
    text: str


@dataclass(frozen=True)
class _Loop:
    """A repetition of operations alone. For each rank of its block, its `rounds` and which operations it `runs`."""

    word: Repeat | For
    body: Counts
    rounds: tuple[int, ...]
    runs: tuple[ByChunk, ...]

    @property
    def bounds(self) -> Span:
        if isinstance(self.word, Repeat):
            return self.word.count.span
        return self.word.start.span.to(self.word.stop.span)


@dataclass(frozen=True)
class _Ranks:
    """A block, the ranks that it is the program of, and for each what is missing. `idle`: those that do nothing."""

    block: RankBlock
    ranks: tuple[int, ...]
    idle: tuple[int, ...]
    lacking: tuple[ByChunk, ...]
    loops: tuple[_Loop, ...]

    @property
    def missing(self) -> tuple[Counts, ...]:
        """By kind alone."""
        return tuple(_by_kind(lack) for lack in self.lacking)


def point(
    schedule: Schedule, params: Mapping[str, int], found: Sequence[Diagnostic], limits: Limits
) -> tuple[Diagnostic, ...]:
    """The findings about numbers of operations, at the line to change where that can be told. Raises nothing."""
    pointed = list(found)
    if not any(finding.code in _NUMBERS for finding in found) or check(schedule, limits):  # the latter: none is known
        return tuple(pointed)
    try:
        blocks = list(_blocks(schedule, params, limits))
    except DiagnosticError:
        return tuple(pointed)
    for ranks in blocks:
        change = _change(ranks)
        if change is None:
            continue
        own = {ranks.block.span, *(op.span for op in words(ranks.block.body) if isinstance(op, Op))}
        for number, finding in enumerate(pointed):
            if finding.code in _NUMBERS and finding.span in own:
                pointed[number] = replace(finding, span=change.span, labels=(Label(change.span, change.text),))
    return tuple(pointed)


def at_the_cap(schedule: Schedule, finding: Diagnostic) -> Diagnostic:
    """A broken cap (PD401) where the schedule gives it; other findings as they are."""
    if finding.code != "PD401":
        return finding
    entries = [entry for item in schedule.items if isinstance(item, MemoryBlock) for entry in item.entries]
    caps = [entry.span for entry in entries if entry.name == "cap"]
    return replace(finding, span=caps[0]) if caps else finding


# ------------------------------------------------------------------ counting


def _blocks(schedule: Schedule, params: Mapping[str, int], limits: Limits) -> Iterator[_Ranks]:
    """What is missing where. Raises DiagnosticError where the text does not say so much."""
    values = parameter_values(schedule, params, limits)
    budget = Budget(limits)
    functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
    evaluator = Evaluator(functions, values, limits, budget)
    held, stages = _held(schedule, evaluator, values["p"])
    names = [item.name for item in replicas_of(schedule)]
    left = limits.operations
    for item in schedule.items:
        if not isinstance(item, RankBlock):
            continue
        block = Block(item, evaluator, values["m"], limits, budget, names)
        ranks = [rank for rank in range(values["p"]) if block.covers(rank)]
        runs = []
        for rank in ranks:
            chunks = len(held[rank])
            operations = block.run(rank, chunks, left, named_chunks(schedule, held[rank], stages))
            left -= len(operations.op)
            each, times = np.unique(operations.op * max(chunks, 1) + operations.chunk, return_counts=True)
            ops, chunk = np.divmod(each, max(chunks, 1))
            runs.append(dict(zip(zip(ops.tolist(), chunk.tolist(), strict=True), times.tolist(), strict=True)))
        kinds = [op.kind for op in block.ops]
        wanted = _wanted(set(kinds))
        if wanted and ranks:
            complete = [
                {(kind, chunk): values["m"] for kind in wanted for chunk in range(len(held[rank]))} for rank in ranks
            ]
            lacking = tuple(_lack(own, kinds, all_) for own, all_ in zip(runs, complete, strict=True))
            idle = tuple(rank for rank, own in zip(ranks, runs, strict=True) if not own)
            yield _Ranks(item, tuple(ranks), idle, lacking, tuple(_loops(item, block.ops, runs)))


def _held(schedule: Schedule, evaluator: Evaluator, ranks: int) -> tuple[list[Ints], int]:
    """The chunks of every rank, and the number of stages."""
    stages = next(item for item in schedule.items if isinstance(item, Stages))
    count = as_int(evaluator.value(stages.count), stages.span, "the number of stages")
    placement = []
    for place in places_of(schedule):
        if place.rank is None or place.variable is None:
            raise DiagnosticError(())
        rank_of = evaluator.compile(place.rank, {place.variable: 0})
        placement.append([rank_of([stage]) for stage in range(count)])
    return held_chunks(np.array(placement), ranks), count


def _wanted(kinds: set[str]) -> tuple[str, ...]:
    """The kinds that each microbatch needs once, by those that a block uses; none where it uses both forms."""
    if "B" not in kinds and kinds & {"I", "W"}:
        return ("F", "I", "W")
    return () if kinds & {"I", "W"} else ("F", "B")


def _lack(runs: _Runs, kinds: Sequence[str], complete: ByChunk) -> ByChunk:
    lack = Counter(complete)
    for (op, chunk), count in runs.items():
        if (kinds[op], chunk) in complete:
            lack[kinds[op], chunk] -= count
    return {each: count for each, count in lack.items() if count}


def _by_kind(counts: ByChunk) -> Counts:
    total: Counts = {}
    for (kind, _), count in counts.items():
        total[kind] = total.get(kind, 0) + count
    return {kind: count for kind, count in total.items() if count}


def _loops(block: RankBlock, ops: Sequence[Op], runs: Sequence[_Runs]) -> Iterator[_Loop]:
    """Those that repeat operations and nothing else, in the order of the text."""
    number = {id(op): index for index, op in enumerate(ops)}
    inside = [word for word in words(block.body) if isinstance(word, Repeat | For)]
    for word in sorted(inside, key=lambda word: word.span.start):
        body = word.body.items if isinstance(word.body, syntax.Sequence) else (word.body,)
        own = [number[id(each)] for each in body if isinstance(each, Op)]
        if own and len(own) == len(body):
            rounds = tuple(sum(count for (op, _), count in each.items() if op == own[0]) for each in runs)
            total: list[ByChunk] = []
            for each in runs:
                counts: Counter[tuple[str, int]] = Counter()
                for (op, chunk), count in each.items():
                    if op in own:
                        counts[ops[op].kind, chunk] += count
                total.append(dict(counts))
            yield _Loop(word, dict(Counter(ops[op].kind for op in own)), rounds, tuple(total))


# ------------------------------------------------------------------ what would make them right


def _change(ranks: _Ranks) -> _Change | None:
    if not any(ranks.lacking):
        return None
    return _idle(ranks) or _in_a_body(ranks) or _in_the_rounds(ranks) or _after_the_end(ranks)


def _idle(ranks: _Ranks) -> _Change | None:
    """Ranks with no operation at all, for an `if` that has no `else`."""
    choices = [word for word in words(ranks.block.body) if isinstance(word, If) and word.orelse is None]
    if not ranks.idle or len(ranks.idle) == len(ranks.ranks) or not choices:
        return None
    text = f"without `else`, {_named(ranks.idle)} do{'es' if len(ranks.idle) == 1 else ''} nothing"
    return _Change(choices[0].condition.span, text)


def _named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2, 3, ...`."""
    listed = f"{', '.join(map(str, ranks[:4]))}{', ...' if len(ranks) > 4 else ''}"
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"


def _in_a_body(ranks: _Ranks) -> _Change | None:
    kinds = {kind for lack in ranks.lacking for kind, _ in lack}
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    needed = _NEEDS.get(kind, "")
    for loop in reversed(ranks.loops):
        belongs = kind not in loop.body and needed in loop.body and loop is not _first(ranks.loops, needed)
        if belongs and _answers(ranks, loop, needed, (kind,)):
            return _Change(loop.word.body.span, f"with `{kind}` in each round here, the numbers would be right")
        excess = [{kind: -rounds} if rounds else {} for rounds in loop.rounds]
        if loop.body.get(kind, 0) > 1 and list(ranks.missing) == excess:
            return _Change(
                loop.word.body.span, f"with one `{kind}` less in each round here, the numbers would be right"
            )
    return None


def _answers(ranks: _Ranks, loop: _Loop, needed: str, kinds: Sequence[str]) -> bool:
    """Whether exactly one of each of `kinds` is missing for every `needed` that the loop runs, chunk by chunk."""
    return all(
        lack == {(kind, chunk): count for (own, chunk), count in runs.items() if own == needed for kind in kinds}
        for lack, runs in zip(ranks.lacking, loop.runs, strict=True)
    )


def _first(loops: Sequence[_Loop], kind: str) -> _Loop | None:
    return next((loop for loop in loops if kind in loop.body), None)


def _in_the_rounds(ranks: _Ranks) -> _Change | None:
    for loop in reversed(ranks.loops):
        more = [_rounds(lack, loop.body) for lack in ranks.missing]
        reached = {chunk for runs in loop.runs for _, chunk in runs}
        if any(chunk not in reached for lack in ranks.lacking for _, chunk in lack):
            continue
        if all(each is not None and each + rounds >= 0 for each, rounds in zip(more, loop.rounds, strict=True)):
            numbers = {each for each in more if each}
            if numbers and (min(numbers) > 0 or max(numbers) < 0):
                short = [rank for rank, each in zip(ranks.ranks, more, strict=True) if each]
                where = "" if len(short) == len(ranks.ranks) else f" on {_named(short)}"
                text = f"with {_more(numbers)} here{where}, the numbers would be right"
                return _Change(loop.bounds, text)
    return None


def _more(numbers: set[int]) -> str:
    """`1 round more`, `2 rounds less`; without a number where ranks differ."""
    word = "more" if min(numbers) > 0 else "less"
    if len(numbers) > 1:
        return f"{'more' if word == 'more' else 'fewer'} rounds"
    count = abs(min(numbers))
    return f"{count} round{'' if count == 1 else 's'} {word}"


def _rounds(lack: Counts, body: Counts) -> int | None:
    """How many rounds make up for what is missing; None where no number of them does."""
    if not lack:
        return 0
    kind, count = next(iter(body.items()))
    rounds = lack.get(kind, 0) // count
    return rounds if lack == {kind: rounds * times for kind, times in body.items()} and rounds else None


def _after_the_end(ranks: _Ranks) -> _Change | None:
    """The backwards of what the block begins with."""
    kinds = sorted({kind for lack in ranks.lacking for kind, _ in lack})
    if not kinds or not set(kinds) <= set(_NEEDS):
        return None
    needed = _NEEDS[kinds[0]]
    first = _first(ranks.loops, needed)
    if first is None or not _answers(ranks, first, needed, kinds):
        return None
    body = ranks.block.body
    last = body.items[-1] if isinstance(body, syntax.Sequence) and body.items else body
    names = " and ".join(f"`{kind}`" for kind in kinds)
    return _Change(last.span, f"{names} of what `{first.word.span.text}` begins is missing after this")
