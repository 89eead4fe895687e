"""What a search found, as a `.sched`: the words of all ranks, with what is known of them in the comment."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pipedsl.sched_text import program_text

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult


def found_text(result: SearchResult) -> str:
    """The text. It expands to `result.program`, and claims the value that was found."""
    return program_text(result.program, "\n".join(comments(result)), [f"{result.objective} == {exact(result.value)}"])


def comments(result: SearchResult) -> list[str]:
    """What is known of the answer, a line each."""
    given = ", ".join(result.given)
    place = f", placement {result.placement}" if result.placement else ""
    source = result.schedule.source.name
    lines = [f"Found by `pipedsl search` from {result.schedule.header.name} ({source}), with {given}{place}."]
    return [*lines, f"{quality(result)}.", f"{effort(result)}."]


def effort(result: SearchResult) -> str:
    """`Seed 1, work 2.50, 1.3 s, with --jobs 2`: what it took, and what it was asked with, beside the usual."""
    asked = f", with {' '.join(result.effort)}" if result.effort else ""
    ended = [text for text in (result.instead, "interrupted" if result.interrupted else "", result.lost) if text]
    return ", ".join([f"Seed {result.seed}, work {result.work:.2f}, {result.elapsed:.1f} s{asked}", *ended])


def quality(result: SearchResult) -> str:
    """`makespan 27, the smallest there is (bound: path)`, or how far from it at most."""
    value = f"{result.objective} {exact(result.value)}"
    if result.optimal:
        why = f"lower bound: {result.argument}" if result.proof == "bound" else refuted(result)
        return f"{value}, the smallest there is ({why})"
    bound = f"lower bound {exact(result.bound)} ({result.argument})"
    return f"{value}, {bound}: at most {percent(result.gap)} above the smallest"


def refuted(result: SearchResult) -> str:
    """Who refuted a smaller value: an engine, or the windows of starts that it would have been asked with."""
    by = result.argument.removeprefix("refutation by ")
    return f"{'the windows of starts' if by == 'windows' else by} refuted a smaller one"


def percent(share: Fraction) -> str:
    return f"{float(share * 100):.2f} %"


def exact(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator} / {value.denominator}"
