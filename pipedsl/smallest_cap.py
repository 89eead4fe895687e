"""What to say where no order keeps to the caps: how small they can be, and what is held then."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from time import monotonic

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Span
from pipedsl.occupancy import constant_part
from pipedsl.program import Kind
from pipedsl.search_answer import program_of
from pipedsl.search_problem import Caps, Task
from pipedsl.search_runs import LEAST_WORK, Effort, News, ended_by_interrupt, usage_of_missing, within
from pipedsl.syntax import MemoryBlock, Schedule, SubjectTo
from verify.memory import size_text
from verify.search.engines import suited
from verify.search.judge import peak
from verify.search.judge import program_of as plain_program
from verify.search.levels import Holdings, Levels, holdings, levels_of
from verify.search.model import model_of
from verify.search.problem import Infeasible
from verify.search.solve import Budget, NothingFound, Solution, solve
from verify.structure import check_structure

WORK = 1.0
"""For each question whether some cap can be kept to, at most."""

MOST_NAMED = 6


@dataclass(frozen=True)
class Smallest:
    """Caps that an order keeps to, all raised by the same. `sure`: no smaller raise will do.

    `interrupted`: Ctrl-C ended the search for it.
    """

    task: Task
    caps: Caps
    by: Fraction
    solution: Solution
    sure: bool
    interrupted: bool


@dataclass(frozen=True)
class Refusal:
    """PD602. `smallest`: the cap of every rank that would do, where the caps are the same for all; else None.

    `said`: the same as people read it. `sure`: no smaller one would do. `answer`: what the message says of it.
    """

    diagnostic: Diagnostic
    smallest: Fraction | None = None
    said: str = ""
    sure: bool = False
    answer: str = ""

    @property
    def error(self) -> DiagnosticError:
        return DiagnosticError([self.diagnostic])

    def of(self, task: Task) -> Refusal:
        """The same of a task with other caps that the same would do in place of."""
        message = f"no order keeps to {_caps_text(task)}{self.answer}"
        return replace(self, diagnostic=replace(self.diagnostic, message=message))


def refusal(schedule: Schedule, tasks: Sequence[Task], effort: Effort) -> Refusal:
    """What to say where no order keeps to the caps, with the smallest of the placement that needs least.

    `effort`: its budget is for all that is asked of one placement; `until`, where it is given, ends all. Raises
    DiagnosticError where, whatever the caps, ranks wait for each other's REDUCE (PD301).
    """
    span = _span(schedule)
    found: list[Smallest] = []
    with suppress(KeyboardInterrupt, NothingFound):
        for at, task in enumerate(tasks):
            if not any(each.interrupted for each in found):
                found.append(smallest(task, effort.ending(1 / (len(tasks) - at))))
    if not found:
        help_ = "the search ended before it was found how far they have to be raised"
        return Refusal(Diagnostic("PD602", "no order keeps to these caps", span, help=help_))
    best = min(found, key=lambda each: (each.task.closing.hangs, each.by))
    if best.task.closing.hangs:
        raise DiagnosticError(check_structure(program_of(best.task, best.solution.orders, best.caps))[0])
    sure = len(found) == len(tasks) and all(each.sure for each in found)
    memory = best.task.program.memory

    def size(value: Fraction) -> str:
        return size_text(value, memory.in_bytes, ROUND_CEILING)  # so that what is said does as a cap

    least = None
    if len({*best.task.caps} - {None}) == 1:
        least = max(cap for cap in best.caps if cap is not None)
        needed = size(least)
    else:
        shown = ["none" if cap is None else size(cap) for cap in best.caps[:MOST_NAMED]]
        more = ", ..." if len(best.caps) > MOST_NAMED else ""
        needed = f"{size(best.by)} more on every rank ({', '.join(shown)}{more})"
    # Of the buffers of messages a search knows those that F sends from; the others may need more.
    apart = ", received messages and gradients apart," if any(memory.output) else ""
    how = "the smallest that one keeps to" if sure else "the smallest that one was found for"
    answer = f"; {how}{apart} is {needed}"
    help_ = "raise the cap, or leave more of the order open"
    if not sure:
        help_ += "; smaller ones are not ruled out"
    diagnostic = Diagnostic("PD602", "", span, notes=(_held(best),), help=help_)
    return Refusal(diagnostic, least, "" if least is None else needed, sure, answer).of(best.task)


def _caps_text(task: Task) -> str:
    given = {cap for cap in task.caps if cap is not None}
    if len(given) != 1:
        return "these caps"
    return f"the cap of {size_text(given.pop(), task.program.memory.in_bytes, ROUND_FLOOR)}"


def smallest(task: Task, effort: Effort) -> Smallest:
    """The least that all caps have to be raised by, as far as the effort shows it.

    Raises NothingFound where not even without caps an order was found.
    """
    started = monotonic()
    constant = constant_part(task.program)
    parts = [None if cap is None else fixed - cap for cap, fixed in zip(task.caps, constant, strict=True)]
    unit = task.problem.size_unit
    held = holdings(task.problem, parts)
    levels: Levels | Holdings = held or levels_of((part for part in parts if part is not None), unit)
    ask = _Asked(task, effort)

    def over(solution: Solution) -> Fraction:
        sums = zip(solution.judgement.memory, constant, task.caps, strict=True)
        return max((held + fixed - cap for held, fixed, cap in sums if cap is not None), default=Fraction(0))

    best = ask.first()
    low, sure, interrupted = Fraction(0), True, False
    while (middle := levels.between(low, over(best))) is not None:
        if effort.progress is not None:
            needed = size_text(over(best), task.program.memory.in_bytes, ROUND_CEILING)
            said = f"no order keeps to the caps, one does with {needed} more"
            effort.progress(News("caps", None, Fraction(0), monotonic() - started, task.placement or "", said))
        if ask.over:
            sure = False
            break
        try:
            answer, refuted = ask.order(middle)
        except KeyboardInterrupt:
            sure, interrupted = False, True
            break
        if answer is None:
            low, sure = middle, sure and refuted
        else:
            best = answer
            interrupted = ended_by_interrupt(answer)
    return Smallest(task, _raised(task, over(best)), over(best), best, sure, interrupted)


def _raised(task: Task, by: Fraction | None) -> Caps:
    """The caps with so much more, or (None) without any."""
    return tuple(None if cap is None or by is None else cap + by for cap in task.caps)


class _Asked:
    """Whether some order keeps to raised caps, asked again and again, with what is left of the effort."""

    def __init__(self, task: Task, effort: Effort) -> None:
        self.task, self.effort = task, effort
        self.left = effort.budget.work
        # No order is longer, so the first one ends the search.
        self.any = model_of(task.problem).horizon * task.problem.time_unit

    @property
    def over(self) -> bool:
        return self.left < LEAST_WORK or self.effort.over

    def first(self) -> Solution:
        """An order without caps, which is soon there: however little work or time is left. Raises NothingFound."""
        return self._solve(None, WORK, None)

    def order(self, by: Fraction) -> tuple[Solution | None, bool]:
        """An order that keeps to the caps with so much more, or whether there is none for sure."""
        work = min(WORK, self.left)
        try:
            return self._solve(by, work, self.effort.until), False
        except Infeasible as error:
            self.left -= work if error.rank < 0 else 0  # bounds cost next to nothing
            return None, True
        except NothingFound:
            self.left -= work
            return None, False

    def _solve(self, by: Fraction | None, work: float, until: float | None) -> Solution:
        problem = self.task.with_caps(_raised(self.task, by)).problem
        budget = within(Budget(work, None, suited(self.effort.budget.engine, problem)), until)
        try:
            found = solve(problem, budget=budget, seed=self.effort.seed, goal=self.any)
        except ModuleNotFoundError as error:
            raise usage_of_missing(error) from None
        self.left -= found.work
        return found


def _held(best: Smallest) -> str:
    """What the rank with the least room left holds at its peak."""
    problem, orders = best.task.problem, best.solution.orders
    constant = constant_part(best.task.program)
    most = [peak(problem, order) for order in orders]
    room = [
        (cap - fixed - held * problem.size_unit, rank)
        for rank, (cap, fixed, (held, _)) in enumerate(zip(best.caps, constant, most, strict=True))
        if cap is not None
    ]
    rank = min(room)[1]
    at = most[rank][1]
    if at < 0:
        size = size_text(constant[rank], best.task.program.memory.in_bytes, ROUND_CEILING)
        return f"rank {rank} holds {size} all the time"
    begun = orders[rank][: at + 1]
    held: dict[tuple[int, int], str] = {}
    for row, (kind, place, i) in enumerate(begun):
        if kind == Kind.F:
            held[place, i] = "F"
        elif kind == Kind.I:
            held[place, i] = "I"  # W is still to come
        elif row < at:
            held.pop((place, i), None)
    names = [f"{kind}[{i}] of {_stage(best.task, place)}{', until W' * (kind == 'I')}"
             for (place, i), kind in held.items()]  # fmt: skip
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    program = replace(plain_program(problem, orders), copies=best.task.program.copies)
    label = program.label(sum(map(len, orders[:rank])) + at)
    fixed = constant[rank]
    always = f"{size_text(fixed, best.task.program.memory.in_bytes, ROUND_CEILING)} all the time, and " if fixed else ""
    what = ", ".join(names[:MOST_NAMED])
    return f"with it rank {rank} holds {always}at its peak, when {label} runs: {what}{more}"


def _stage(task: Task, place: int) -> str:
    copy, stage = divmod(place, task.problem.depth)
    return f"stage {stage}" if task.problem.replicas == 1 else f"stage {stage} of {task.program.replica_name(copy)}"


def _span(schedule: Schedule) -> Span:
    """Where the caps are given: in `memory`, in a condition, or nowhere."""
    for item in schedule.items:
        if isinstance(item, MemoryBlock):
            for entry in item.entries:
                if entry.name == "cap":
                    return entry.span
    return next((item.span for item in schedule.items if isinstance(item, SubjectTo)), schedule.header.span)
