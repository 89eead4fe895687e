"""Is there an order whose objective is at most a limit? z3 answers, in integer difference logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from verify.search.formula import Formula
from verify.search.model import Model
from verify.search.problem import Infeasible
from verify.search.windows import narrow


# z3's own units of work that take about a second, by what it reasons with.
UNITS = 2_000_000
UNITS_WITH_SUMS = 60_000_000
DIFFERENCES = 1  # its solver for difference logic by shortest paths: ten times as fast here as the others


class Answer(Enum):
    FOUND = "found"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Decision:
    """`rows`: orders at most at the limit, where FOUND. `work`: about seconds, by z3's own count. `by`: windows or z3."""

    answer: Answer
    rows: list[list[int]] | None
    work: float
    by: str = "z3"


def decide(
    model: Model, limit: int, *, work: float = 0, seconds: float = 0, seed: int = 0, extra: Sequence[tuple[int, int]] = ()
) -> Decision:
    """Find orders whose objective is at most `limit`, or refute that there are any.

    `work`: z3's limit, 0 for none; the same work gives the same answer. `seconds`: an outer stop, 0 for none. `extra`:
    pairs of rows of which the first must end before the second starts.
    """
    try:
        window = narrow(model, limit, extra)
    except Infeasible:
        return Decision(Answer.REFUTED, None, 0, "windows")
    import z3

    formula = Formula(model, window)
    context = z3.Context()  # of its own, so that the work is counted from nothing
    solver = z3.SimpleSolver(context)
    solver.set("smt.random_seed", seed)
    solver.set("smt.auto_config", False)
    if formula.sums:
        unit = UNITS_WITH_SUMS
    else:
        unit = UNITS
        solver.set("smt.arith.solver", DIFFERENCES)
        solver.set("smt.relevancy", 0)
    if work:
        solver.set("rlimit", max(1, int(work * unit)))
    if seconds:
        solver.set("timeout", max(1, int(seconds * 1000)))
    solver.from_string(formula.assertions())
    answer = solver.check()
    statistics = solver.statistics()
    used: float = int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0  # noqa: SIM118
    used /= unit
    if answer == z3.unsat:
        return Decision(Answer.REFUTED, None, used)
    if answer != z3.sat:
        return Decision(Answer.UNKNOWN, None, used)
    assignment = solver.model()
    found = {declaration.name(): assignment[declaration] for declaration in assignment.decls()}
    start = [
        found[name].as_long() if name in found else window.earliest[row] for row, name in enumerate(formula.names)
    ]
    return Decision(Answer.FOUND, orders_by_start(model, start), used)


def refutation(model: Model, limit: int) -> str:
    """The SMT-LIB text that z3 refutes, for any other solver to check."""
    window = narrow(model, limit)
    return Formula(model, window).text(f"No order has a value of {limit} (in units of {model.problem.time_unit}).")


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
