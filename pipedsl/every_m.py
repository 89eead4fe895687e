"""What a search found, for every m from some m on: orders with a part that may run more often, m a parameter.

The best orders for one m need not have such a part; then the best that do are searched for beside them. What is written
is accepted by the ordinary verifier at the m of the search, and proved by `verify --for-all m` for the others.
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
from verify.search.judge import program_of
from verify.search.problem import Operation, Orders, Problem
from verify.search.repeat import Repeat, repeat_of, repeating
from verify.search.solve import Budget, NothingFound

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult

BUDGET = Budget(work=10)
"""For orders that repeat, where the answer's do not."""

ROUNDS = 4
"""Of the part that may run more often, in the program that is written: what repeats is then seen to."""

MOST_PROOFS = 12
"""How often the fewest microbatches are raised until the proof succeeds."""


@dataclass(frozen=True)
class EveryM:
    """`text`: a `.sched` for every m >= `shortest` that leaves the remainder of the search's m by `period`.

    `value`: its objective at the m of the search; `loss`: how far that is above what was found for this m alone, as a
    part of it. `slope`: what each microbatch more adds to the objective.
    """

    text: str
    value: Fraction
    loss: Fraction
    slope: Fraction
    shortest: int
    period: int


def every_m(result: SearchResult, budget: Budget = BUDGET) -> EveryM | None:
    """The best answer that is proved for every m from some m on; None where none was found."""
    if result.program.placement.shape[0] > 1:
        return None  # of replicas nothing is proved for every m
    for repeat in _repeats(result, budget):
        found = _written(result, repeat)
        if found is not None:
            return found
    return None


def _repeats(result: SearchResult, budget: Budget) -> Iterator[Repeat]:
    """The answer's own orders if they repeat, then others that do."""
    problem, orders = result.task.problem, orders_of(result.program)
    own = repeat_of(problem, orders)
    if own is not None:
        yield own
    if not _in_turn(problem):
        return
    try:
        other = repeating(problem, budget=budget, seed=result.seed, start=orders)
    except NothingFound:
        return
    if other is not None:
        yield other.repeat


def _in_turn(problem: Problem) -> bool:
    """Whether any order runs the microbatches of each kind and stage as they are numbered, as those that repeat do."""
    for strand in (strand for strands in problem.strands for strand in strands):
        last: dict[tuple[int, int], int] = {}
        for kind, stage, i in strand:
            if i < last.get((kind, stage), 0):
                return False
            last[kind, stage] = i
    return True


def orders_of(program: Program) -> Orders:
    """Every rank's operations; of a program without replicas."""
    columns = (program.kind.tolist(), program.stage.tolist(), program.microbatch.tolist())
    rows = [Operation(*row) for row in zip(*columns, strict=True)]
    return tuple(tuple(rows[at] for at in program.rows(rank)) for rank in range(program.ranks))


def _written(result: SearchResult, repeat: Repeat) -> EveryM | None:
    """The orders with their part as often as m says; None where that is not proved."""
    longer = max(0, ROUNDS - min((n for n, size in zip(repeat.rounds, repeat.length, strict=True) if size), default=0))
    program = _program(result, *repeat.longer(longer))
    growth = growth_of(classes_of(program), program.microbatches)
    if growth is None:
        return None
    m = result.program.microbatches
    growth = replace(growth, default=m)
    for _ in range(MOST_PROOFS):
        if growth.shortest > m:
            return None
        found, fails_at = _proved(result, program, growth, repeat.slope)
        if fails_at is None:
            return found
        # Few microbatches may be too few for the ends of the words.
        steps = (fails_at - growth.shortest) // growth.period + 1
        growth = replace(growth, shortest=growth.shortest + steps * growth.period)
    return None


def _program(result: SearchResult, problem: Problem, orders: Orders) -> Program:
    """Orders for another m, with the names, costs and sizes of the answer."""
    own, longer = result.program, program_of(problem, orders)
    return replace(longer, name=own.name, costs=own.costs, memory=own.memory)


def _proved(
    result: SearchResult, program: Program, growth: Growth, slope: Fraction
) -> tuple[EveryM | None, int | None]:
    """What is proved of the text, or the smallest m that fails, above which it may not."""
    from pipedsl.api import parse_text, verify
    from pipedsl.parametric import prove_for_all

    m = result.program.microbatches
    report = verify(parse_text(program_text(program, growth=growth)), {})
    if report.verdict is not Verdict.VERIFIED or report.metrics is None:
        return None, None
    value: Fraction = getattr(report.metrics, result.objective)
    loss = (value - result.value) / result.value if result.value else Fraction(0)
    line = _line(slope, value - slope * m)
    here = f"{exact(value)} when m == {m}"
    for claim in (f"{line}", f"{line} when m >= {m}", here):
        said = [*comments(result), *_said(result, growth, value, loss)]
        text = program_text(program, "\n".join(said), [f"{result.objective} == {claim}"], growth)
        proof = prove_for_all(parse_text(text), {})
        if proof.verdict is Verdict.VERIFIED:
            return EveryM(text, value, loss, slope, growth.shortest, growth.period), None
        if claim is here:
            return None, proof.fails_at
    return None, None


def _line(slope: Fraction, base: Fraction) -> str:
    """`slope * m + base`, as a claim may have it."""
    start = "m" if slope == 1 else f"{slope} * m"
    if not base:
        return start
    return f"{start} {'-' if base < 0 else '+'} {abs(base)}"


def _said(result: SearchResult, growth: Growth, value: Fraction, loss: Fraction) -> list[str]:
    which = f"every m >= {growth.shortest}"
    if growth.period > 1:
        which += f" with m % {growth.period} == {growth.remainder}"
    m = result.program.microbatches
    said = [f"Proved for {which}; how good it is is known for m={m} alone."]
    if loss:
        what = f"{result.objective} {exact(value)}, {percent(loss)} above what was found for m={m} alone"
        said.append(f"What repeats costs a little: at m={m} it has {what}.")
    return said
