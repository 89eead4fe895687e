"""The search for orders: takes a Problem, answers with the best orders found and how good they are at least.

Knows nothing of the language. `solve` takes turns, by work done and not by time, until the best orders meet the best
bound:

- `bounds`: arguments that no order escapes give a first lower bound. Often it is met at once.
- `greedy` and `tune`: list scheduling by habits, which are changed and kept where that is no worse. `steady`: the order
  of one period, enumerated and unrolled. `settle`: idle time filled from the begin and from the end (`mirror`) by
  turns. `improve`: moves of one operation along the critical path. `squeeze`: where these are too slow, the best order
  of the rank that takes longest, the others as they are.
- `close`: is there an order within a limit? `exact` asks z3 (`cpsat` another solver), one limit after another from the
  best down. `windows` says when each operation may start under the limit, and which pairs of a rank are in order then;
  `formula` writes the rest, one truth value for each pair that is open; `load` adds what follows from how much a rank
  runs before and after. A limit that is refuted raises the bound.
- `refute`: of more operations, a limit for which there should be work enough, and is lowered where there is not.
  `shave` cuts the windows under it by questions about few microbatches, each solver `kept` for many; where one is used
  up, the limit is refuted. `busy` narrows them by what a rank has to run before and after.
- `loosen`: a stretch of the best orders is left open, all else kept in order, and a solver makes it shorter.

Every answer is judged anew, by the simulator, before it is returned. z3 is loaded when bounds and heuristics do not
meet.
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
from verify.search.solve import Aim, Budget, NothingFound, Proof, Solution, Step, solve

__all__ = [
    "Aim",
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
