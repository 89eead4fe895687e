"""What z3 refuted, narrowed as it was asked: windows, and clauses that follow from the problem but are quick to use.

The text that says no more than the problem does is `smt_text` of `verify/bound/text.py`; this one is for solvers
that need help with it.
"""

from __future__ import annotations

from verify.search.exact import Answer, decide, without_instants
from verify.search.formula import Formula
from verify.search.model import Model
from verify.search.problem import Infeasible
from verify.search.windows import narrow


def narrowed_text(model: Model, limit: int) -> str | None:
    """SMT-LIB, unsatisfiable where no order is within the limit; None where windows alone show that.

    Where ranks of several chunks have caps, or it is open what a rank begins with, z3 is asked again for the clauses
    about that which refute.
    """
    instants, fine = without_instants(model, limit)
    try:
        formula = Formula(instants, narrow(instants, fine))
    except Infeasible:
        return None
    clauses: tuple[str, ...] = ()
    if formula.lazy or formula.window.spans:
        decision = decide(model, limit)
        clauses = decision.clauses if decision.answer is Answer.REFUTED else ()
    unit = model.problem.time_unit
    comment = (
        f"No order has a {model.problem.objective.value} of {limit * unit}. Expected: unsat.\n"
        "With bounds of starts and clauses that follow from the problem; the same without them is in the file that\n"
        "verify/bound_checker.py names."
    )
    return formula.text(comment, clauses)
