"""The `expect` blocks for all m of a residue class, from exact peaks and times that are lines in q.

As `pipedsl.claims` for a single m: under the file's costs a claim is computed, with m open; one that names costs is
proved for all of them by the arguments of `pipedsl.cost_proofs`, whose runs are here lines in q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

from pipedsl.check import COSTS, METRICS, RANK_METRICS, RANK_VARIABLE
from pipedsl.claims import FLIPPED
from pipedsl.cost_proofs import Domain, Facts, Vector, bounded, compared, starts_are_paths
from pipedsl.diagnostics import DiagnosticError, Span
from pipedsl.evaluate import Budget, Evaluator, Intrinsic, Value, as_truth, fail, nodes
from pipedsl.lower import lower
from pipedsl.parametric.residue import Residue
from pipedsl.parametric.values import Growing, Scope, Unanalysable, of_line
from pipedsl.parametric.words import Unknown
from pipedsl.program import Costs, Program
from pipedsl.simulate import Metrics, measure, simulate
from pipedsl.symbolic import Polynomial, Ratio, Undecidable
from pipedsl.syntax import Binary, Call, Claim, Compare, Expr, Name
from verify.forall import Linear, ParametricProgram, Prover, Run, Threshold, TooLate, activation_peaks, memory_peaks

TIMES = tuple(METRICS)

MOST_SCANNED = 100_000
"""Sizes at which one claim is computed one after another, before the point from which it is decided."""


@dataclass
class Known:
    """What is proved of a class: the program, and on demand peaks and times, for all q >= `threshold.start`."""

    residue: Residue
    program: ParametricProgram
    prover: Prover
    threshold: Threshold
    _peaks: tuple[Linear, ...] | None = None
    _memory: tuple[Linear, ...] | None = None
    _run: Run | None = None
    _metrics: dict[int, Metrics] = field(default_factory=dict)

    def peaks(self, span: Span) -> tuple[Linear, ...]:
        if self._peaks is None:
            self._peaks = activation_peaks(self.program, self.threshold)
            self._confirm(self._peaks, lambda metrics: metrics.peak_activations, span)
        return self._peaks

    def memory(self, span: Span) -> tuple[Linear, ...]:
        if any(self.program.memory.output):
            raise Unknown(span, "message buffers have a size, and what they take is not analysed for all m")
        if self._memory is None:
            self._memory = memory_peaks(self.program, self.threshold)
            self._confirm(self._memory, lambda metrics: metrics.memory, span)
        return self._memory

    def run(self, span: Span) -> Run:
        """The run under the file's costs."""
        if self._run is None:
            run = self.prover.prove_times(self.program.costs, self.threshold)
            if run is None:
                raise Unknown(span, "the times of a run are not proved to be regular in m")
            lines = (run.makespan, run.span, *run.busy)
            self._confirm(lines, lambda metrics: (metrics.makespan, metrics.span, *metrics.busy), span)
            self._run = run
        return self._run

    def _confirm(self, lines: Sequence[Linear], measured: Callable[[Metrics], Sequence[Fraction]], span: Span) -> None:
        """Compare with the ordinary metrics at two q: no part of the proof, but both must mean the same."""
        for size in (self.threshold.start, self.threshold.start + 1):
            if size not in self._metrics:
                program = self.program.at(size)
                timeline = simulate(program)
                self._metrics[size] = measure(program, timeline, lower(program, timeline))
            if [line.at(size) for line in lines] != list(measured(self._metrics[size])):
                raise Unknown(span, f"the analysis is wrong at m = {self.residue.m(size)}")


def first_failure(claim: Claim, known: Known) -> int | None:
    """The first q >= `known.threshold.start` at which a claim does not hold; None where it holds for all.

    The threshold may rise, and the answer is about what is left. A claim that is not decided raises Unknown; what
    depends on q modulo something, NeedsPeriod.
    """
    judge = _Judge(claim, known)
    try:
        if judge.names & set(COSTS):
            if not judge.holds_for_all_costs():
                raise Unknown(claim.condition.span, "it is not proved for all costs and all m")
            return None
        return judge.first_failure()
    except Unanalysable as error:
        raise Unknown(claim.condition.span, str(error)) from None
    except Undecidable as error:
        raise Unknown(claim.condition.span, f"it is not proved for all costs: {error}") from None
    except TooLate:
        raise Unknown(claim.condition.span, "it is decided only for very large m") from None


