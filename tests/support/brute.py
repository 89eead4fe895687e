"""The optimum of tiny search problems by trying every order of every rank. Shares nothing with the search."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from pipedsl.program import Kind
from verify.search.problem import Objective, Operation, Problem


def interleavings(strands: tuple[tuple[Operation, ...], ...], depth: int) -> list[tuple[Operation, ...]]:
    """All interleavings in which the operations of one rank do not contradict each other. `depth`: stages a replica."""
    found: list[tuple[Operation, ...]] = []
    order: list[Operation] = []
    done: set[tuple[str, int, int]] = set()
    at = [0] * len(strands)
    all_stages = {operation.stage for strand in strands for operation in strand}

    def may(operation: Operation) -> bool:
        kind, stage, i = operation
        stages = [s for s in all_stages if s // depth == stage // depth]
        if kind == Kind.F:
            return all(("F", s, i) in done for s in stages if s < stage)
        if kind == Kind.W:
            return ("I", stage, i) in done
        return ("F", stage, i) in done and all(("I", s, i) in done for s in stages if s > stage)

    def extend() -> None:
        ended = True
        for k, strand in enumerate(strands):
            if at[k] == len(strand):
                continue
            ended = False
            operation = strand[at[k]]
            if not may(operation):
                continue
            name = ({Kind.F: "F", Kind.W: "W"}.get(operation.kind, "I"), operation.stage, operation.microbatch)
            at[k] += 1
            done.add(name)
            order.append(operation)
            extend()
            order.pop()
            done.discard(name)
            at[k] -= 1
        if ended:
            found.append(tuple(order))

    extend()
    return found


def fits(problem: Problem, rank: int, order: tuple[Operation, ...]) -> bool:
    cap, held = problem.cap[rank], 0
    for kind, stage, _ in order:
        whole, late = problem.activation[stage], problem.held_by_w[stage]
        held += whole if kind == Kind.F else 0
        if cap is not None and held > cap:
            return False
        held -= {Kind.F: 0, Kind.B: whole, Kind.I: whole - late, Kind.W: late}[kind]
    return True


def keeps(problem: Problem, order: tuple[Operation, ...]) -> bool:
    """Whether the fences of a rank are kept."""
    return all(order.index(x) < order.index(y) for x, y in problem.fences if x in order)


def cost(problem: Problem, orders: tuple[tuple[Operation, ...], ...]) -> int | None:
    """The objective by sweeping over the ranks until nothing changes; None where the orders wait for each other."""
    end: dict[tuple[str, int, int], int] = {}
    free, at = [0] * len(orders), [0] * len(orders)
    first: list[int | None] = [None] * len(orders)
    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while at[r] < len(order):
                kind, stage, i = order[at[r]]
                name = {Kind.F: "F", Kind.W: "W"}.get(kind, "I")
                start = free[r]
                source = stage - 1 if name == "F" else stage + 1
                if name != "W" and source // problem.depth == stage // problem.depth:
                    if (name, source, i) not in end:
                        break
                    away = problem.placement[source] != problem.placement[stage]
                    start = max(start, end[name, source, i] + (problem.send[source] if away else 0))
                free[r] = end[name, stage, i] = start + problem.duration[kind][stage]
                if first[r] is None:
                    first[r] = start
                at[r] += 1
                moved = True
    if any(n < len(order) for n, order in zip(at, orders, strict=True)):
        return None
    for r, order in enumerate(orders):
        for kind, stage, i in order:
            name = {Kind.F: "F", Kind.W: "W"}.get(kind, "I")
            free[r] = max(free[r], end[name, stage, i] + problem.closing[stage])
        work = sum(problem.duration[kind][stage] for kind, stage, _ in order)
        free[r] = max(free[r], (first[r] or 0) + work + problem.beside[r]) if order else 0
    if problem.objective is Objective.MAKESPAN:
        return max(free)
    return max(b - (a or 0) for a, b in zip(first, free, strict=True))


def optimum(problem: Problem, most: int = 100_000) -> Fraction | None:
    """The least value of any orders; None where none fits. Raises ValueError where there are too many to try."""
    choices = [
        [order for order in interleavings(strands, problem.depth) if fits(problem, r, order) and keeps(problem, order)]
        for r, strands in enumerate(problem.strands)
    ]
    count = 1
    for options in choices:
        count *= len(options)
    if count > most:
        raise ValueError(f"{count} orders are too many")
    values = [value for orders in product(*choices) if (value := cost(problem, orders)) is not None]
    return min(values) * problem.time_unit if values else None
