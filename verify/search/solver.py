"""z3 as it is used here: its settings for difference logic, its own count of work, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from verify.search.interruptible import ask

# z3's own units of work that take about a second, by what it reasons with.
UNITS = 5_000_000
UNITS_WITH_SUMS = 8_000_000
MANY = 400  # operations, above which a unit takes longer in proportion: the formula outgrows the caches
DIFFERENCES = 1  # its solver for difference logic by shortest paths: ten times as fast here as the others
FAR = 1 << 60
LARGEST = (1 << 32) - 1  # z3 takes no larger limit, and takes one for its remainder
OFTEN = 3  # starting anew every so many conflicts: up to twice as fast as more and more seldom


def new_solver(seed: int, sums: bool = False) -> Any:
    """A solver in a context of its own, so that the work is counted from nothing. `sums`: not differences alone."""
    import z3

    solver = z3.SimpleSolver(z3.Context())
    solver.set("ctrl_c", False)  # which `ask` deals with
    solver.set("smt.random_seed", seed)
    solver.set("smt.auto_config", False)
    solver.set("smt.restart_strategy", OFTEN)
    if not sums:
        solver.set("smt.arith.solver", DIFFERENCES)
        solver.set("smt.relevancy", 0)
    return solver


def suggest(solver: Any, near: Mapping[str, int]) -> None:
    """Values of integers, all declared, near which to look first. z3 before 4.13.3, which takes none, looks as ever."""
    import z3

    if not hasattr(solver, "set_initial_value"):
        return
    for name, value in near.items():
        solver.set_initial_value(z3.Int(name, solver.ctx), z3.IntVal(value, solver.ctx))


def values(solver: Any, names: Sequence[str], otherwise: Sequence[int]) -> list[int]:
    """Of integers, in what was found; `otherwise` where they do not matter."""
    import z3

    model = solver.model()
    found = [model[z3.Int(name, solver.ctx)] for name in names]
    return [usual if value is None else value.as_long() for value, usual in zip(found, otherwise, strict=True)]


def units(operations: int, sums: bool) -> int:
    """Of z3, in one of work. `sums`: as of `new_solver`."""
    return (UNITS_WITH_SUMS if sums else UNITS) * MANY // max(MANY, operations)


def stop_after(seconds: float) -> float:
    """By the clock; 0 for never."""
    return monotonic() + seconds if seconds else float("inf")


def check(solver: Any, most: int = FAR, stop: float = float("inf"), *assumed: Any) -> Any:
    """z3's answer with so many more units, before the clock says `stop`, where what is assumed is true. Ctrl-C ends it
    and is then raised."""
    if most < FAR:
        solver.set("rlimit", min(max(1, most), LARGEST))
    if stop < float("inf"):
        solver.set("timeout", min(max(1, int((stop - monotonic()) * 1000)), LARGEST))
    return ask(partial(solver.check, *assumed), partial(_interrupt, solver.ctx))


def _interrupt(context: Any) -> None:
    import z3

    with suppress(z3.Z3Exception):  # in which its question has just ended
        context.interrupt()


def counted(solver: Any) -> int | None:
    """What z3 counts as work, so far; None where it does not say."""
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else None  # noqa: SIM118


__all__ = ["DIFFERENCES", "FAR", "check", "counted", "new_solver", "stop_after", "suggest", "units", "values"]
