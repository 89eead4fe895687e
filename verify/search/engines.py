"""Who decides whether there is an order within a limit: z3 or CP-SAT, whose solvers are loaded when they are asked."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

from verify.search.exact import Decision

Engine = Literal["z3", "cpsat"]
NAMES: tuple[Engine, ...] = ("z3", "cpsat")
# Above, it has not been seen to decide anything in a minute.
MOST_OPERATIONS: dict[Engine, int] = {"z3": 900, "cpsat": 2500}


def decider(engine: Engine) -> Callable[..., Decision]:
    """`decide` of `exact` or of `cpsat`, which answer the same question."""
    if engine == "cpsat":
        from verify.search import cpsat

        return cpsat.decide
    from verify.search import exact

    return exact.decide


def best_installed() -> Engine:
    """CP-SAT where it is installed, as it has been measured to be quicker (benchmarks/engines.py); else z3."""
    return "cpsat" if find_spec("ortools") is not None else "z3"
