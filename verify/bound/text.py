"""What a solver is to refute, in SMT-LIB, made from the problem alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

from verify.bound.arguments import forced, hop
from verify.bound.problem import Op, Problem
from verify.bound.reading import need

MOST_PAIRS = 2_000_000
MOST_REASONS = 6000  # why operations start when they do; above, the text says less


def smt_text(problem: Problem, limit: int) -> str:
    """SMT-LIB: the problem, and that an order has an objective of at most `limit`; unsatisfiable where none has.

    An integer an operation, its start; for two of a rank in no order yet, a truth value. Refuses what is too large.
    """
    pairs = sum(len(a) * len(b) for strands in problem.strands for a, b in combinations(strands, 2))
    need(pairs <= MOST_PAIRS, "the problem", f"more than {MOST_PAIRS} pairs of operations are in no order")
    # Where something takes no time, all gets finer, and it the least: so no circle of orders fits into one moment.
    fine = 1 if all(map(problem.lasts, problem.at)) else len(problem.at) + 1
    lines, sums = [], False
    for line in _smt_lines(problem, fine, limit * fine + fine - 1):
        sums = sums or "(ite " in line
        lines.append(line)
    aim = "makespan" if problem.makespan else "span"
    head = [
        f"; Some order of a search problem has a {aim} of at most {Fraction(limit, problem.unit)}. Expected: unsat.",
        f"; F.2.7 is the start of F of microbatch 7 at place 2, in units of 1/{problem.unit * fine}.",
        f"(set-logic {'QF_LIA' if sums else 'QF_IDL'})",
        "(set-info :status unsat)",
    ]
    return "\n".join([*head, *lines, "(check-sat)", ""])


def _smt_lines(problem: Problem, fine: int, limit: int) -> Iterator[str]:
    def time(op: Op) -> int:
        return problem.lasts(op) * fine or 1

    def apart(x: Op, y: Op, gap: int = 0) -> str:
        return f"(>= (- {_name(y)} {_name(x)}) {time(x) + gap * fine})"

    def before(x: Op, y: Op) -> str:
        (_, one, n), (_, other, k) = problem.at[x], problem.at[y]
        if any(x == source for source, _ in problem.needs(y)) or (one == other and n < k):
            return "true"
        if any(y == source for source, _ in problem.needs(x)) or one == other:
            return "false"
        return f"{_name(x)}<{_name(y)}" if problem.at[x] < problem.at[y] else f"(not {_name(y)}<{_name(x)})"

    yield "; When everything begins, and how long it takes at most."
    yield "(declare-const begin Int)"
    for rank, strands in enumerate(problem.strands):
        since = "begin" if problem.makespan else f"begin.{rank}"
        if not problem.makespan:
            yield f"(declare-const {since} Int)"
        for op in (op for strand in strands for op in strand):
            yield f"(declare-const {_name(op)} Int)"
            yield f"(assert (>= (- {_name(op)} {since}) 0))"
            latest = limit - time(op) - fine * problem.time["closing"][op[1]]
            yield f"(assert (<= (- {_name(op)} {since}) {_number(latest)}))"
    if not problem.makespan:
        yield "; What comes first on its rank in every order, and needs only such, starts as early as it can."
        for chain in filter(None, (forced(problem, rank) for rank in range(len(problem.strands)))):
            starts = sum(time(x) + fine * hop(problem, x, y, "") for x, y in pairwise(chain))
            yield f"(assert (= (- {_name(chain[-1])} begin) {starts}))"
    yield "; What each needs, and the order within strands."
    for op in problem.at:
        for source, gap in problem.needs(op):
            yield f"(assert {apart(source, op, gap)})"
    for strand in (strand for strands in problem.strands for strand in strands):
        for x, y in pairwise(strand):
            yield f"(assert {apart(x, y)})"
    yield "; A rank runs one at a time."
    for strands in problem.strands:
        for one, other in combinations(strands, 2):
            for x in one:
                for y in other:
                    known = before(x, y)
                    if known not in ("true", "false"):
                        yield f"(declare-const {known} Bool)"
                        yield f"(assert (or (not {known}) {apart(x, y)}))"
                        yield f"(assert (or {known} {apart(y, x)}))"
    yield "; Where F begins, what is held fits: enough that gives back has been before."
    for strands, cap in zip(problem.strands, problem.cap, strict=True):
        for strand in strands if cap is not None else ():
            others = [other for other in strands if other != strand and any(map(problem.change, other))]
            changes = [{problem.change(x) for x in other} for other in others]
            simple = len(others) <= 2 and all(len(each) == 1 and max(each) < 0 for each in changes)
            over = -(cap or 0)
            for y in strand:
                over += problem.change(y)
                if y[0] == "F" and problem.whole[y[1]] and simple:
                    yield from _enough(
                        over, [([before(x, y) for x in other], -problem.change(other[0])) for other in others]
                    )
                elif y[0] == "F" and problem.whole[y[1]]:
                    terms = [(before(x, y), _number(problem.change(x))) for other in others for x in other]
                    total = " ".join(f"(ite {known} {change} 0)" for known, change in terms)
                    yield f"(assert (<= (+ 0 0 {total}) {_number(-over)}))"
    if not problem.makespan:
        yield from _early(problem, fine, before)


def _early(problem: Problem, fine: int, before: Callable[[Op, Op], str]) -> Iterator[str]:
    """Where it is open what comes first on some rank: nothing that it may wait for starts later than it could.

    An operation starts at the beginning, when what it needs arrives, or when another of its rank ends.
    """
    ranks = [rank for rank, strands in enumerate(problem.strands) if any(strands) and not forced(problem, rank)]
    first = [strand[0] for rank in ranks for strand in problem.strands[rank] if strand and strand[0][0] == "F"]
    reasons: dict[Op, list[tuple[Op, int, str]]] = {}
    late = [(op, False) for op in first]
    seen: set[tuple[Op, bool]] = set()
    while late:
        op, all_of_it = late.pop()
        if (op, all_of_it) in seen:
            continue
        seen.add((op, all_of_it))
        rank = problem.at[op][0]
        if op not in reasons:
            own = [x for strand in problem.strands[rank] for x in strand if x != op and before(x, op) != "false"]
            needed = [(x, gap, "true") for x, gap in problem.needs(op) if problem.at[x][0] != rank]
            reasons[op] = [*needed, *((x, 0, before(x, op)) for x in own)]
        # Of what may come first only that counts which it needs when it does.
        late += [(x, True) for x, _, _ in reasons[op] if all_of_it or problem.at[x][0] != rank]
    if sum(map(len, reasons.values())) > MOST_REASONS:
        return
    yield "; Nothing before the first operation of a rank waits without a reason."
    for op in sorted(reasons):
        options = [f"(<= (- {_name(op)} begin) 0)"]
        for x, gap, known in reasons[op]:
            met = f"(<= (- {_name(op)} {_name(x)}) {(problem.lasts(x) * fine or 1) + gap * fine})"
            options.append(met if known == "true" else f"(and {known} {met})")
        yield f"(assert (>= (- {_name(op)} begin) 0))"
        yield f"(assert (or {' '.join(options)} false))"


def _enough(over: int, strands: Sequence[tuple[list[str], int]]) -> Iterator[str]:
    """So many of at most two strands are before F that they give back `over`: however few are of the first, so many are
    of the second. For each strand whether its operations are before, in their order, and what each gives."""
    (first, size), (second, other) = [*strands, ([], 1), ([], 1)][:2]
    for n in range(len(first) + 1):
        count = -((n * size - over) // other)
        if count <= 0:
            return
        more = first[n] if n < len(first) else "false"
        yield f"(assert (or {more} {second[count - 1] if count <= len(second) else 'false'}))"


def _name(op: Op) -> str:
    return f"{op[0]}.{op[1]}.{op[2]}"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"
