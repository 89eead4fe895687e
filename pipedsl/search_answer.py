"""The answer of a search: the orders found, through the ordinary verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from pipedsl.api import rejection, with_claims
from pipedsl.diagnostics import DiagnosticError
from pipedsl.lower import lower
from pipedsl.occupancy import constant_part, memory_used
from pipedsl.open_words import flat_stages
from pipedsl.program import Kind, Program
from pipedsl.search_problem import Caps, Task, activation_caps
from pipedsl.search_reductions import in_order, with_reductions
from pipedsl.search_room import with_room
from pipedsl.search_runs import Effort, Job, Outcome, ended_by_interrupt, within
from pipedsl.search_with_reduce import rows_of, with_reduce
from pipedsl.simulate import measure, simulate
from pipedsl.syntax import Schedule
from verify import TRANSPORTS, Report, Verdict
from verify import verify as prove
from verify.memory import size_text
from verify.search.engines import Engine, suited
from verify.search.problem import Objective, Operation, Orders, Problem
from verify.search.solve import Budget, NothingFound, Proof, Solution, solve

if TYPE_CHECKING:
    from pipedsl.every_m import EveryM
    from pipedsl.profile import Profile
    from pipedsl.search_evidence import SearchEvidence

AGAIN = 1 / 4
"""Of the budget, for orders that only just fit, of at most `MOST_OPERATIONS`."""

MOST_OPERATIONS = 4000

ROUNDS = 8
"""How often the caps are made smaller to make room for buffers that a search does not know."""

INSTEAD = "z3, as numbers are too large for CP-SAT"

NO_ROOM = "with the buffers of its messages no order was found that keeps to the caps"


class NoRoom(NothingFound):
    """None of the orders found has room for all buffers. `needed`: what the least of them holds on any rank."""

    def __init__(self, message: str, needed: Fraction, interrupted: bool) -> None:
        super().__init__(message)
        self.needed, self.interrupted = needed, interrupted


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best order found, as a verified program. Times are in the file's unit.

    `value`: what it makes of the objective; `bound`: no order is below it; `proof`: why the value is the smallest
    (`bound` or `refutation`), None where it may not be; `argument`: what the bound rests on. `least`: no order
    as good holds less on the rank that holds most; not said where messages take memory. `placement`: the name of the
    one chosen for `place ?`. `task`: what was searched in the end, with smaller caps where buffers need room; `problem`
    is that of the caps themselves. `work` is what the search counted, `elapsed` seconds, of the first time if `cached`.
    `lost`: how a process ended that searched beside others and never answered. `effort`: the options that say how long
    and with what it was searched, where that is not the usual. `engine`: who was asked what bounds left open.
    """

    schedule: Schedule
    params: Mapping[str, int]
    problem: Problem = field(repr=False)
    task: Task = field(repr=False)
    program: Program = field(repr=False)
    report: Report = field(repr=False)
    objective: str
    value: Fraction
    bound: Fraction
    proof: str | None
    argument: str
    least: bool
    caps: Caps
    seed: int
    work: float
    elapsed: float
    placement: str | None = None
    cached: bool = False
    interrupted: bool = False
    lost: str = ""
    effort: tuple[str, ...] = ()
    engine: Engine = "z3"

    @property
    def instead(self) -> str:
        """Why it was not the engine that was asked for."""
        return INSTEAD if self.engine == "z3" and "--engine cpsat" in self.effort else ""

    @property
    def optimal(self) -> bool:
        return self.proof is not None

    @property
    def given(self) -> tuple[str, ...]:
        """What the file was given: parameters, and what stands in place of its caps, costs and sizes."""
        return (*(f"{name}={value}" for name, value in self.params.items()), *self.task.asked)

    @property
    def gap(self) -> Fraction:
        """How far above the bound the value is, as a part of the bound."""
        return (self.value - self.bound) / self.bound if self.bound else Fraction(0)

    @cached_property
    def every_m(self) -> EveryM | None:
        """The answer, or one near it, with m as a parameter and proved for all m from some m on; None: none was."""
        from pipedsl.every_m import every_m

        return every_m(self)

    @property
    def evidence(self) -> SearchEvidence:
        """What shows that no order is below the bound, in files that others can judge."""
        from pipedsl.search_evidence import search_evidence

        return search_evidence(self)

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    @cached_property
    def text(self) -> str:
        """The answer as a `.sched`; it expands to `program`."""
        from pipedsl.found_text import found_text

        return found_text(self)


def job_of(task: Task, budget: Budget, seed: int, label: str = "") -> Job:
    budget = replace(budget, engine=suited(budget.engine, task.problem))
    return Job(task.problem, budget, seed, constant_part(task.program), label)


def may_lack_room(task: Task) -> bool:
    """Whether an order that keeps to the caps may not do so with all buffers of its messages."""
    return any(task.program.memory.output) and any(cap is not None for cap in task.caps)


