"""Is there an order whose objective is at most a limit? z3 answers, in integer difference logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic
from typing import Any

from verify.search.formula import Formula
from verify.search.load import Literal
from verify.search.model import Model, run
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible
from verify.search.solver import FAR, check, counted, new_solver, stop_after, suggest, units, values
from verify.search.windows import narrow


class Answer(Enum):
    FOUND = "found"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Decision:
    """`rows`: orders at most at the limit, where FOUND. `work`: about seconds, by z3's own count. `by`: windows or z3.

    `clauses`: what was added on the way to a refutation: about memory, and about when ranks begin. `start`: when
    operations start in what was found, all of which takes time."""

    answer: Answer
    rows: list[list[int]] | None
    work: float
    by: str = "z3"
    clauses: tuple[str, ...] = ()
    start: list[int] | None = None


def decide(
    model: Model,
    limit: int,
    *,
    work: float = 0,
    seconds: float = 0,
    seed: int = 0,
    extra: Sequence[tuple[int, int]] = (),
    narrowed: Narrowed = NOTHING,
    like: Sequence[int] | None = None,
    loads: bool = True,
) -> Decision:
    """Find orders whose objective is at most `limit`, or refute that there are any.

    `work`: z3's limit, 0 for none; the same work gives the same answer. `seconds`: an outer stop, 0 for none. `extra`:
    pairs of rows of which the first must end before the second starts. `narrowed`: what is known beside, where every
    operation takes time. `like`: starts, near which to look first. `loads`: with the clauses of `load`, which only cost
    time where ranks have much to lose.
    """
    like = like if all(model.duration) else None  # in another unit
    model, limit = without_instants(model, limit)
    try:
        window = narrow(model, limit, extra, narrowed=narrowed)
    except Infeasible:
        return Decision(Answer.REFUTED, None, 0, "windows")
    import z3

    formula = Formula(model, window, loads)
    solver = new_solver(seed, formula.sums)
    context = solver.ctx
    unit = units(sum(formula.open), formula.sums)
    stop = stop_after(seconds)
    solver.from_string(formula.assertions())
    if like is not None:
        suggest(solver, formula.near(like))
    used = 0
    clauses: list[str] = []
    prompt: list[str] = []
    while True:
        answer = check(solver, int(min(work * unit, FAR)) - used if work else FAR, stop)
        used = counted(solver) or used
        if answer == z3.unsat:
            return Decision(Answer.REFUTED, None, used / unit, clauses=tuple(clauses))
        if answer != z3.sat or monotonic() > stop or (work and used >= work * unit):
            return Decision(Answer.UNKNOWN, None, used / unit)
        start = values(solver, formula.names, window.earliest)
        rows = orders_by_start(model, start)
        broken = [clause for r in formula.lazy for clause in formula.overfull(r, rows[r])]
        if not broken and window.spans and not prompt and is_longer(model, rows, limit):
            prompt = formula.prompts()
            solver.add(z3.parse_smt2_string("\n".join((*formula.declared, *prompt)), ctx=context))
            clauses += prompt
            if prompt:
                continue
        if not broken:
            return Decision(Answer.FOUND, rows, used / unit, start=start)
        for clause in broken:
            solver.add(z3.Or([_truth(z3, context, literal) for literal in clause] or [z3.BoolVal(False, context)]))
            clauses.append(f"(assert (or false {' '.join(str(literal) for literal in clause)}))")


def is_longer(model: Model, rows: list[list[int]], limit: int) -> bool:
    """Whether the objective is over the limit once every operation starts as early as it can."""
    found = run(model, rows)
    return found is not None and found.value > limit


def _truth(z3: Any, context: Any, literal: Literal) -> Any:
    if isinstance(literal, bool):
        return z3.BoolVal(literal, context)
    if literal.startswith("(not "):
        return z3.Not(z3.Bool(literal[5:-1], context))
    return z3.Bool(literal, context)


def without_instants(model: Model, limit: int) -> tuple[Model, int]:
    """The same question with operations that take no time made to take the least, in so fine a unit that it adds up to
    less than one of the old: otherwise "x before y" could go round in a circle at one instant."""
    if all(model.duration):
        return model, limit
    unit = len(model) + 1
    longer = [value * unit or 1 for value in model.duration]
    lag, closing = ([value * unit for value in values] for values in (model.lag, model.closing))
    return replace(model, duration=longer, lag=lag, closing=closing), limit * unit + unit - 1


def orders_by_start(model: Model, start: Sequence[int]) -> list[list[int]]:
    """Every rank's operations by their starts; what takes no time before what starts with it."""
    duration = model.duration
    return [
        sorted(
            (row for first, last in pairs for row in range(first, last)),
            key=lambda row: (start[row], start[row] + duration[row], row),
        )
        for pairs in model.strands
    ]
