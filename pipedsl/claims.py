"""The `expect` blocks of a schedule: each claim proved, refuted, or left open (PD502).

A claim without costs is computed, exactly, under the costs of the program. One that names costs is about all values
>= 0 of those, uniform over stages, where both its sides are defined and something takes time, or nothing does because
the file has it so; `pipedsl.cost_proofs` has the arguments. A claim that mentions `r`, where no parameter is called so,
is about every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pipedsl.check import COSTS, METRICS, RANK_METRICS, RANK_VARIABLE
from pipedsl.cost_proofs import Domain, Facts, Vector, bounded, compared
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.evaluate import Budget, Evaluator, Intrinsic, Value, as_int, as_truth, fail, nodes, show
from pipedsl.program import Costs, Program
from pipedsl.simulate import Metrics
from pipedsl.symbolic import Polynomial, Ratio, Undecidable
from pipedsl.syntax import Binary, Call, Claim, Compare, ExpectBlock, Expr, Function, Name, Schedule

FLIPPED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}
SCALES = (1, 1_000, 1_000_000_000)
POINTS = ((2, 3, 5, 7, 11), (7, 5, 3, 2, 1), (1, 10, 100, 30, 300), (30, 1, 7, 100, 10))
"""Costs to try a claim at, beside those along the axes."""


def check_claims(
    schedule: Schedule,
    program: Program,
    metrics: Metrics,
    resimulate: Callable[[Costs], Metrics],
    own_costs: bool = True,
    limits: Limits | None = None,
) -> list[Diagnostic]:
    """PD501 for every claim that does not hold, PD502 for every one that is neither proved nor refuted.

    `metrics` are the program's under its own costs, `resimulate` gives those under others. With `own_costs` False the
    program's costs are not the file's (a profile), and claims about time in plain numbers are passed over.
    """
    limits = limits or Limits()
    judge = _Judge(program, metrics, _functions(schedule), limits, Budget(limits), resimulate, own_costs)
    found: list[Diagnostic] = []
    for claim in claims_of(schedule):
        try:
            found.extend(judge.claim(claim))
        except DiagnosticError as error:
            found.extend(error.diagnostics)
    return found


@dataclass(frozen=True)
class ClaimCounts:
    """How many claims a text makes, and of how many it is not all that they hold.

    `absent`: those whose `when` is true of nothing here. `passed_over`: of the others, those about times in plain
    numbers, where the durations are a profile's. `even`: of the others, those that name costs which differ from stage
    to stage: they are about stages that take equally long.
    """

    all: int = 0
    absent: int = 0
    passed_over: int = 0
    even: int = 0


def count_claims(
    schedule: Schedule, program: Program, metrics: Metrics, own_costs: bool, limits: Limits | None = None
) -> ClaimCounts:
    """The claims of a schedule; `program` and `metrics` under the costs that are shown."""
    values = _Values(program, metrics, _functions(schedule), limits or Limits(), Budget(limits or Limits()))
    claims = claims_of(schedule)
    present = [claim for claim in claims if not values.absent(claim)]
    passed_over = sum(not own_costs and is_about_own_times(claim) for claim in present)
    return ClaimCounts(len(claims), len(claims) - len(present), passed_over, sum(map(values.uneven, present)))


def claims_of(schedule: Schedule) -> list[Claim]:
    return [claim for item in schedule.items if isinstance(item, ExpectBlock) for claim in item.claims]


def is_about_own_times(claim: Claim) -> bool:
    """Whether it is about times in plain numbers, so under the file's own costs alone."""
    names = _names(claim.condition)
    return bool(names & set(METRICS)) and not names & set(COSTS)


def _functions(schedule: Schedule) -> dict[str, Function]:
    return {item.name: item for item in schedule.items if isinstance(item, Function)}


@dataclass(frozen=True)
class _Failure:
    """Why a condition is false: the part of it that is, and the values there."""

    span: Span
    text: str


