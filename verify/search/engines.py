"""Who decides whether there is an order within a limit: z3 or CP-SAT, whose solvers are loaded when they are asked."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

from verify.search.exact import Decision
from verify.search.model import model_of
from verify.search.problem import Problem

Engine = Literal["z3", "cpsat"]
NAMES: tuple[Engine, ...] = ("z3", "cpsat")
# Above, it has not been seen to decide anything in a minute.
MOST_OPERATIONS: dict[Engine, int] = {"z3": 900, "cpsat": 2500}
FAR = 2**40  # CP-SAT wants sums of what it reasons with below 2**63


def decider(engine: Engine) -> Callable[..., Decision]:
    """`decide` of `exact` or of `cpsat`, which answer the same question."""
    if engine == "cpsat":
        from verify.search import cpsat

        return cpsat.decide
    from verify.search import exact

    return exact.decide


def keeps(engine: Engine) -> bool:
    """Whether what its solver learned can be kept for the next question."""
    return engine == "z3"


def suited(engine: Engine, problem: Problem) -> Engine:
    """The engine, or z3 where times or sizes, in the problem's units, may be too large for CP-SAT."""
    if engine != "cpsat":
        return engine
    model = model_of(problem)
    longest = sum(model.duration) + 2 * sum(problem.send) * problem.microbatches + problem.longest_close
    if not all(model.duration):
        longest *= len(model) + 1  # the finer unit of `without_instants`
    # A window ends at most so long after a limit, which is at most so long.
    sizes = (abs(room) for room in model.room if room is not None)
    return "z3" if 3 * longest > FAR or max(sizes, default=0) > FAR else engine


def best_installed() -> Engine:
    """CP-SAT where it is installed, as it has been measured to be quicker (benchmarks/engines.py); else z3."""
    return "cpsat" if find_spec("ortools") is not None else "z3"
