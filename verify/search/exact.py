"""Is there an order whose objective is at most a limit? z3 answers, in integer difference logic.

One integer per operation, its start. Pairs of one rank that no argument orders get a truth value, "x before y"; those
of two strands x and y form a staircase, since x before y implies the one before x before y, and x before the one
after y. Memory is clauses over the same truth values: how many of a strand come before F[j] is what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pipedsl.program import Kind
from verify.search.bounds import Chains, chains, in_order, memory_edges
from verify.search.model import Model, run
from verify.search.problem import Infeasible, Objective
from verify.search.windows import Window, narrow

if TYPE_CHECKING:
    import z3


class Answer(Enum):
    FOUND = "found"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Decision:
    """`rows`: orders at most at the limit, where FOUND. `work`: in z3's own units of work."""

    answer: Answer
    rows: list[list[int]] | None
    work: int


class Encoding:
    """The formula for one model and limit. `literal(x, y)` says that x ends before y starts."""

    def __init__(self, model: Model, limit: int, window: Window) -> None:
        import z3

        self.z3 = z3
        self.model, self.limit, self.window = model, limit, window
        self.starts = [z3.Int(f"s{row}") for row in range(len(model))]
        self.truths: dict[tuple[int, int], Any] = {}
        self.clauses: list[Any] = []
        self._times()
        for pairs in model.strands:
            for one, other in combinations(pairs, 2):
                self._staircase(one, other)
        for r, room in enumerate(model.room):
            if room is not None:
                self._memory(r, room)

    def literal(self, x: int, y: int) -> Any:
        """x before y: True, False, or a formula."""
        known = self.window.known(x, y)
        if known is not None:
            return known
        found = self.truths.get((x, y))
        if found is not None:
            return found
        return self.z3.Not(self.truths[y, x])

    def _times(self) -> None:
        model, window, starts = self.model, self.window, self.starts
        for row, start in enumerate(starts):
            self.clauses += [start >= window.earliest[row], start <= window.latest[row]]
        for y, items in enumerate(window.before):
            for x, gap in items:
                self.clauses.append(starts[y] - starts[x] >= model.duration[x] + gap)

    def _staircase(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        """The truth values of two strands of a rank, and what ties them to the starts and to each other."""
        model, starts, z3 = self.model, self.starts, self.z3
        for x in range(*one):
            for y in range(*other):
                if self.window.known(x, y) is None:
                    truth = z3.Bool(f"b{x}_{y}")
                    self.truths[x, y] = truth
                    self.clauses.append(z3.Or(z3.Not(truth), starts[y] - starts[x] >= model.duration[x]))
                    self.clauses.append(z3.Or(truth, starts[x] - starts[y] >= model.duration[y]))
        for x in range(*one):
            for y in range(*other):
                if (x, y) not in self.truths:
                    continue
                for left, right, inside in ((x - 1, y, x > one[0]), (x, y + 1, y + 1 < other[1])):
                    implied = self.truths.get((left, right)) if inside else None
                    if implied is not None:
                        self.clauses.append(z3.Or(z3.Not(self.truths[x, y]), implied))

    def _memory(self, r: int, room: int) -> None:
        model = self.model
        kinds = [model.kind[first] for first, last in model.strands[r] if first < last]
        simple = sorted(kinds) == sorted((int(Kind.F), int(Kind.I), int(Kind.W)))
        if simple and in_order(model)[r]:
            self._memory_of_one_chunk(r, room)
        elif sorted(kinds) != sorted((int(Kind.F), int(Kind.B))) or not in_order(model)[r]:
            self._memory_by_sums(r, room)
        # F and B of one chunk: the edges that every order keeps to say it all.

    def _memory_of_one_chunk(self, r: int, room: int) -> None:
        """F[j] fits when enough I and W are before it: for every number of I, how many W are needed."""
        model, z3 = self.model, self.z3
        by_kind = {model.kind[first]: (first, last) for first, last in model.strands[r]}
        forwards, inputs, weights = (by_kind[int(kind)] for kind in (Kind.F, Kind.I, Kind.W))
        for j, f in enumerate(range(*forwards)):
            whole, held = model.take[f], model.give[weights[0]]
            if not held:
                continue
            for done in range(j + 1):
                # With at most `done` I before F[j]: (j + 1) whole - done (whole - held) - W held must fit.
                over = (j + 1) * whole - done * (whole - held) - room
                needed = -(-over // held) if over > 0 else 0
                if not needed:
                    break
                more_inputs = self.literal(inputs[0] + done, f) if done < j else False
                enough = self.literal(weights[0] + needed - 1, f) if needed <= done else False
                if more_inputs is True or enough is True:
                    continue
                self.clauses.append(z3.Or(more_inputs, enough))

    def _memory_by_sums(self, r: int, room: int) -> None:
        """What is held when each F starts, as a sum over the operations before it."""
        model, z3 = self.model, self.z3
        rows = [row for first, last in model.strands[r] for row in range(first, last)]
        for f in rows:
            if not model.take[f]:
                continue
            left, terms = room - model.take[f], []
            for row in rows:
                change = model.take[row] - model.give[row]
                if row == f or not change:
                    continue
                before = self.before_in_rank(row, f)
                if before is True:
                    left -= change
                elif before is not False:
                    terms.append((before, change))
            if sum(change for _, change in terms if change > 0) > left:
                self.clauses.append(z3.PbLe(terms, left))

    def before_in_rank(self, x: int, y: int) -> Any:
        if self.model.strand[x] == self.model.strand[y]:
            return x < y
        return self.literal(x, y)


def decide(
    model: Model, limit: int, *, work: int = 0, seconds: float = 0, seed: int = 0, window: Window | None = None
) -> Decision:
    """Find orders whose objective is at most `limit`, or refute that there are any.

    `work`: z3's limit, 0 for none; the same work gives the same answer. `seconds`: an outer stop, 0 for none.
    """
    try:
        found = narrow(model, limit) if window is None else window
    except Infeasible:
        return Decision(Answer.REFUTED, None, 0)
    encoding = Encoding(model, limit, found)
    z3 = encoding.z3
    solver = z3.SolverFor("QF_IDL")
    solver.set("random_seed", seed)
    if work:
        solver.set("rlimit", work)
    if seconds:
        solver.set("timeout", max(1, int(seconds * 1000)))
    solver.add(*encoding.clauses)
    answer = solver.check()
    used = _work_of(solver)
    if answer == z3.unsat:
        return Decision(Answer.REFUTED, None, used)
    if answer != z3.sat:
        return Decision(Answer.UNKNOWN, None, used)
    assignment = solver.model()
    start = [assignment.eval(variable, model_completion=True).as_long() for variable in encoding.starts]
    return Decision(Answer.FOUND, orders_by_start(model, start), used)


def orders_by_start(model: Model, start: Sequence[int]) -> list[list[int]]:
    """Every rank's operations by their starts; those of no duration before what starts with them."""
    return [
        sorted((row for first, last in pairs for row in range(first, last)), key=lambda row: (start[row], start[row] + model.duration[row], row))
        for pairs in model.strands
    ]


def _work_of(solver: Any) -> int:
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0  # noqa: SIM118
