"""The search for orders: takes a Problem, answers with the best orders found and how good they are at least.

Knows nothing of the language. z3 is loaded when bounds and heuristics do not meet.
"""

from verify.search.bounds import Bound, lower_bound
from verify.search.judge import Invalid, Judgement, judge, program_of
from verify.search.model import model_of
from verify.search.problem import (
    Infeasible,
    Objective,
    Operation,
    Orders,
    Problem,
    Strand,
    make_problem,
    open_strands,
    uniform_costs,
)
from verify.search.repeat import Repeat, Repeating, repeat_of, repeating
from verify.search.smallest import SmallestCap, smallest_cap_without_bubble, smallest_feasible_cap
from verify.search.solve import Budget, NothingFound, Proof, Solution, Step, solve

__all__ = [
    "Bound",
    "Budget",
    "Infeasible",
    "Invalid",
    "Judgement",
    "NothingFound",
    "Objective",
    "Operation",
    "Orders",
    "Problem",
    "Proof",
    "Repeat",
    "Repeating",
    "SmallestCap",
    "Solution",
    "Step",
    "Strand",
    "judge",
    "lower_bound",
    "make_problem",
    "model_of",
    "open_strands",
    "program_of",
    "repeat_of",
    "repeating",
    "smallest_cap_without_bubble",
    "smallest_feasible_cap",
    "solve",
    "uniform_costs",
]
