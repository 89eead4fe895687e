"""A solver that is kept for many questions about the same operations, as what it learns of one holds for the next.

What a solver learns follows from what was asserted, and not from what was only assumed for one question (Een and
Sorensson 2003). So windows that have become narrower for good are asserted, and the window a question is about is
assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verify.search.exact import Answer, Decision
from verify.search.formula import Formula
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible
from verify.search.solver import FAR, check, counted, new_solver, stop_after, suggest, units, values
from verify.search.windows import Window, narrow

SMALL = 230  # operations, above which a unit takes longer in proportion, as less is counted of what is known


class Kept:
    """`earliest`, `latest`: starts as asserted so far. What it finds may hold too much: only refutations are proofs.

    Only where every operation takes time, and for makespans.
    """

    def __init__(
        self,
        model: Model,
        window: Window,
        seed: int,
        like: Sequence[int] | None = None,
        more: Callable[[Formula], list[str]] | None = None,
    ) -> None:
        """`window`: of everything that will be asked. `like`: starts, near which to look first. `more`: assertions."""
        formula = Formula(model, window, loads=False)
        self.formula = formula
        if more is not None:
            formula.lines += more(formula)
        self.names, self.earliest, self.latest = formula.names, list(window.earliest), list(window.latest)
        self.solver = new_solver(seed, formula.sums)
        self.solver.from_string(formula.assertions())
        if like is not None:
            suggest(self.solver, formula.near(like))
        self.unit = units(len(model), formula.sums) * SMALL // max(SMALL, len(model))
        self.used = self.asked = 0

    def narrow(self, earliest: Sequence[int], latest: Sequence[int]) -> None:
        """For good."""
        for row in range(len(self.names)):
            if earliest[row] > self.earliest[row]:
                self.earliest[row] = earliest[row]
                self.solver.add(self._start(row) >= earliest[row])
            if latest[row] < self.latest[row]:
                self.latest[row] = latest[row]
                self.solver.add(self._start(row) <= latest[row])

    def add(self, lines: Sequence[str]) -> None:
        """Assertions, for good."""
        import z3

        if lines:
            text = "\n".join((*self.formula.declared, *lines))
            self.solver.add(z3.parse_smt2_string(text, ctx=self.solver.ctx))

    def decide(
        self,
        model: Model,
        limit: int,
        *,
        work: float,
        seconds: float = 0,
        narrowed: Narrowed = NOTHING,
        also: Sequence[str] = (),
        **_: Any,
    ) -> Decision:
        """As `exact.decide`, of which it takes all options: is there an order with every start as `narrowed` says?

        `also`: what else is to be so.
        """
        import z3

        try:
            window = narrow(model, limit, narrowed=narrowed)
        except Infeasible:
            return Decision(Answer.REFUTED, None, 0, "windows")
        assumed = z3.Bool(f"asked.{self.asked}", self.solver.ctx)
        self.asked += 1
        for row, least in narrowed.starts:
            if least > self.earliest[row]:
                self.solver.add(z3.Implies(assumed, self._start(row) >= least))
        for row, tail in narrowed.ends:
            most = limit - tail - model.duration[row]
            if most < self.latest[row]:
                self.solver.add(z3.Implies(assumed, self._start(row) <= most))
        if also:
            self.add([f"(declare-const {assumed} Bool)", *(f"(assert (=> {assumed} {each}))" for each in also)])
        answer = check(self.solver, int(min(work * self.unit, FAR)) if work else FAR, stop_after(seconds), assumed)
        before, self.used = self.used, counted(self.solver) or self.used
        taken = (self.used - before) / self.unit
        found = values(self.solver, self.names, window.earliest) if answer == z3.sat else None
        self.solver.add(z3.Not(assumed))
        if answer == z3.unsat:
            return Decision(Answer.REFUTED, None, taken)
        return Decision(Answer.UNKNOWN if found is None else Answer.FOUND, None, taken, start=found)

    def _start(self, row: int) -> Any:
        import z3

        return z3.Int(self.names[row], self.solver.ctx)


__all__ = ["Kept"]