def may_go_on(task: Task) -> bool:
    """Whether a search may not be all: for want of room, or as more is to be known of REDUCE."""
    known = task.closing.least == task.closing.last and task.problem.objective is Objective.MAKESPAN
    return may_lack_room(task) or (any(task.reductions) and not known)


def is_too_small(task: Task) -> bool:
    """Whether some rank's cap is less than what it holds all the time."""
    left = activation_caps(task.program, task.caps)
    used = set(task.problem.placement)
    return any(cap is not None and cap < 0 for rank, cap in enumerate(left) if rank in used)


def answer_of(
    schedule: Schedule,
    task: Task,
    outcome: Outcome,
    effort: Effort,
    transports: Sequence[str] | None,
    profile: Profile | None = None,
) -> SearchResult:
    """The result, through the ordinary verifier.

    Of the buffers of messages a search knows those that F sends from. Where the others make an order too large, it is
    asked again with caps that leave room for them, each time with the budget and half of the time that is left, and
    then from that order on for one between; the bound stays that of the caps themselves. Raises NoRoom where that
    fails.
    """
    effort = replace(effort, budget=replace(effort.budget, engine=suited(effort.budget.engine, task.problem)))
    solution, caps, first = outcome.solution, task.caps, task
    assert solution is not None
    bound = solution
    stopped = False  # by Ctrl-C while it is asked again
    needed: list[Fraction] = []
    tried = [solution]
    fitting = None
    for _ in range(ROUNDS):
        program = program_of(task, solution.orders, caps)
        report = judged(schedule, task, program, transports, profile)
        over = _overflow(program, report)
        if not any(over):
            fitting = solution
            break
        if report.metrics is not None:
            needed.append(max(report.metrics.memory))
        # By half of what is too much: orders that hold less have fewer messages on their way as well.
        less = (max(min(o, task.problem.size_unit), o / 2) for o in over)
        task = task.with_caps(tuple(None if c is None else c - o for c, o in zip(task.caps, less, strict=True)))
        again = None
        if not is_too_small(task) and not stopped and not effort.over:
            half = replace(effort.ending(1 / 2), jobs=1)
            ended = half.run([job_of(task, effort.budget, outcome.seed)])[0]
            again, stopped = ended.solution, ended.interrupted
        if again is None:
            break
        solution = again
        tried.append(again)
    wanting = (fitting is None or fitting.value > bound.value) and not stopped and not effort.over
    if wanting and first.problem.operations <= MOST_OPERATIONS:
        task = first
        fitting, stopped = _between(first, fitting, tried, effort, outcome.seed)
    if fitting is None:
        raise NoRoom(f"{'interrupted: ' if stopped else ''}{_no_room(program, needed)}", min(needed), stopped)
    if fitting is not bound:
        solution = fitting
        program = program_of(task, solution.orders, caps)
        report = judged(schedule, task, program, transports, profile)
    work, longer = solution.work, _is_longer(first, report, solution.value)
    if longer and not stopped and not effort.over:

        def fits(rows: list[list[int]]) -> bool:
            if not may_lack_room(first):
                return True
            ordered = program_in(first, rows, caps)
            held = memory_used(ordered, lower(ordered, simulate(ordered))).peaks()
            return all(cap is None or size <= cap for size, cap in zip(held, caps, strict=True))

        job = replace(job_of(first, effort.budget, outcome.seed), start=solution.orders)
        better = with_reduce(first, program, bound.bound, job, replace(effort, jobs=1), fits)
        if better is not None:
            program = program_in(first, better.rows, caps)
            report = judged(schedule, first, program, transports, profile)
            work, stopped = work + better.work, better.interrupted
    found = _result(schedule, first, outcome, effort, program, report, solution.value)
    least = outcome.least and solution is bound and not any(task.program.memory.output) and not longer
    return replace(found, task=task, least=least, work=work, interrupted=outcome.interrupted or stopped)


def _is_longer(task: Task, report: Report, value: Fraction) -> bool:
    """Whether an answer takes longer with every REDUCE than what is known of each says."""
    if report.metrics is None or not any(task.reductions):
        return False
    measured: Fraction = getattr(report.metrics, task.problem.objective.value)
    return measured > value


def carried(
    schedule: Schedule,
    task: Task,
    outcome: Outcome,
    effort: Effort,
    before: SearchResult,
    transports: Sequence[str] | None,
    profile: Profile | None = None,
) -> SearchResult | None:
    """The answer to another search as one to this; None where it is none: of other orders or times, or too large."""
    if replace(before.problem, cap=task.problem.cap) != task.problem:
        return None
    program = program_in(task, rows_of(task, before.program), task.caps)
    report = judged(schedule, task, program, transports, profile)
    if report.metrics is None or any(_overflow(program, report)):
        return None
    return _result(schedule, task, outcome, effort, program, report, before.value)


