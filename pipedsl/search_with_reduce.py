"""Where an answer takes longer with every REDUCE than what was shown: orders that take the whole into account.

First the orders of the computations that are best where every REDUCE stands last, then, from the better of the two,
moves of one operation or REDUCE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pipedsl.open_words import flat_stages
from pipedsl.program import Program
from pipedsl.search_problem import Task
from pipedsl.search_runs import Effort, Job
from pipedsl.search_sums import MOST, MOVE, Rows, Sums, improve, timed
from verify.search.model import model_of
from verify.search.problem import Orders

AGAIN = 1 / 4
"""Of the budget, for orders that are best with every REDUCE last."""

MOVES = 1 / 8
"""Of the budget, for moves; at most `MOST_WORK`."""

MOST_WORK = 8.0


@dataclass(frozen=True)
class Better:
    """`rows`: every rank's rows of the task's program, REDUCEs among them. `work` that it took beside."""

    rows: list[list[int]]
    work: float
    interrupted: bool


def with_reduce(
    task: Task, program: Program, enough: Fraction, job: Job, effort: Effort, fits: Callable[[Rows], bool]
) -> Better | None:
    """Better orders than those of `program`, which runs to its end; None where none are found.

    `enough`: a value that nothing is below. `job`: what found these orders. `fits`: whether rows of the task's program
    keep to the caps with all buffers.
    """
    names, sums = sums_of(task)
    number = {row: at for at, row in enumerate(names)}
    current = [[number[row] for row in own] for own in rows_of(task, program)]
    found = timed(sums, current)
    if found is None:
        return None
    value, work, interrupted, best = found.value, 0.0, False, None
    budget = effort.budget
    if task.closing.last is not None and task.closing.last != task.closing.least:
        again = replace(
            job, problem=task.problem.with_closing(task.closing.last), budget=budget.part(AGAIN), known=None
        )
        [outcome] = effort.ending(1 / 2).run([again])
        interrupted = outcome.interrupted
        if outcome.solution is not None:
            work += outcome.solution.work
            last = _with_all_last(task, number, outcome.solution.orders)
            other = timed(sums, last)
            if other is not None and other.value < value and fits(_named(names, last)):
                value, best = other.value, last
    least = int(enough / task.problem.time_unit)

    def notice(rows: Rows, reached: int) -> bool:
        nonlocal value, best
        if not fits(_named(names, rows)):
            return False
        value, best = reached, rows
        return True

    if value > least and len(names) <= MOST and not interrupted and not effort.over:
        each = MOVE * (len(names) + 30)
        moves = int(min(MOST_WORK, budget.work * MOVES) / each)
        try:
            moved = improve(sums, best or current, least, moves, job.seed, lambda: effort.over, notice)
            work += moved * each
        except KeyboardInterrupt:
            interrupted = True
    return None if best is None and not interrupted else Better(_named(names, best or current), work, interrupted)


def rows_of(task: Task, program: Program) -> list[list[int]]:
    """The rows of the task's program that a program of the same operations runs, in its order."""
    number = {key: row for row, key in enumerate(_keys(task.program))}
    keys = _keys(program)
    return [[number[keys[at]] for at in program.rows(rank)] for rank in range(program.ranks)]


def _keys(program: Program) -> list[tuple[int, int, int]]:
    return list(
        zip(program.kind.tolist(), flat_stages(program).tolist(), program.microbatch.tolist(), strict=True)
    )  # fmt: skip


def sums_of(task: Task) -> tuple[list[int], Sums]:
    """The model with its REDUCEs, and of all of them the row of the task's program."""
    model, program = model_of(task.problem), task.program
    number = {key: row for row, key in enumerate(_keys(program))}
    names = [number[int(op.kind), op.stage, op.microbatch] for op in model.operations]
    reductions = [each for own in task.reductions for each in own]
    names += [each.row for each in reductions]
    at = {row: n for n, row in enumerate(names)}
    stages = [int(program.stage[each.row]) for each in reductions]
    unit = task.problem.time_unit
    return names, Sums(
        model,
        tuple(stages),
        tuple(int(program.costs.reduce[stage] / unit) for stage in stages),
        tuple(tuple(sorted(at[row] for row in each.after)) for each in reductions),
    )


def _with_all_last(task: Task, number: dict[int, int], orders: Orders) -> Rows:
    row_of = {key: row for row, key in enumerate(_keys(task.program))}
    return [
        [number[row_of[int(op.kind), op.stage, op.microbatch]] for op in order] + [number[each.row] for each in own]
        for order, own in zip(orders, task.reductions, strict=True)
    ]


def _named(names: Sequence[int], rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[names[row] for row in own] for own in rows]