@dataclass(frozen=True)
class _Values:
    """What the names in claims stand for."""

    program: Program
    metrics: Metrics
    functions: Mapping[str, Function]
    limits: Limits
    budget: Budget

    def ranks(self, claim: Claim) -> list[int]:
        """The ranks that the claim is about: those its guard admits. A claim about no rank stands as rank 0."""
        guard, names = claim.guard, _names(claim.condition)
        every = RANK_VARIABLE not in self.program.params and RANK_VARIABLE in names | (
            _names(guard) if guard else set()
        )
        ranks = list(range(self.program.ranks)) if every else [0]
        if guard is None:
            return ranks
        admits = self._evaluator({}).compile(guard, self._slots())
        return [rank for rank in ranks if as_truth(admits([rank]), guard.span, "what stands after `when`")]

    def absent(self, claim: Claim) -> bool:
        """Whether its guard is true of nothing; one that cannot be told is a finding of its own."""
        try:
            return not self.ranks(claim)
        except DiagnosticError:
            return False

    def uneven(self, claim: Claim) -> bool:
        """Whether it names a cost that the stages have different ones of."""
        domain = Domain.of(self.program, _names(claim.condition) & set(COSTS))
        return any(len(set(domain.own_of(name))) > 1 for name in domain.names)

    def _slots(self) -> dict[str, int]:
        return {} if RANK_VARIABLE in self.program.params else {RANK_VARIABLE: 0}

    def _evaluator(self, constants: Mapping[str, Value]) -> Evaluator:
        intrinsics = {
            "peak": self._of_rank("peak", self.metrics.peak_activations),
            "memory": self._of_rank("memory", self.metrics.memory),
        }
        return Evaluator(self.functions, {**self.program.params, **constants}, self.limits, self.budget, intrinsics)

    def _of_rank(self, name: str, values: tuple[Fraction, ...]) -> Intrinsic:
        def run(rank: Value, span: Span) -> Value:
            rank = as_int(rank, span, f"the rank of `{name}`")
            if not 0 <= rank < len(values):
                fail("PD107", f"there is no rank {rank}: the ranks are 0 .. {len(values) - 1}", span)
            return _plain(values[rank])

        return Intrinsic(run)


