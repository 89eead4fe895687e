"""The question of `exact`, answered by OR-Tools' CP-SAT instead of z3: an opinion of its own, and often a quicker one.

Intervals that must not overlap for each rank, and what is held as a cumulative resource: from the start of F to the end
of what gives it back. Needs `pipedsl[cpsat]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipedsl.program import Kind
from verify.search.early import prompt_rows
from verify.search.engines import FAR
from verify.search.exact import Answer, Decision, is_longer, orders_by_start, without_instants
from verify.search.interruptible import ask
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible, Objective
from verify.search.windows import Window, narrow

MOST_SECONDS = 1e6
SEEDS = 2**31  # it takes no larger one
LEAST = 0.001  # of work, where none is left


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
    """Find orders whose objective is at most `limit`, or refute that there are any; as `exact.decide`.

    `work` is CP-SAT's deterministic time, about a second each; the same work gives the same answer. Numbers that are
    too large for it leave it UNKNOWN: `engines.suited` says beforehand.
    """
    like = like if all(model.duration) else None  # in another unit
    model, limit = without_instants(model, limit)
    try:
        window = narrow(model, limit, extra, narrowed=narrowed)
    except Infeasible:
        return Decision(Answer.REFUTED, None, 0, "windows")
    if max(window.latest, default=0) + limit > FAR or any(room is not None and abs(room) > FAR for room in model.room):
        return Decision(Answer.UNKNOWN, None, 0, "CP-SAT")
    from ortools.sat.python import cp_model

    asked = cp_model.CpModel()
    start = _starts(asked, model, window, limit)
    for variable, value in zip(start, like or (), strict=False):
        asked.add_hint(variable, value)
    used, prompt = 0.0, False
    while True:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed % SEEDS
        if work:
            solver.parameters.max_deterministic_time = max(LEAST, work - used)
        if seconds:
            solver.parameters.max_time_in_seconds = min(seconds, MOST_SECONDS)
        status = _solve(solver, asked)
        used += solver.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            return Decision(Answer.REFUTED, None, used, "CP-SAT")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Decision(Answer.UNKNOWN, None, used, "CP-SAT")
        rows = orders_by_start(model, [solver.value(each) for each in start])
        if prompt or not window.spans or not is_longer(model, rows, limit):
            return Decision(Answer.FOUND, rows, used, "CP-SAT")
        prompt = True
        _begin_early(asked, start, model, window)


def _solve(solver: Any, asked: Any) -> Any:
    """The solver's answer. Ctrl-C, of which CP-SAT itself would make an answer, ends it and is then raised."""
    solver.parameters.catch_sigint_signal = False
    return ask(lambda: solver.solve(asked), solver.stop_search)


def _begin_early(asked: Any, start: list[Any], model: Model, window: Window) -> None:
    """That no rank begins later than it could."""
    for prompt in prompt_rows(model, window):
        reasons = [(-1, 0), *((other, 0) for other in prompt.others)]
        reasons += [(prompt.upstream, prompt.lag)] if prompt.upstream >= 0 else []
        chosen = [asked.new_bool_var("") for _ in reasons]
        asked.add_bool_or(chosen)
        for (row, lag), reason in zip(reasons, chosen, strict=True):
            end = 0 if row < 0 else start[row] + model.duration[row] + lag
            asked.add(start[prompt.row] == end).only_enforce_if(reason)


def _starts(asked: Any, model: Model, window: Window, limit: int) -> list[Any]:
    """The variables of the starts, with all that is asked of them."""
    duration = model.duration
    start = [asked.new_int_var(a, b, "") for a, b in zip(window.earliest, window.latest, strict=True)]
    for y, items in enumerate(window.before):
        for x, gap in items:
            asked.add(start[y] >= start[x] + duration[x] + gap)
    for pairs, room in zip(model.strands, model.room, strict=True):
        rows = [row for first, last in pairs for row in range(first, last)]
        asked.add_no_overlap([asked.new_fixed_size_interval_var(start[row], duration[row], "") for row in rows])
        if model.problem.objective is Objective.SPAN and rows:
            begin = asked.new_int_var(0, max(window.latest), "")
            for row in rows:
                asked.add(start[row] >= begin)
                asked.add(start[row] + duration[row] + model.closing[row] <= begin + limit)
        if room is None:
            continue
        held, sizes = [], []
        forward = {model.operations[row][1:]: row for row in rows if model.kind[row] == Kind.F}
        for row in rows:
            if model.give[row]:
                took = forward[model.operations[row][1:]]
                last = max(window.latest) + max(duration)
                held.append(
                    asked.new_interval_var(start[took], asked.new_int_var(0, last, ""), start[row] + duration[row], "")
                )
                sizes.append(model.give[row])
        asked.add_cumulative(held, sizes, room)
    return start
