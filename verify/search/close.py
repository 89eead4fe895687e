"""z3 asked at one limit after another, until the best orders are shown to be the best.

One less than the best first: where that is refuted all is done, and where it is found the next limit is farther below,
since every order found costs about the same, however good it has to be. What is not decided within its share may be
near the optimum; a limit below is easier to refute. Where W holds less than the whole, orders that keep to the caps
even if it held all are sooner found, and often as good.
"""

from __future__ import annotations

from dataclasses import replace

from verify.search.exact import Answer
from verify.search.model import Model, model_of
from verify.search.problem import Infeasible, Problem
from verify.search.standing import Standing, ask

OPERATIONS = 1600  # the fewer operations, the more work for z3 beside that for heuristics: this many an equal share
MOST = 8  # times as much work for z3, at most
FEW = 400  # operations, up to which most limits are decided with a part of what is left
PART = 4
LOWER = 2  # limits below one that was not decided


def close(standing: Standing, share: float) -> None:
    """Find better orders, and refute that there are, as long as that leads on. `share`: work of a heuristic's turn.

    Raises `Infeasible` where no order keeps to the caps.
    """
    share *= max(1.0, min(MOST, OPERATIONS / max(1, len(standing.model))))
    if len(standing.model) <= FEW:
        share = max(share, standing.left / PART)
    if standing.goal is not None:
        _ask(standing, standing.goal, share)
        return
    if standing.rows is None:
        problem = standing.problem
        longest = sum(standing.model.duration) + 2 * sum(problem.send) * problem.microbatches + problem.longest_close
        if _ask(standing, longest, share) is Answer.REFUTED:
            raise Infeasible(-1, 0, "z3 refutes that any order keeps to the caps")
    stricter = _stricter(standing.problem)
    step, refuted, undecided = 1, False, 0
    while not standing.done and standing.rows is not None and standing.left > 0.01:
        target = max(standing.low, standing.value - step)
        if stricter is not None and not _found(standing, stricter, target, share):
            stricter = None  # nor is there any farther below
        answer = Answer.FOUND if stricter is not None else _ask(standing, target, share)
        if answer is Answer.REFUTED:
            if undecided:
                return
            refuted = True
        if answer is not Answer.UNKNOWN:
            step = max(1, (standing.value - standing.low) // 2) if refuted else 2 * step
        else:
            undecided += 1
            share /= 2
            if target == standing.low or undecided > LOWER:
                return
            step = standing.value - (standing.low + target) // 2


def _stricter(problem: Problem) -> Model | None:
    """The problem with W holding the whole until its end; None where it does so anyway, or nothing is capped."""
    if problem.held_by_w == problem.activation or all(cap is None for cap in problem.cap):
        return None
    return model_of(replace(problem, held_by_w=problem.activation))


def _found(standing: Standing, stricter: Model, limit: int, share: float) -> bool:
    found = ask(standing, stricter, limit, share)
    if found.answer is Answer.FOUND and found.rows is not None:
        standing.take(found.rows, found.by)
    return standing.value <= limit


def _ask(standing: Standing, limit: int, share: float) -> Answer:
    found = ask(standing, standing.model, limit, share)
    if found.answer is Answer.REFUTED:
        standing.raise_bound(limit + 1, f"refuted by {found.by}")
    elif found.answer is Answer.FOUND and found.rows is not None:
        standing.take(found.rows, found.by)
        if standing.value > limit:  # an order that is not accepted, or not confirmed by the simulator, decides nothing
            return Answer.UNKNOWN
    return found.answer


__all__ = ["FEW", "close"]
