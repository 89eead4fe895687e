"""The most that every rank holds, as lines in q: running sums over the words, as `pipedsl.occupancy` has them.

Each round of a segment changes what is held by the same amount, so the peak of all rounds is in the first or the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pipedsl.occupancy import constant_part, released_by_input
from pipedsl.program import Kind
from verify.forall.linear import ZERO, Linear, Threshold
from verify.forall.program import Operation, ParametricProgram


def activation_peaks(program: ParametricProgram, threshold: Threshold) -> tuple[Linear, ...]:
    """Peak activations per rank, in microbatches, for all q >= `threshold.start`."""
    sizes = zip(program.memory.activation, program.memory.held_by_w, strict=True)
    kept = tuple(1 - released_by_input(whole, held) for whole, held in sizes)
    ones = (Fraction(1),) * program.stages
    return tuple(_peak(program, rank, ones, kept, threshold) for rank in range(program.ranks))


def memory_peaks(program: ParametricProgram, threshold: Threshold) -> tuple[Linear, ...]:
    """Peak memory per rank in the file's unit, message buffers left out (they must have no size)."""
    memory = program.memory
    held_from_f = tuple(a + b for a, b in zip(memory.activation, memory.input, strict=True))
    base = constant_part(program.at(threshold.start))
    return tuple(
        _peak(program, rank, held_from_f, memory.held_by_w, threshold).plus(base[rank]) for rank in range(program.ranks)
    )


def _peak(
    program: ParametricProgram, rank: int, whole: Sequence[Fraction], held: Sequence[Fraction], threshold: Threshold
) -> Linear:
    level, most = ZERO, ZERO
    for segment in program.words[rank]:
        inside, top = Fraction(0), Fraction(0)
        for op in segment.body:
            gain, loss = _change(op, whole, held)
            top = max(top, inside + gain)
            inside += gain - loss
        rounds = segment.count
        last = level + rounds.plus(-1).times(inside)
        most = threshold.largest([most, level.plus(top), last.plus(top)])
        level = level + rounds.times(inside)
        most = threshold.largest([most, level])
    return most


def _change(op: Operation, whole: Sequence[Fraction], held: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """What an operation takes at its start and gives back at its end."""
    none = Fraction(0)
    match op.kind:
        case Kind.F:
            return whole[op.stage], none
        case Kind.B:
            return none, whole[op.stage]
        case Kind.I:
            return none, whole[op.stage] - held[op.stage]
        case _:
            return none, held[op.stage]
