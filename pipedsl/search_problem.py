"""From a schedule that leaves orders open to the problem that the search solves: strands, costs and caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from pipedsl.check import RANK_VARIABLE, openings
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.evaluate import Evaluator, as_number, fail
from pipedsl.expand import expand_open, open_placements
from pipedsl.occupancy import constant_part
from pipedsl.open_words import OpenProgram, check_possible, flat_stages
from pipedsl.program import COMMUNICATION, Kind, Program
from pipedsl.search_closing import Closing, closing_of
from pipedsl.search_reductions import Reductions, without_reductions
from pipedsl.syntax import Binary, Call, Compare, Expr, Function, Minimize, Name, Schedule, SubjectTo
from verify.search.problem import Objective, Operation, Problem, make_problem
from verify.structure import check_structure

if TYPE_CHECKING:
    from pipedsl.profile import Profile

Caps = tuple[Fraction | None, ...]


@dataclass(frozen=True, eq=False)
class Task:
    """One problem of a schedule. `caps`: per rank what its memory may be, in the file's unit; None is no cap.

    `program` has all rows, in no order that means anything, and `own` the same with the file's own durations and sizes
    where a profile gives others. `placement`: the name of what `place ?` is here, or None. `asked`: the options of the
    command that put a cap or a profile in place of what the file says. `reductions`: every rank's REDUCEs, of which the
    problem knows no more than their `closing`, what they add at least. `left_out`: the placements that the words are no
    program under, or cannot run.
    """

    open_program: OpenProgram
    problem: Problem
    caps: Caps
    own: Program
    asked: tuple[str, ...] = ()
    reductions: Reductions = ()
    closing: Closing = field(default_factory=Closing)
    left_out: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.open_program.program

    @property
    def placement(self) -> str | None:
        return self.open_program.placement

    def with_caps(self, caps: Caps) -> Task:
        """The same under other caps (of all memory, weights included)."""
        return replace(self, problem=self.problem.with_cap(activation_caps(self.program, caps)), caps=caps)


def tasks(
    schedule: Schedule,
    params: Mapping[str, int],
    cap: Fraction | None = None,
    limits: Limits | None = None,
    profile: Profile | None = None,
    look: Callable[[], None] = lambda: None,
) -> list[Task]:
    """The problem that a schedule states, once for each placement that it leaves open and that its words can run under.

    `cap` stands in place of the file's, for every rank, and `profile` in place of its durations and sizes. `look`
    looks at the clock now and then, and raises where it is too late. Raises DiagnosticError: what `expand` raises, what
    is missing or twice (PD206 to PD208), PD209 where no order can run, PD601 for what a search cannot be asked;
    UsageError for a profile that is for other stages.
    """

    def check(each: OpenProgram) -> None:
        look()
        _check(schedule, each)
        look()

    problems = expand_open(schedule, params, limits, check)
    named = {each.placement for each in problems}
    left_out = tuple(name for name in open_placements(schedule) if name not in named)
    asked: tuple[str, ...] = () if cap is None else (f"--cap {cap}",)
    if profile is not None:
        asked += (f"--profile {profile.name}",)
    found = []
    for own in problems:
        each = own
        if profile is not None:
            from pipedsl.profile import apply_profile

            each = replace(own, program=apply_profile(profile, own.program))
        program = each.program
        caps = program.memory.cap if cap is None else (cap,) * program.ranks
        caps = _conditions(schedule, program, caps, limits or Limits())
        each, reductions = without_reductions(each)
        objective = _objective(schedule)
        closing = closing_of(each, reductions, objective is Objective.SPAN)
        problem = _problem(each, caps, objective, closing)
        look()
        found.append(Task(each, problem, caps, own.program, asked, reductions, closing, left_out))
    return found


def _check(schedule: Schedule, each: OpenProgram) -> None:
    """Raise DiagnosticError for what is no search problem, under this placement."""
    if not openings(schedule):
        message = "nothing is left open here, so there is nothing to search for"
        fail(
            "PD601", message, schedule.header.span, help="`A || B` leaves an order open; a fixed one is to be verified"
        )
    program = each.program
    messages = np.flatnonzero(np.isin(program.kind, COMMUNICATION))
    if len(messages):
        span = program.span_of(int(messages[0]))
        fail("PD601", "a search places the messages itself", span, help="leave SEND and RECV out: the answer has none")
    # In the order of the text alone an operation may come too soon, or ranks wait for each other.
    wrong = [found for found in check_structure(program)[0] if found.code not in ("PD209", "PD301")]
    if wrong:
        raise DiagnosticError(wrong)
    check_possible(each)


def _objective(schedule: Schedule) -> Objective:
    minimized = [item.objective for item in schedule.items if isinstance(item, Minimize)]
    return Objective(minimized[0] if minimized else "makespan")


def _problem(each: OpenProgram, caps: Caps, objective: Objective, closing: Closing) -> Problem:
    program, memory = each.program, each.program.memory
    copies = program.placement.shape[0]
    columns = (program.kind.tolist(), flat_stages(program).tolist(), program.microbatch.tolist())
    operations = [Operation(Kind(kind), stage, i) for kind, stage, i in zip(*columns, strict=True)]
    return make_problem(
        placement=program.placement.ravel().tolist(),
        replicas=copies,
        microbatches=program.microbatches,
        costs=program.costs.repeated(copies),
        cap=activation_caps(program, caps),
        activation=_activations(program),
        held_by_w=memory.held_by_w * copies,
        objective=objective,
        strands=tuple(
            tuple(tuple(operations[row] for row in strand) for strand in strands if strand) for strands in each.strands
        ),
        ranks=program.ranks,
        fences=tuple((operations[x], operations[y]) for x, y in each.fences),
        closing=closing.least,
        beside=closing.beside,
    )


def _activations(program: Program) -> list[Fraction]:
    """What each stage of each replica takes with F.

    What is kept beside the activation until B or I ends is as a larger activation, of which I gives back more. So is
    the buffer of what F sends: it is there from the end of F until B or I starts, and the rank takes nothing else
    between the start and the end of either.
    """
    memory = program.memory
    found = []
    for replica in program.placement.tolist():
        for stage, rank in enumerate(replica):
            sends = stage + 1 < program.stages and replica[stage + 1] != rank
            sent = memory.output[stage] if sends else Fraction(0)
            found.append(memory.activation[stage] + memory.input[stage] + sent)
    return found


def activation_caps(program: Program, caps: Sequence[Fraction | None]) -> list[Fraction | None]:
    """What is left of the caps for activations, beside what is there all the time (below 0 where that is too much)."""
    constant = constant_part(program)
    return [None if cap is None else cap - held for cap, held in zip(caps, constant, strict=True)]


# ----------------------------------------------------------------- conditions


def _conditions(schedule: Schedule, program: Program, caps: Caps, limits: Limits) -> Caps:
    """The caps with every `subject to` in them."""
    functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
    evaluator = Evaluator(functions, dict(program.params), limits)
    found = list(caps)
    for item in schedule.items:
        if not isinstance(item, SubjectTo):
            continue
        for metric, most in _comparisons(item.condition):
            for rank in _ranks(metric, program, evaluator):
                value = as_number(evaluator.compile(most, _slots(program))([rank]), most.span, "what is compared")
                size = Fraction(value)
                if metric.function == "peak":
                    size = _size_of_peak(metric, program, rank, size)
                before = found[rank]
                found[rank] = size if before is None else min(before, size)
    return tuple(found)


def _slots(program: Program) -> dict[str, int]:
    """The variables of a condition: `r`, unless it is a parameter."""
    return {} if RANK_VARIABLE in program.params else {RANK_VARIABLE: 0}


def _comparisons(condition: Expr) -> list[tuple[Call, Expr]]:
    """The (`peak(..)` or `memory(..)`, what it is at most) that a condition says, joined by `and`."""
    if isinstance(condition, Binary) and condition.op == "and":
        return _comparisons(condition.left) + _comparisons(condition.right)
    if not isinstance(condition, Compare):
        _refuse(condition)
    found = []
    for at, op in enumerate(condition.ops):
        left, right = condition.operands[at], condition.operands[at + 1]
        low, high = (left, right) if op == "<=" else (right, left)
        if op not in ("<=", ">=") or not _is_metric(low) or _names_metric(high):
            _refuse(condition)
        assert isinstance(low, Call)
        found.append((low, high))
    return found


def _is_metric(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.function in ("peak", "memory")


def _names_metric(expr: Expr) -> bool:
    from pipedsl.check import COSTS, METRICS
    from pipedsl.evaluate import nodes

    named = {node.id for node in nodes(expr) if isinstance(node, Name)} & {*METRICS, *COSTS}
    return bool(named) or any(_is_metric(node) for node in nodes(expr))


def _refuse(condition: Expr) -> NoReturn:
    fail(
        "PD601",
        f"search cannot hold to this: `{condition.span.text}`",
        condition.span,
        help="it can to `peak(r) <= e` and `memory(r) <= e`, with `e` of parameters and `r`, also joined by `and`",
    )


def _ranks(metric: Call, program: Program, evaluator: Evaluator) -> Sequence[int]:
    """The ranks that a metric is of: the one it names, or all where it is of `r`."""
    argument = metric.arguments[0]
    if isinstance(argument, Name) and argument.id in _slots(program):
        return range(program.ranks)
    rank = evaluator.value(argument)
    if type(rank) is not int or not 0 <= rank < program.ranks:
        fail("PD601", f"this is not one of the ranks 0 .. {program.ranks - 1}", argument.span)
    return [rank]


def _size_of_peak(metric: Call, program: Program, rank: int, peak: Fraction) -> Fraction:
    """The memory that a rank has at a peak of `peak` activations. Raises PD601 where one does not tell the other."""
    memory = program.memory
    stages = [stage for _, stage in program.chunks(rank)]
    sizes = {memory.activation[stage] for stage in stages}
    parts = {memory.held_by_w[stage] for stage in stages}
    if any(memory.output):
        message = (
            "search caps memory, in which messages count here (`output`), and peaks do not tell how many there are"
        )
        fail("PD601", message, metric.span, help="give the cap as a size: `cap(r) = ...` in `memory`")
    why = ""
    if len(sizes) > 1 or len(parts) > 1:
        why = "the activations of this rank's stages differ"
    elif any(memory.input[stage] for stage in stages):
        why = "inputs are kept here beside activations (`input`), which peaks do not count"
    elif 0 in sizes:
        why = "activations of this rank take none"
    if why:
        message = f"search caps memory, and {why}"
        fail("PD601", message, metric.span, help="give the cap as a size: `cap(r) = ...` in `memory`")
    return constant_part(program)[rank] + peak * sum(sizes)