class _Judge:
    def __init__(self, claim: Claim, known: Known) -> None:
        self.claim = claim
        self.known = known
        self.names = _names(claim.condition)
        mentioned = self.names | (_names(claim.guard) if claim.guard is not None else set())
        self.about_ranks = RANK_VARIABLE in mentioned and not any(
            parameter.name == RANK_VARIABLE for parameter in known.residue.schedule.header.parameters
        )
        self.slots = {RANK_VARIABLE: 0} if self.about_ranks else {}
        self.ranks = range(known.program.ranks) if self.about_ranks else range(1)
        timed = self.names & set(TIMES) and not self.names & set(COSTS)
        self.run = known.run(claim.condition.span) if timed else None

    # ------------------------------------------------- under the file's costs

    def first_failure(self) -> int | None:
        scope = Scope(Threshold(self.known.threshold.start, self.known.threshold.start + MOST_SCANNED))
        holds = self._holds(scope)
        start = self.known.threshold.start  # peaks and times may have raised it
        for size in range(start, scope.threshold.start):
            if not self._holds_at(size):
                return size
        return None if holds else max(start, scope.threshold.start)

    def _holds(self, scope: Scope) -> bool:
        """Whether the claim holds from the threshold of `scope` on; if not, it fails from there on."""
        return self._true(self.known.residue.values(scope), lambda line: of_line(scope, line))

    def _holds_at(self, size: int) -> bool:
        residue = self.known.residue
        values = residue.values(Scope(Threshold(size, size)))
        numbers = {
            name: _plain(Fraction(value.fractional_line("").at(size))) if isinstance(value, Growing) else value
            for name, value in values.items()
        }
        return self._true(numbers, lambda line: _plain(Fraction(line.at(size))))

    def _true(self, values: Mapping[str, Value], number: Any) -> bool:
        evaluator = self._evaluator({**values, **self._times(number)}, number)
        guard = None
        if self.claim.guard is not None:
            guard = self._evaluator(values, number).compile(self.claim.guard, self.slots)
        condition = evaluator.compile(self.claim.condition, self.slots)
        return all(
            as_truth(condition([rank]), self.claim.condition.span, "a claim")
            for rank in self.ranks
            if guard is None or as_truth(guard([rank]), self.claim.condition.span, "what stands after `when`")
        )

    def _times(self, number: Any) -> dict[str, Value]:
        if self.run is None:
            return {}
        run, ranks = self.run, self.known.program.ranks
        makespan, span = number(run.makespan), number(run.span)
        busy = [number(line) for line in run.busy]
        return {
            "makespan": makespan,
            "span": span,
            "bubble": 1 - _ratio(sum(busy), ranks * makespan) if makespan else 0,
            "span_bubble": 1 - _ratio(max(busy), span) if span else 0,
        }

    def _evaluator(self, constants: Mapping[str, Value], number: Any) -> Evaluator:
        residue, known = self.known.residue, self.known

        def of_rank(name: str) -> Intrinsic:
            def run(rank: Value, span: Span) -> Value:
                if isinstance(rank, Growing):
                    raise Unknown(span, f"the rank of `{name}` depends on m")
                if type(rank) is not int or not 0 <= rank < known.program.ranks:
                    fail("PD107", f"there is no rank {rank}", span)
                lines = known.peaks(span) if name == "peak" else known.memory(span)
                return number(lines[rank])

            return Intrinsic(run)

        intrinsics = {name: of_rank(name) for name in RANK_METRICS}
        return Evaluator(residue.functions(), constants, residue.limits, Budget(residue.limits), intrinsics)

    # ---------------------------------------------------------- for all costs

    def holds_for_all_costs(self) -> bool:
        threshold = self.known.threshold
        scope = Scope(threshold)
        values = self.known.residue.values(scope)
        facts = self._facts(scope)
        guard = None
        if self.claim.guard is not None:
            evaluator = self._evaluator(values, lambda line: of_line(scope, line))
            guard = evaluator.compile(self.claim.guard, self.slots)
        for rank in self.ranks:
            if guard is not None and not as_truth(guard([rank]), self.claim.condition.span, "a guard"):
                continue
            if not all(self._proved(part, facts, rank, scope) for part in _conjuncts(self.claim.condition)):
                return False
        return True

    def _facts(self, scope: Scope) -> _Facts:
        start = self.known.threshold.start
        program = self.known.program.at(start)
        domain = Domain.of(program, self.names & set(COSTS))

        def run(costs: Costs) -> Metrics:
            found = self.known.prover.prove_times(costs, self.known.threshold)
            if found is None:
                raise Undecidable("the times of a run are not proved to be regular in m")
            busy = tuple(of_line(scope, line) for line in found.busy)
            none: Any = None
            makespan, span = of_line(scope, found.makespan), of_line(scope, found.span)
            return Metrics(makespan, none, span, none, busy, (), ())

        return _Facts(program, domain, run, next_program=self.known.program.at(start + 1))

    def _proved(self, part: Expr, facts: Facts, rank: int, scope: Scope) -> bool:
        names = _names(part)
        if not names & {*COSTS, *TIMES}:
            values = self.known.residue.values(scope)
            evaluator = self._evaluator(values, lambda line: of_line(scope, line))
            return as_truth(evaluator.compile(part, self.slots)([rank]), part.span, "a claim")
        if not isinstance(part, Compare):
            raise Undecidable("it is more than comparisons joined by `and`")
        pairs = zip(part.ops, part.operands, part.operands[1:], strict=False)
        return all(self._pair_proved(op, left, right, facts, rank, scope) for op, left, right in pairs)

    def _pair_proved(self, op: str, left: Expr, right: Expr, facts: Facts, rank: int, scope: Scope) -> bool:
        metrics = (_names(left) | _names(right)) & set(TIMES)
        known = self._metric_forms(metrics, facts)
        if metrics <= set(known):
            below, above = (self._form(side, known, facts, rank, scope) for side in (left, right))
            return compared(op, below, above, facts.origin())
        if isinstance(right, Name) and right.id in TIMES:
            op, left, right = FLIPPED[op], right, left
        if not isinstance(left, Name) or left.id not in ("makespan", "span") or _names(right) & set(TIMES):
            raise Undecidable("a metric is not proved to be linear in the costs")
        affine = self._form(right, known, facts, rank, scope).affine()
        if affine is None:
            raise Undecidable("a metric and what it is compared with are not linear in the costs")
        return bounded(facts, left.id, op, (*affine[0], affine[1]))

    def _metric_forms(self, metrics: set[str], facts: Facts) -> dict[str, Ratio]:
        found: dict[str, Ratio] = {}
        for metric, bubble in (("makespan", "bubble"), ("span", "span_bubble")):
            form = facts.linear(metric) if metrics & {metric, bubble} else None
            if form is None:
                continue
            found[metric] = _linear(form)
            busy = tuple(map(sum, zip(*facts.busy(), strict=True))) if bubble == "bubble" else facts.most_busy()
            if busy is not None and any(form) and not facts.idle:  # where nothing takes time, a bubble is 0
                of = self.known.program.ranks if bubble == "bubble" else 1
                found[bubble] = 1 - _linear(cast(Vector, busy)) / (found[metric] * of)
        return found

    def _form(self, expr: Expr, metrics: Mapping[str, Ratio], facts: Facts, rank: int, scope: Scope) -> Ratio:
        names = facts.domain.names
        count = len(names)
        costs: dict[str, Value] = {
            name: _linear(tuple(Fraction(int(i == k)) for i in range(count + 1))) for k, name in enumerate(names)
        }
        if "I" in costs and "W" in costs:
            costs.setdefault("B", costs["I"] + costs["W"])
        parameters = {
            name: _constant(value, count) if isinstance(value, Growing) else value
            for name, value in self.known.residue.values(scope).items()
        }
        evaluator = self._evaluator({**parameters, **costs, **metrics}, lambda line: of_line(scope, line))
        try:
            value = evaluator.compile(expr, self.slots)([rank])
        except DiagnosticError as error:
            raise Undecidable(error.diagnostics[0].message) from None
        if isinstance(value, bool):
            raise Undecidable("it compares truth values")
        return value if isinstance(value, Ratio) else _constant(value, count)


