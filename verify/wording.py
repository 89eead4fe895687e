"""How findings list and count things, and where they point when no single operation is to blame."""

from __future__ import annotations

from collections.abc import Sequence

from pipedsl.diagnostics import Span
from pipedsl.program import Program


def rank_span(program: Program, rank: int) -> Span | None:
    """The block that wrote a rank's program, else the head of the schedule."""
    spans = program.rank_spans
    return (spans[rank] if 0 <= rank < len(spans) else None) or program.header_span


def and_more(count: int) -> str:
    """` (and 3 more)`, or nothing for no more."""
    return f" (and {count} more)" if count > 0 else ""


def there_are(count: int, noun: str) -> str:
    """`there is 1 stage`, `there are 3 stages`, `there are 2 microbatches`."""
    return f"there is 1 {noun}" if count == 1 else f"there are {count} {noun}{_ending(noun)}"


def first_few(values: Sequence[object], count: int) -> str:
    """`3, 4, 5 (and 9 more)`: at most three of `values`, of which there are `count` in all."""
    shown = list(values[:3]) if count > 4 else list(values[:4])
    text = ", ".join(str(value) for value in shown)
    return f"{text} (and {count - len(shown)} more)" if count > len(shown) else text


def counted_list(noun: str, values: Sequence[int]) -> str:
    """`stage 2`, `stages 0, 1, 2 (and 5 more)`."""
    return f"{noun if len(values) == 1 else noun + _ending(noun)} {first_few(values, len(values))}"


def _ending(noun: str) -> str:
    return "es" if noun.endswith(("ch", "s")) else "s"
