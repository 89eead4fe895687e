"""The same problem for fewer microbatches, where what works for many is looked for with less work."""

from __future__ import annotations

from dataclasses import replace

from pipedsl.program import Kind
from verify.search.model import Model, model_of
from verify.search.problem import Problem, open_strands
from verify.search.tune import Manner, Tuned, tune

KEPT = 4  # manners that are tried on the whole problem


def shorter(problem: Problem, microbatches: int) -> Problem | None:
    """The problem for so many microbatches; None where its orders are not fully open."""
    if problem.fences or problem.replicas > 1:
        return None
    split = any(
        operation.kind == Kind.W for strands in problem.strands for strand in strands for operation in strand[:1]
    )
    if any(
        sorted(strand for strand in given if strand) != sorted(strand for strand in plain if strand)
        for given, plain in zip(
            problem.strands,
            open_strands(problem.placement, problem.ranks, problem.microbatches, split),
            strict=True,
        )
    ):
        return None
    strands = open_strands(problem.placement, problem.ranks, microbatches, split)
    return replace(problem, microbatches=microbatches, strands=strands)


def short_models(model: Model) -> list[Model]:
    """Problems that are much shorter: of three microbatches for every two ranks, and of twice as many.

    The first is soon at its bound where there is memory enough, and then says nothing of how what is under way goes on.
    """
    ranks, microbatches = model.problem.ranks, model.problem.microbatches
    found = [shorter(model.problem, few) for few in (3 * ranks // 2, 3 * ranks) if 2 * few <= microbatches]
    return [model_of(problem) for problem in found if problem is not None]


def good_manners(short: Model, goal: int, tries: int, seed: int, stop: float) -> tuple[list[Manner], int]:
    """The last few that were better than all before on a short problem, the best first; and how many were tried."""
    better: list[Manner] = []

    def notice(found: Tuned) -> None:
        better.append(found.manner)

    found = tune(short, goal, tries, seed, stop, None, notice)
    return better[: -KEPT - 1 : -1], tries if found is None else found.tried
