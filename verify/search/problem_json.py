"""A search problem as JSON, for the small checker of bounds and for other programs: whole numbers and units."""

from __future__ import annotations

from typing import Any

from pipedsl.program import COMPUTE
from verify.search.problem import Problem


def problem_json(problem: Problem) -> dict[str, Any]:
    """Times in multiples of 1 / `unit` of the file's unit of time, sizes likewise. docs/certificate.md has the keys."""
    tick, grain = problem.time_unit, problem.size_unit
    return {
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "replicas": problem.replicas,
        "placement": list(problem.placement),
        "minimize": problem.objective.value,
        "times": {
            "unit": tick.denominator,
            **{kind.name: [value * tick.numerator for value in problem.duration[kind]] for kind in COMPUTE},
            **{
                name: [value * tick.numerator for value in values]
                for name, values in (("send", problem.send), ("closing", problem.closing), ("beside", problem.beside))
            },
        },
        "sizes": {
            "unit": grain.denominator,
            "activation": [value * grain.numerator for value in problem.activation],
            "held_by_w": [value * grain.numerator for value in problem.held_by_w],
            "cap": [None if value is None else value * grain.numerator for value in problem.cap],
        },
        "strands": [
            [[[op.kind.name, op.stage, op.microbatch] for op in strand] for strand in rank] for rank in problem.strands
        ],
        "fences": [[[op.kind.name, op.stage, op.microbatch] for op in pair] for pair in problem.fences],
    }
