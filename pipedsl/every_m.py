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
from pipedsl.search_answer import orders_of
from verify import Verdict
from verify.search.bounds import lower_bound
from verify.search.engines import suited
from verify.search.judge import program_of
from verify.search.model import model_of
from verify.search.problem import Orders, Problem
from verify.search.repeat import Repeat, repeating, repeats_of
from verify.search.shorter import shorter
from verify.search.solve import Budget, Infeasible, NothingFound, solve

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult

BUDGET = Budget(work=10)
"""For orders that repeat, where the answer's do not."""

ROUNDS = 4
"""Of the part that may run more often, in the program that is written: what repeats is then seen to."""

MOST_PARTS = 6
"""Of the same orders, for which a text is written and proved."""

SPREAD = 6
"""From which m to which others are searched, for orders that go on to the m that is asked for."""

COMPARED = 3000
"""Operations of an answer, whose parts are compared in about one unit of work."""

MOST_OPERATIONS = 6000
"""Above, how the lower bound grows is not computed; for all parts together of which texts are written."""

MOST_PROOFS = 12
"""How often the fewest microbatches are raised until the proof succeeds."""


@dataclass(frozen=True)
class EveryM:
    """`text`: a `.sched` for every m >= `shortest` that leaves the remainder of `microbatches` by `period`.

    `microbatches`: the m of the search, `value`: the objective there; `loss`: how far that is above what was found for
    this m alone, as a part of it. `slope`: what each microbatch more adds to the objective, from this m on exactly
    where that is `proved`, else in the long run.
    """

    text: str
    microbatches: int
    value: Fraction
    loss: Fraction
    slope: Fraction
    shortest: int
    period: int
    proved: bool


def every_m(result: SearchResult, budget: Budget = BUDGET) -> EveryM | None:
    """The best answer that is proved for every m from some m on; None where none was found, or `never`."""
    if never(result):
        return None
    problem, own = result.task.problem, orders_of(result.program)
    best = _best_of(result, problem, own, None)
    if not _in_turn(problem):
        return best
    if best is None or best.loss > 0:
        try:
            half = replace(budget.part(1 / 2), engine=suited(budget.engine, problem))
            other = repeating(problem, budget=half, seed=result.seed, start=own)
        except NothingFound:
            other = None
        if other is not None:
            best = _best_of(result, problem, other.solution.orders, best)
    least = _least_slope(problem)
    for longer, orders in _of_other_lengths(problem, budget.part(1 / 2), result.seed):
        if best is not None and best.loss <= 0 and best.slope <= least:
            break
        best = _best_of(result, longer, orders, best)
    return best


def never(result: SearchResult) -> str:
    """What it has of which nothing is proved for every m; empty where there is nothing."""
    if result.program.placement.shape[0] > 1:
        return "replicas"
    return "`REDUCE`" if any(result.task.reductions) else ""


def _best_of(result: SearchResult, problem: Problem, orders: Orders, best: EveryM | None) -> EveryM | None:
    """The best text of one part of these orders, or what was the best before."""
    for repeat in repeats_of(problem, orders)[: max(2, min(MOST_PARTS, MOST_OPERATIONS // max(1, problem.operations)))]:
        found = _written(result, repeat)
        if found is not None and (best is None or _rank(found) < _rank(best)):
            best = found
        if best is not None and best.loss <= 0 and best.slope <= repeat.slope:
            break  # parts that come later cost more for each microbatch
    return best


def _rank(found: EveryM) -> tuple[Fraction, int, int]:
    """Less is better: the value at twice as many microbatches, then how many m are left out."""
    return found.value + found.slope * found.microbatches, found.period, found.shortest


def _least_slope(problem: Problem) -> Fraction:
    """What no orders seem to be below: a rank's work, or how the lower bound grows where that is soon known."""
    loads = [sum(problem.duration[op.kind][op.stage] for strand in rank for op in strand) for rank in problem.strands]
    least = Fraction(max(loads, default=0), max(1, problem.microbatches))
    longer = [shorter(problem, times * problem.microbatches) for times in (2, 3)]
    if longer[0] is not None and longer[1] is not None and problem.operations <= MOST_OPERATIONS:
        low, high = (lower_bound(model_of(each)).value for each in longer if each is not None)
        least = max(least, Fraction(high - low, problem.microbatches))
    return least * problem.time_unit


def _of_other_lengths(problem: Problem, budget: Budget, seed: int) -> Iterator[tuple[Problem, Orders]]:
    """Answers for other numbers of microbatches: few more than what ranks hold, the more first.

    Where the best for some m begins or ends in a way of its own, those for others often show how it goes on.
    """
    most = 2 * problem.ranks + SPREAD
    numbers = range(most, max(1, min(most, problem.microbatches) - SPREAD), -1)
    others = [each for each in (shorter(problem, m) for m in numbers if m != problem.microbatches) if each is not None]
    work = budget.work
    for each in others:
        work -= each.operations / COMPARED
        if work <= 0:
            return
        share = replace(budget.part(1 / len(others)), engine=suited(budget.engine, each))
        try:
            found = solve(each, budget=replace(share, work=work / len(others)), seed=seed)
        except (NothingFound, Infeasible):
            continue
        work -= found.work
        yield each, found.orders


def _in_turn(problem: Problem) -> bool:
    """Whether any order runs the microbatches of each kind and stage as they are numbered, as those that repeat do."""
    for strand in (strand for strands in problem.strands for strand in strands):
        last: dict[tuple[int, int], int] = {}
        for kind, stage, i in strand:
            if i < last.get((kind, stage), 0):
                return False
            last[kind, stage] = i
    return True


def _written(result: SearchResult, repeat: Repeat) -> EveryM | None:
    """The orders with their part as often as m says; None where that is not proved."""
    longer = max(0, ROUNDS - min((n for n, size in zip(repeat.rounds, repeat.length, strict=True) if size), default=0))
    program = _program(result, *repeat.longer(longer))
    growth = growth_of(classes_of(program), program.microbatches)
    m = result.program.microbatches
    if growth is None or (m - growth.microbatches) % growth.period:
        return None
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
            return EveryM(text, m, value, loss, slope, growth.shortest, growth.period, claim is not here), None
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
    if loss > 0:
        what = f"{result.objective} {exact(value)}, {percent(loss)} above what was found for m={m} alone"
        said.append(f"What repeats costs a little: at m={m} it has {what}.")
    return said