@dataclass(frozen=True)
class _Judge(_Values):
    """What claims are judged by."""

    resimulate: Callable[[Costs], Metrics]
    own_costs: bool

    def claim(self, claim: Claim) -> list[Diagnostic]:
        ranks, costs = self.ranks(claim), _names(claim.condition) & set(COSTS)
        if not ranks:
            return []
        if costs:
            facts = Facts(self.program, Domain.of(self.program, costs), self.resimulate)
            return self._for_all_costs(claim, ranks, facts)
        if not self.own_costs and is_about_own_times(claim):
            return []
        return self._for_own_costs(claim, ranks)

    # ------------------------------------------------- under the file's costs

    def _for_own_costs(self, claim: Claim, ranks: list[int]) -> list[Diagnostic]:
        evaluator = self._evaluator(_times(self.metrics))
        holds = evaluator.compile(claim.condition, self._slots())
        bad = [rank for rank in ranks if not as_truth(holds([rank]), claim.condition.span, "a claim")]
        if not bad:
            return []
        failure = self._failure(claim.condition, evaluator, bad[0])
        notes = [self._given()]
        if RANK_VARIABLE in _names(claim.condition):
            more = "" if len(bad) == 1 else f", and on {len(bad) - 1} more"
            notes.insert(0, f"on rank {bad[0]}{more}")
        return [Diagnostic("PD501", f"this does not hold: {failure.text}", failure.span, notes=tuple(notes))]

    def _failure(self, condition: Expr, evaluator: Evaluator, rank: int) -> _Failure:
        """The first comparison that makes a condition false, with both values, where there is one."""
        slots = self._slots()
        for part in _conjuncts(condition):
            if evaluator.compile(part, slots)([rank]):
                continue
            for op, left, right in _pairs(part) if isinstance(part, Compare) else ():
                compare = Compare((op,), (left, right), left.span.to(right.span))
                if not evaluator.compile(compare, slots)([rank]):
                    sides = (_side(side, evaluator.compile(side, slots)([rank])) for side in (left, right))
                    return _Failure(
                        compare.span, " and ".join(filter(None, sides)) or f"`{compare.span.text}` is false"
                    )
            return _Failure(part.span, f"`{part.span.text}` is false")
        return _Failure(condition.span, f"`{condition.span.text}` is false")

    def _given(self) -> str:
        return "with " + ", ".join(f"{name} = {value}" for name, value in self.program.params.items())

    # ---------------------------------------------------------- for all costs

    def _for_all_costs(self, claim: Claim, ranks: list[int], facts: Facts) -> list[Diagnostic]:
        """Prove; where that fails, look for costs that refute; else leave it open."""
        why = ""
        for rank in ranks:
            try:
                if all(self._proved(part, facts, rank) for part in _conjuncts(claim.condition)):
                    refuted = self._refuted_at(_own_point(facts), claim, facts, rank) if facts.idle else None
                    if refuted is not None:
                        return [refuted]
                    continue
                why = why or "no argument that pipedsl knows proves it"
            except Undecidable as error:
                why = why or str(error)
            refuted = self._refuted(claim, facts, rank)
            if refuted is not None:
                return [refuted]
        if not why:
            return []
        names = ", ".join(facts.domain.names)
        return [
            Diagnostic(
                "PD502",
                f"no costs tried refute this, but it is not proved for all {names} >= 0: {why}",
                claim.condition.span,
                notes=(self._given(),),
                help="state it in plain numbers, or as a bound that is linear in the costs",
            )
        ]

    def _refuted(self, claim: Claim, facts: Facts, rank: int) -> Diagnostic | None:
        own = [_own_point(facts)] if facts.idle else []
        points = (at for at in _samples(facts.domain) if facts.metrics(at).makespan)
        return next(filter(None, (self._refuted_at(at, claim, facts, rank) for at in (*own, *points))), None)

    def _refuted_at(self, at: Vector, claim: Claim, facts: Facts, rank: int) -> Diagnostic | None:
        costs = dict(zip(facts.domain.names, map(_plain, at), strict=False))
        evaluator = self._evaluator({**_with_backward(costs), **_times(facts.metrics(at))})
        try:
            if evaluator.compile(claim.condition, self._slots())([rank]):
                return None
            failure = self._failure(claim.condition, evaluator, rank)
        except DiagnosticError as error:
            if all(each.code == "PD109" for each in error.diagnostics):
                return None  # a side is not defined at these costs
            raise
        under = ", ".join(f"{name} = {show(value)}" for name, value in costs.items())
        on = (f"on rank {rank}",) if RANK_VARIABLE in _names(claim.condition) else ()
        return Diagnostic(
            "PD501",
            f"this does not hold for all costs: with {under}, {failure.text}",
            failure.span,
            notes=(*on, self._given()),
            help="costs that a claim names stand for every value, the same on all stages; the others are the file's",
        )

    def _proved(self, part: Expr, facts: Facts, rank: int) -> bool:
        if not _names(part) & {*COSTS, *METRICS}:
            return as_truth(self._evaluator({}).compile(part, self._slots())([rank]), part.span, "a claim")
        if not isinstance(part, Compare):
            raise Undecidable("it is more than comparisons joined by `and`")
        return all(self._pair_proved(op, left, right, facts, rank) for op, left, right in _pairs(part))

    def _pair_proved(self, op: str, left: Expr, right: Expr, facts: Facts, rank: int) -> bool:
        metrics = (_names(left) | _names(right)) & set(METRICS)
        known = self._metric_forms(metrics, facts)
        if metrics <= set(known):
            below, above = (self._form(side, known, facts, rank) for side in (left, right))
            return compared(op, below, above, facts.origin())
        if isinstance(right, Name) and right.id in METRICS:
            op, left, right = FLIPPED[op], right, left
        open_ = next(iter(sorted(metrics - set(known))))
        if not (isinstance(left, Name) and left.id == open_) or _names(right) & (metrics - set(known)):
            raise Undecidable(f"`{open_}` is not proved to be linear in the costs")
        return self._bound_proved(op, left.id, self._form(right, known, facts, rank), facts)

    def _bound_proved(self, op: str, metric: str, form: Ratio, facts: Facts) -> bool:
        """`metric op form` where the metric is not known to be linear."""
        affine = form.affine()
        if affine is None:
            raise Undecidable(f"`{metric}` and what it is compared with are not linear in the costs")
        bound: Vector = (*affine[0], affine[1])
        if metric in ("makespan", "span"):
            return bounded(facts, metric, op, bound)
        # bubble <= x is makespan >= busy / (p * (1 - x)) the other way round, for a plain number x below 1.
        busy = tuple(map(sum, zip(*facts.busy(), strict=True))) if metric == "bubble" else facts.most_busy()
        if any(bound[:-1]) or bound[-1] >= 1 or busy is None:
            raise Undecidable(f"`{metric}` is not proved to be linear in the costs")
        of = self.program.ranks if metric == "bubble" else 1
        scaled = tuple(Fraction(value) / (of * (1 - bound[-1])) for value in busy)
        return bounded(facts, "makespan" if metric == "bubble" else "span", op, scaled)

    def _form(self, expr: Expr, metrics: Mapping[str, Ratio], facts: Facts, rank: int) -> Ratio:
        names = facts.domain.names
        costs = {name: _unit(k, len(names)) for k, name in enumerate(names)}
        try:
            value = self._evaluator({**_with_backward(costs), **metrics}).compile(expr, self._slots())([rank])
        except DiagnosticError as error:
            why = "it divides by zero" if error.diagnostics[0].code == "PD109" else error.diagnostics[0].message
            raise Undecidable(why) from None
        if isinstance(value, bool):
            raise Undecidable("it compares truth values")
        return _number(0, len(names)).lift(value)

    def _metric_forms(self, metrics: set[str], facts: Facts) -> dict[str, Ratio]:
        """The metrics that are proved to be linear, or a quotient of linear forms, in the costs."""
        found: dict[str, Ratio] = {}
        for metric, whole, bubble in (("makespan", "makespan", "bubble"), ("span", "span", "span_bubble")):
            if not metrics & {metric, bubble}:
                continue
            form = facts.linear(whole)
            if form is None:
                continue
            found[metric] = _linear(form)
            busy = tuple(map(sum, zip(*facts.busy(), strict=True))) if bubble == "bubble" else facts.most_busy()
            if busy is not None and any(form):
                of = self.program.ranks if bubble == "bubble" else 1
                found[bubble] = 1 - _linear(tuple(map(Fraction, busy))) / (found[metric] * of)
        return found