@dataclass
class _Facts(Facts):
    """Facts whose values are lines in q. `program` is that of one q, `next_program` of the next.

    Where the first operations of two ranks have the same microbatch at two q, they have it at every q.
    """

    next_program: Program | None = None

    def convex(self, metric: str) -> bool:
        if metric == "span" and (self.next_program is None or not starts_are_paths(self.next_program)):
            return False
        return super().convex(metric)


def _ratio(above: Value, below: Value) -> Value:
    return Fraction(above) / below if isinstance(above, int) else above / below


def _plain(value: Fraction) -> Value:
    return value.numerator if value.denominator == 1 else value


def _constant(value: Value, variables: int) -> Ratio:
    """A value that may grow with q, as a form in the costs."""
    return Ratio(Polynomial.of({(0,) * variables: value}), Polynomial.constant(1, variables))


def _linear(form: Vector) -> Ratio:
    return Ratio(Polynomial.linear(form[:-1], form[-1]), Polynomial.constant(1, len(form) - 1))


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Binary) and condition.op == "and":
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    else:
        yield condition


def _names(expr: Expr) -> set[str]:
    """The names that an expression mentions; `peak` and `memory` count, other functions do not."""
    found = nodes(expr)
    calls = {node.function for node in found if isinstance(node, Call)} & set(RANK_METRICS)
    return {node.id for node in found if isinstance(node, Name)} | calls
