"""What an order costs that someone found."""

from __future__ import annotations

from typing import Any

from verify.bound.problem import Op, Problem, operation
from verify.bound.reading import items, need


def cost(problem: Problem, program: Any) -> int:
    """The objective of a program's orders, where in place of every REDUCE there is what the problem says of it. Refuses
    what is no answer to the problem: other operations, strands out of order, more than a cap, ranks that wait for each
    other."""
    ranks = items(program.get("ranks") if type(program) is dict else None, "the program's ranks", len(problem.strands))
    orders: list[list[Op]] = []
    for r, row in enumerate(ranks):
        orders.append([])
        counts, held, cap = [0] * len(problem.strands[r]), 0, problem.cap[r]
        for n, each in enumerate(items(row, f"the program's rank {r}")):
            where = f"the program's rank {r}, operation {n}"
            if type(each) is list and len(each) in (3, 4) and each[0] == "REDUCE" and each[2] is None:
                continue
            if type(each) is list and len(each) == 4 and type(each[1]) is type(each[3]) is int:
                need(0 <= each[1] < problem.depth, where, "no such stage")
                each = [each[0], each[3] * problem.depth + each[1], each[2]]
            op = operation(each, where, problem.at)
            rank, k, position = problem.at[op]
            need(rank == r and counts[k] == position, where, "on another rank, or not in the order of its strand")
            counts[k] += 1
            need(op[0] != "F" or cap is None or held + problem.whole[op[1]] <= cap, where, "more is held than the cap")
            held += problem.change(op)
            orders[r].append(op)
        need(counts == [len(strand) for strand in problem.strands[r]], f"the program's rank {r}", "leaves some out")
    end: dict[Op, int] = {}
    waiting: dict[Op, int] = {}
    at, free, first = [0] * len(orders), [0] * len(orders), [0] * len(orders)
    ready = list(range(len(orders)))
    while ready:
        r = ready.pop()
        while at[r] < len(orders[r]):
            op = orders[r][at[r]]
            needed = problem.needs(op)
            missing = [x for x, _ in needed if x not in end]
            if missing:
                need(problem.at[missing[0]][0] != r, f"the program's rank {r}", "runs something before what it needs")
                waiting[missing[0]] = r
                break
            start = max(free[r], *(end[x] + gap for x, gap in needed)) if needed else free[r]
            first[r] = first[r] if at[r] else start
            free[r] = end[op] = start + problem.lasts(op)
            at[r] += 1
            ready += [waiting.pop(op)] if op in waiting else []
    need(len(end) == len(problem.at), "the program", "ranks wait for each other")
    for r, own in enumerate(orders):
        busy = sum(map(problem.lasts, own)) + problem.beside[r] if own else 0
        closed = (end[op] + problem.time["closing"][op[1]] for op in own)
        free[r] = max(first[r] + busy, *closed) if own else 0
    return max(free) if problem.makespan else max(b - a for a, b in zip(first, free, strict=True))