def _names(expr: Expr | None) -> set[str]:
    """The names that an expression mentions, functions that it calls aside; `peak` and `memory` count."""
    if expr is None:
        return set()
    found = nodes(expr)
    return {node.id for node in found if isinstance(node, Name)} | {
        node.function for node in found if isinstance(node, Call) and node.function in RANK_METRICS
    }


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """The parts that `and` joins, in order."""
    pending = [condition]
    while pending:
        part = pending.pop()
        if isinstance(part, Binary) and part.op == "and":
            pending.extend((part.right, part.left))
        else:
            yield part


def _pairs(compare: Compare) -> Iterator[tuple[str, Expr, Expr]]:
    yield from zip(compare.ops, compare.operands, compare.operands[1:], strict=False)


def _plain(value: Fraction) -> Value:
    """A whole Fraction as an int, as the language has it."""
    return value.numerator if value.denominator == 1 else value


def _times(metrics: Metrics) -> dict[str, Value]:
    return {name: _plain(Fraction(getattr(metrics, name))) for name in METRICS}


def _with_backward(costs: Mapping[str, Value]) -> dict[str, Value]:
    """Costs by name, B too where it is I + W."""
    both = {"B": costs["I"] + costs["W"]} if "I" in costs and "W" in costs else {}
    return {**both, **costs}


def _side(side: Expr, value: Value) -> str:
    """`makespan` is 33; nothing for a side that is a plain number."""
    text, shown = side.span.text, show(value)
    if text == shown:
        return ""
    about = f" ({float(value):.4f})" if isinstance(value, Fraction) else ""
    return f"`{text}` is {shown}{about}"


def _samples(domain: Domain) -> Iterator[Vector]:
    """Costs to try a claim at; the factor of the file's other costs is 1."""
    count = len(domain.names)
    yield (Fraction(1),) * (count + 1)
    for scale in SCALES:
        for k in range(count):
            yield (*(Fraction(scale * (i == k)) for i in range(count)), Fraction(1))
    for point in POINTS:
        yield (*(Fraction(value) for value in point[:count]), Fraction(1))
    for k in range(count):
        yield (*(Fraction(int(i != k)) for i in range(count)), Fraction(1))
    yield (*(Fraction(0),) * count, Fraction(1))


def _own_point(facts: Facts) -> Vector:
    """The file's own costs where nothing takes time; those that differ between stages then change nothing."""
    return (*(facts.domain.own_of(name)[0] for name in facts.domain.names), Fraction(1))


def _number(value: int, variables: int) -> Ratio:
    return Ratio(Polynomial.constant(value, variables), Polynomial.constant(1, variables))


def _unit(k: int, variables: int) -> Ratio:
    coefficients = tuple(Fraction(int(i == k)) for i in range(variables))
    return Ratio(Polynomial.linear(coefficients, Fraction(0)), Polynomial.constant(1, variables))


def _linear(form: Vector) -> Ratio:
    return Ratio(Polynomial.linear(form[:-1], form[-1]), Polynomial.constant(1, len(form) - 1))