def _result(
    schedule: Schedule, task: Task, outcome: Outcome, effort: Effort, program: Program, report: Report, value: Fraction
) -> SearchResult:
    """A program as an answer to the task, whose bound is that of the outcome.

    `value`: with what is known of every REDUCE. Raises DiagnosticError where ranks wait for each other's, as the text
    has them do.
    """
    bound = outcome.solution
    assert bound is not None
    proof = bound.proof or Proof.BOUND
    if any(task.reductions):
        if report.metrics is None:
            raise DiagnosticError(report.diagnostics)
        value = getattr(report.metrics, task.problem.objective.value)
    return SearchResult(
        schedule=schedule,
        params=dict(program.params),
        problem=task.problem,
        task=task,
        program=program,
        report=report,
        objective=task.problem.objective.value,
        value=value,
        bound=bound.bound,
        proof=proof.value if value <= bound.bound else None,
        argument=bound.argument,
        least=False,
        caps=task.caps,
        seed=outcome.seed,
        work=bound.work,
        elapsed=outcome.elapsed,
        placement=task.placement,
        cached=outcome.cached,
        interrupted=outcome.interrupted,
        lost=outcome.lost,
        effort=effort.asked,
        engine=suited(effort.budget.engine, task.problem),
    )


def _between(
    task: Task, fitting: Solution | None, tried: Sequence[Solution], effort: Effort, seed: int
) -> tuple[Solution | None, bool]:
    """The best found of the orders that fit with all buffers, under the caps themselves; and whether Ctrl-C ended it.

    Smaller caps leave some of them out. `fitting`: one that fits, if there is one. `tried`: what was found, the first
    under the caps themselves; none is below its bound.
    """
    known = tried[0]

    def grade(orders: Orders) -> tuple[Fraction, Fraction]:
        program = program_of(task, orders, task.caps)
        timeline = simulate(program)
        held = memory_used(program, lower(program, timeline)).peaks()
        pairs = zip(held, task.caps, strict=True)
        excess = sum((max(Fraction(0), size - cap) for size, cap in pairs if cap is not None), Fraction(0))
        return excess, getattr(measure(program, timeline), task.problem.objective.value)

    budget = within(replace(effort.budget, work=effort.budget.work * AGAIN), effort.until)
    try:
        starts = [solution.orders for solution in tried]
        start = with_room(task.problem, starts, grade, known.bound, budget.work / 2, lambda: effort.over)
        if start is None and fitting is not None:
            start = fitting.orders
        found = solve(
            task.problem, budget=within(budget, effort.until), seed=seed, start=start, known=known,
            accept=lambda orders: not grade(orders)[0],
        )  # fmt: skip
    except NothingFound:
        return fitting, False
    except KeyboardInterrupt:
        return fitting, True
    return found, ended_by_interrupt(found)


def _no_room(program: Program, needed: Sequence[Fraction]) -> str:
    """`needed`: what orders that were found hold at most on any rank."""
    return f"{NO_ROOM}; one was found for a cap of {size_text(min(needed), program.memory.in_bytes, ROUND_CEILING)}"


def _overflow(program: Program, report: Report) -> list[Fraction]:
    """Per rank, how much more memory it needs than its cap."""
    if report.metrics is None:
        return [Fraction(0)] * program.ranks
    pairs = zip(report.metrics.memory, program.memory.cap, strict=True)
    return [Fraction(0) if cap is None else max(Fraction(0), held - cap) for held, cap in pairs]


def program_of(task: Task, orders: Orders, caps: Caps) -> Program:
    """The orders as a program of the file: its names, places in the text, costs and sizes, and these caps."""
    program = task.program
    columns = (program.kind.tolist(), flat_stages(program).tolist(), program.microbatch.tolist())
    row_of = {key: row for row, key in enumerate(zip(*columns, strict=True))}
    rows = [[row_of[(int(op.kind), op.stage, op.microbatch)] for op in order] for order in orders]
    return program_in(task, with_reductions(program, rows, task.reductions, task.problem.objective.value), caps)


def program_in(task: Task, rows: Sequence[Sequence[int]], caps: Caps) -> Program:
    """The rows of the task's program in this order, with these caps."""
    return replace(in_order(task.program, rows), memory=replace(task.program.memory, cap=caps))


def orders_of(program: Program) -> Orders:
    """Every rank's computations, as the search knows them: of all replicas, their stages numbered through."""
    columns = (program.kind.tolist(), flat_stages(program).tolist(), program.microbatch.tolist())
    rows = [Operation(Kind(kind), stage, i) for kind, stage, i in zip(*columns, strict=True)]
    ranks = (program.rows(rank) for rank in range(program.ranks))
    return tuple(tuple(rows[at] for at in each if rows[at].kind != Kind.REDUCE) for each in ranks)


def judged(
    schedule: Schedule, task: Task, program: Program, transports: Sequence[str] | None, profile: Profile | None
) -> Report:
    """The ordinary verifier on an answer, with the claims of the schedule."""
    try:
        report = prove(program, transports=tuple(transports or TRANSPORTS))
        own = replace(program, costs=task.own.costs, memory=task.own.memory)
        return report if report.metrics is None else with_claims(schedule, own, report, report.metrics, profile)
    except DiagnosticError as error:
        return rejection(error)
