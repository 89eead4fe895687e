"""What to say where no order keeps to the caps: how small they can be, and what is held then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Span
from pipedsl.occupancy import constant_part, memory_used
from pipedsl.program import Kind
from pipedsl.search_problem import Caps, Task
from pipedsl.syntax import MemoryBlock, Schedule, SubjectTo
from verify.memory import size_text
from verify.search.judge import program_of
from verify.search.levels import levels_of
from verify.search.problem import Infeasible
from verify.search.solve import Budget, NothingFound, Solution, solve

EFFORT = Budget(work=1.0, seconds=10.0)
"""For each question whether some cap can be kept to."""

MOST_NAMED = 6


@dataclass(frozen=True)
class Smallest:
    """Caps that an order keeps to, all raised by the same. `sure`: no smaller raise will do."""

    task: Task
    caps: Caps
    by: Fraction
    solution: Solution
    sure: bool


@dataclass(frozen=True)
class Refusal:
    """PD602. `smallest`: the cap of every rank that would do, where the caps are the same for all; else None.

    `said`: the same as people read it.
    """

    diagnostic: Diagnostic
    smallest: Fraction | None = None
    said: str = ""

    @property
    def error(self) -> DiagnosticError:
        return DiagnosticError([self.diagnostic])


def refusal(schedule: Schedule, tasks: Sequence[Task]) -> Refusal:
    """What to say where no order keeps to the caps, with the smallest of the placement that needs least."""
    span = _span(schedule)
    try:
        found = [each for each in map(smallest, tasks) if each is not None]
    except KeyboardInterrupt:
        help_ = "interrupted before it was found how far they have to be raised"
        return Refusal(Diagnostic("PD602", "no order keeps to these caps", span, help=help_))
    if not found:
        return Refusal(Diagnostic("PD602", "no order was found under any cap", span))
    best = min(found, key=lambda each: each.by)
    memory = best.task.program.memory

    def size(value: Fraction) -> str:
        return size_text(value, memory.in_bytes, ROUND_CEILING)  # so that what is said does as a cap

    given = {cap for cap in best.task.caps if cap is not None}
    least = None
    if len(given) == 1:
        cap = next(iter(given))
        least = max(cap for cap in best.caps if cap is not None)
        what, needed = f"the cap of {size_text(cap, memory.in_bytes, ROUND_FLOOR)}", size(least)
    else:
        shown = ["none" if cap is None else size(cap) for cap in best.caps[:MOST_NAMED]]
        more = ", ..." if len(best.caps) > MOST_NAMED else ""
        what, needed = "these caps", f"{size(best.by)} more on every rank ({', '.join(shown)}{more})"
    # Of the buffers of messages a search knows those that F sends from; the others may need more.
    apart = ", received messages and gradients apart," if any(memory.output) else ""
    how = "the smallest that one keeps to" if best.sure else "the smallest that one was found for"
    message = f"no order keeps to {what}; {how}{apart} is {needed}"
    help_ = "raise the cap, or leave more of the order open"
    return Refusal(
        Diagnostic("PD602", message, span, notes=(_held(best),), help=help_), least, "" if least is None else needed
    )


def smallest(task: Task) -> Smallest | None:
    """The least that all caps have to be raised by; None where not even without caps an order was found."""
    constant = constant_part(task.program)
    capped = [(cap, fixed) for cap, fixed in zip(task.caps, constant, strict=True) if cap is not None]
    levels = levels_of((fixed - cap for cap, fixed in capped), task.problem.size_unit)

    def over(solution: Solution) -> Fraction:
        sums = zip(solution.judgement.memory, constant, task.caps, strict=True)
        return max((held + fixed - cap for held, fixed, cap in sums if cap is not None), default=Fraction(0))

    def raised(by: Fraction | None) -> Caps:
        return tuple(None if cap is None or by is None else cap + by for cap in task.caps)

    best, _ = _order(task.with_caps(raised(None)))
    if best is None:
        return None
    low, sure = Fraction(0), True
    while (middle := levels.between(low, over(best))) is not None:
        answer, refuted = _order(task.with_caps(raised(middle)))
        if answer is None:
            low, sure = middle, sure and refuted
        else:
            best = answer
    return Smallest(task, raised(over(best)), over(best), best, sure)


def _order(task: Task) -> tuple[Solution | None, bool]:
    """An order that keeps to the caps, or whether there is none for sure."""
    try:
        return solve(task.problem, budget=EFFORT), False
    except Infeasible:
        return None, True
    except NothingFound:
        return None, False


def _held(best: Smallest) -> str:
    """What the rank with the least room left holds at its peak."""
    program = program_of(best.task.problem, best.solution.orders)
    used = memory_used(program)
    room = [
        (cap - fixed - used.peak(rank).size, rank)
        for rank, (cap, fixed) in enumerate(zip(best.caps, constant_part(best.task.program), strict=True))
        if cap is not None
    ]
    rank = min(room)[1]
    rows = program.rows(rank)
    at = used.peak(rank).row
    held: dict[tuple[int, int, int], str] = {}
    for row in range(rows.start, at + 1):
        place = (int(program.replica[row]), int(program.stage[row]))
        kind, key = Kind(program.kind[row]), (*place, int(program.microbatch[row]))
        if kind == Kind.F:
            held[key] = "F"
        elif kind == Kind.I:
            held[key] = "I"  # W is still to come
        elif row < at:
            held.pop(key, None)
    names = [f"F[{i}] of stage {stage}" if kind == "F" else f"I[{i}] of stage {stage}, until W"
             for (_, stage, i), kind in held.items()]  # fmt: skip
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"with it rank {rank} holds at its peak, when {program.label(at)} runs: {', '.join(names[:MOST_NAMED])}{more}"
    )


def _span(schedule: Schedule) -> Span:
    """Where the caps are given: in `memory`, in a condition, or nowhere."""
    for item in schedule.items:
        if isinstance(item, MemoryBlock):
            for entry in item.entries:
                if entry.name == "cap":
                    return entry.span
    return next((item.span for item in schedule.items if isinstance(item, SubjectTo)), schedule.header.span)
