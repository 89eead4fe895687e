"""What a search found, for every m from some m on: orders whose middle repeats, written with m as a parameter.

The best order at one m need not repeat, so others that do are tried beside it: steady states, unrolled. The best of
them at the m of the search is written, if the ordinary verifier accepts it there and `verify --for-all m` everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pipedsl.found_text import comments, exact, percent
from pipedsl.growth import Growth, growth_of
from pipedsl.program import Program
from pipedsl.sched_text import classes_of, program_text
from verify import Verdict
from verify.search.judge import Invalid, judge
from verify.search.kernel import unroll
from verify.search.model import fits, model_of, run
from verify.search.problem import Orders, Problem
from verify.search.steady import steady_states

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult

MOST_PROOFS = 12
"""How often the fewest microbatches are raised until the proof succeeds."""

MOST_TRIED = 6
"""Orders that repeat, the best first, until one is proved."""


@dataclass(frozen=True)
class EveryM:
    """`text`: a `.sched` for every m >= `shortest` that leaves the remainder of the search's m by `period`.

    `value`: its objective at the m of the search; `loss`: how far that is above what was found for this m alone, as a
    part of it.
    """

    text: str
    value: Fraction
    loss: Fraction
    shortest: int
    period: int


def every_m(result: SearchResult) -> EveryM | None:
    """The best answer that is proved for every m from some m on; None where none was found."""
    found = _proved(result, result.program, result.value)
    if found is not None:
        return found
    for value, orders in _repeating(result.task.problem)[:MOST_TRIED]:
        program, report = result.reordered(orders)
        if report.verdict is Verdict.VERIFIED:
            found = _proved(result, program, value)
            if found is not None:
                return found
    return None


def _repeating(problem: Problem) -> list[tuple[Fraction, Orders]]:
    """Orders that repeat, with their value, the best first."""
    model = model_of(problem)
    found = []
    for state in steady_states(model):
        rows = unroll(model, state.pattern)
        ended = run(model, rows) if fits(model, rows) else None
        if ended is not None:
            found.append((ended.value, rows))
    found.sort(key=lambda each: each[0])
    return list(_judged(problem, [model.orders(rows) for _, rows in found]))


def _judged(problem: Problem, found: list[Orders]) -> Iterator[tuple[Fraction, Orders]]:
    for orders in found[:MOST_TRIED]:
        try:
            yield judge(problem, orders).value(problem.objective), orders
        except Invalid:
            continue


def _proved(result: SearchResult, program: Program, value: Fraction) -> EveryM | None:
    """This order with more rounds, or fewer, for another m; None where it does not repeat or is not proved."""
    from pipedsl.api import parse_text
    from pipedsl.parametric import prove_for_all

    growth = growth_of(classes_of(program), program.microbatches)
    claims = [f"{result.objective} == {exact(value)} when m == {program.microbatches}"]
    loss = (value - result.value) / result.value if result.value else Fraction(0)
    for _ in range(MOST_PROOFS):
        if growth is None or growth.shortest > program.microbatches:
            return None
        said = [*comments(result), *_said(result, growth, value, loss)]
        text = program_text(program, "\n".join(said), claims, growth)
        proof = prove_for_all(parse_text(text), {})
        if proof.verdict is Verdict.VERIFIED:
            return EveryM(text, value, loss, growth.shortest, growth.period)
        if proof.fails_at is None:
            return None
        # Few microbatches may be too few for the ends of the words.
        steps = (proof.fails_at - growth.shortest) // growth.period + 1
        growth = replace(growth, shortest=growth.shortest + steps * growth.period)
    return None


def _said(result: SearchResult, growth: Growth, value: Fraction, loss: Fraction) -> list[str]:
    which = f"every m >= {growth.shortest}"
    if growth.period > 1:
        which += f" with m % {growth.period} == {growth.remainder}"
    said = [f"Proved for {which}; how good it is is known for m={growth.microbatches} alone."]
    if loss:
        what = f"{result.objective} {exact(value)}, {percent(loss)} above what was found for m={growth.microbatches}"
        said.append(f"That its middle repeats costs: at m={growth.microbatches} it has {what} alone.")
    return said
