"""What a search found, as a `.sched`: the words of all ranks, with what is known of them in the comment."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pipedsl.growth import growth_of
from pipedsl.sched_text import classes_of, program_text

if TYPE_CHECKING:
    from pipedsl.searching import SearchResult

MOST_PROOFS = 12
"""How often the fewest microbatches are raised until the proof succeeds."""


def found_text(result: SearchResult) -> str:
    """The text. It expands to `result.program`, and claims the value that was found."""
    return program_text(result.program, "\n".join(comments(result)), [f"{result.objective} == {_exact(result.value)}"])


def every_m_text(result: SearchResult) -> str | None:
    """The text for every m from some m on, where the middle of each rank repeats and the whole is proved for all m."""
    from pipedsl.api import parse_text
    from pipedsl.parametric import prove_for_all
    from verify import Verdict

    growth = growth_of(classes_of(result.program), result.program.microbatches)
    claims = [f"{result.objective} == {_exact(result.value)} when m == {result.program.microbatches}"]
    for _ in range(MOST_PROOFS):
        if growth is None or growth.shortest > result.program.microbatches:
            return None
        which = f"every m >= {growth.shortest}"
        if growth.period > 1:
            which += f" with m % {growth.period} == {growth.remainder}"
        said = [*comments(result), f"Proved for {which}; how good it is is known for m={growth.microbatches} alone."]
        text = program_text(result.program, "\n".join(said), claims, growth)
        proof = prove_for_all(parse_text(text), {})
        if proof.verdict is Verdict.VERIFIED:
            return text
        if proof.fails_at is None:
            return None
        # Few microbatches may be too few for the ends of the words.
        steps = (proof.fails_at - growth.shortest) // growth.period + 1
        growth = replace(growth, shortest=growth.shortest + steps * growth.period)
    return None


def comments(result: SearchResult) -> list[str]:
    """What is known of the answer, a line each."""
    given = ", ".join(f"{name}={value}" for name, value in result.params.items())
    place = f", placement {result.placement}" if result.placement else ""
    source = result.schedule.source.name
    lines = [f"Found by `pipedsl search` from {result.schedule.header.name} ({source}), with {given}{place}."]
    return [*lines, f"{quality(result)}.", f"Seed {result.seed}, work {result.work:.2f}, {result.elapsed:.1f} s."]


def quality(result: SearchResult) -> str:
    """`makespan 27, the smallest there is (bound: path)`, or how far from it at most."""
    value = f"{result.objective} {_exact(result.value)}"
    if result.optimal:
        why = f"lower bound: {result.argument}" if result.proof == "bound" else "z3 refuted a smaller one"
        return f"{value}, the smallest there is ({why})"
    bound = f"lower bound {_exact(result.bound)} ({result.argument})"
    return f"{value}, {bound}: at most {percent(result.gap)} above the smallest"


def percent(share: Fraction) -> str:
    return f"{float(share * 100):.2f} %"


def _exact(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator} / {value.denominator}"
