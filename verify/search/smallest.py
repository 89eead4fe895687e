"""The smallest cap with which something is possible: any order at all, or one without a span bubble."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from verify.search.bounds import Bound, lower_bound
from verify.search.model import model_of
from verify.search.problem import Infeasible, Objective, Problem
from verify.search.solve import DEFAULT, Budget, NothingFound, Solution, solve


@dataclass(frozen=True)
class SmallestCap:
    """`cap`: in the file's unit; one for all ranks. `proved`: whether a smaller one is shown not to do.

    `why`: what shows it. `solution`: orders under the cap.
    """

    cap: Fraction
    proved: bool
    why: str
    solution: Solution | None


def smallest_feasible_cap(problem: Problem) -> Fraction:
    """The smallest cap for all ranks under which some order exists, for fully open problems: one microbatch at a time.

    Every rank holds its stages' activations of one microbatch (of one replica) when the last of them runs F; and one
    microbatch after the other needs no more.
    """
    chains = [stages for own in problem.chains for stages in own]
    held = [sum(problem.activation[stage] for stage in stages) for stages in chains]
    return max(held, default=0) * problem.size_unit


def smallest_cap_without_bubble(
    problem: Problem, *, budget: Budget = DEFAULT, seed: int = 0, largest: Fraction | None = None
) -> SmallestCap | None:
    """The smallest cap, the same for all ranks, for which the busiest rank's work is the largest span; None for none.

    Caps are tried upwards, from the smallest that no bound rules out; each step is a refutation or it is not proved.
    """
    loads = [sum(problem.duration[op.kind][op.stage] for strand in rank for op in strand) for rank in problem.strands]
    load = max(loads, default=0)
    aim = problem.with_objective(Objective.SPAN)
    smallest = smallest_feasible_cap(problem)
    whole = [0] * problem.ranks
    for stage, rank in enumerate(problem.placement):
        whole[rank] += problem.activation[stage] * problem.microbatches
    top = max(whole, default=0) * problem.size_unit if largest is None else largest
    unit = problem.size_unit
    low, high = int(smallest / unit), int(top / unit)
    if high < low or _ruled_out(aim, high * unit, load) is not None:
        return None
    why = "no smaller cap admits any order"
    ruled: Bound | None = None
    while low < high:
        middle = (low + high) // 2
        bound = _ruled_out(aim, middle * unit, load)
        if bound is None:
            high = middle
        else:
            low, ruled = middle + 1, bound
    if ruled is not None:
        why = f"{ruled.argument} on rank {ruled.rank}: a smaller cap forces a span of {ruled.value * problem.time_unit}"
    proved = True
    for cap in range(low, int(top / unit) + 1):
        try:
            found = solve(aim.with_cap(cap * unit), budget=budget, seed=seed, goal=load * problem.time_unit)
        except NothingFound:
            proved = False
            continue
        except Infeasible:
            found = None
        if found is not None and found.value <= load * problem.time_unit:
            return SmallestCap(cap * unit, proved, why, found)
        if found is None or found.bound > load * problem.time_unit:
            why = f"a span of {load * problem.time_unit} under the next smaller cap is refuted"
        else:
            proved = False
    return None


def _ruled_out(problem: Problem, cap: Fraction, load: int) -> Bound | None:
    """The bound that says no under a cap, if one does."""
    try:
        found = lower_bound(model_of(problem.with_cap(cap)))
    except Infeasible as error:
        return Bound(load + 1, "path", error.rank)
    return found if found.value > load else None


__all__ = ["SmallestCap", "smallest_cap_without_bubble", "smallest_feasible_cap"]
