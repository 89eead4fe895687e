"""The smallest makespan and span of tiny schedules with REDUCE, by trying every order that the text allows.

Shares nothing with the search but how a text becomes strands; what an order takes is swept out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from pipedsl.expand import expand_open
from pipedsl.open_words import OpenProgram
from pipedsl.program import Kind
from pipedsl.syntax import Schedule

Op = tuple[str, int, int, int]  # kind, replica, stage, microbatch
Orders = tuple[tuple[Op, ...], ...]


@dataclass(frozen=True)
class Smallest:
    """Of all orders that end; None for none."""

    makespan: Fraction | None
    span: Fraction | None
    orders: int


def smallest(asked: Schedule, params: dict[str, int], most: int = 60_000) -> Smallest | None:
    """None where there are more orders than that."""
    [each] = expand_open(asked, params, None)
    ranks = [list(_orders(each, rank, most + 1)) for rank in range(each.program.ranks)]
    count = prod(map(len, ranks))
    if count > most:
        return None
    found = [times for orders in product(*ranks) if (times := _times(each, orders)) is not None]
    return Smallest(min((a for a, _ in found), default=None), min((b for _, b in found), default=None), count)


def _orders(each: OpenProgram, rank: int, most: int) -> Iterator[tuple[Op, ...]]:
    """Those of one rank that keep to the strands, the fences, its cap, and what its operations need of each other."""
    program = each.program
    columns = (program.kind, program.replica, program.stage, program.microbatch)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    names: list[Op] = [(Kind(kind).name, replica, stage, i) for kind, replica, stage, i in rows]
    strands = each.strands[rank]
    waits = {y: [x for x, z in each.fences if z == y] for strand in strands for y in strand}
    mine = {names[row] for strand in strands for row in strand}
    cap = program.memory.cap[rank]

    def may(row: int, done: set[Op]) -> bool:
        kind, replica, stage, i = names[row]
        if any(names[x] not in done for x in waits[row]):
            return False
        if kind == "F":
            return all(op in done for op in mine if op[:2] == ("F", replica) and op[2] < stage and op[3] == i)
        if kind == "W":
            return ("I", replica, stage, i) in done
        if kind == "REDUCE":
            return all(op in done for op in mine if op[0] in "BW" and op[1:3] == (replica, stage))
        later = [op for op in mine if op[0] in "BI" and op[1] == replica and op[2] > stage and op[3] == i]
        return ("F", replica, stage, i) in done and all(op in done for op in later)

    def held(order: list[Op]) -> Fraction:
        memory, total = program.memory, Fraction(0)
        for kind, _, stage, _ in order:
            whole, late = memory.activation[stage], memory.held_by_w[stage]
            total += {"F": whole, "B": -whole, "I": late - whole, "W": -late}.get(kind, Fraction(0))
        return total

    count = 0

    def extend(at: list[int], order: list[Op], done: set[Op]) -> Iterator[tuple[Op, ...]]:
        nonlocal count
        if count >= most:
            return
        if all(n == len(strand) for n, strand in zip(at, strands, strict=True)):
            count += 1
            yield tuple(order)
            return
        for k, strand in enumerate(strands):
            if at[k] == len(strand) or not may(strand[at[k]], done):
                continue
            op = names[strand[at[k]]]
            if cap is None or op[0] != "F" or held([*order, op]) <= cap:
                yield from extend([*at[:k], at[k] + 1, *at[k + 1 :]], [*order, op], done | {op})

    return extend([0] * len(strands), [], set())


def _times(each: OpenProgram, orders: Orders) -> tuple[Fraction, Fraction] | None:
    """The makespan and the span; None where ranks wait for each other."""
    program, costs = each.program, each.program.costs
    end: dict[Op, Fraction] = {}
    first: list[Fraction | None] = [None] * len(orders)
    clock, at = [Fraction(0)] * len(orders), [0] * len(orders)
    # Ranks meet at the last REDUCE of a stage; those before it take no time.
    meets = [{op[2]: n for n, op in enumerate(order) if op[0] == "REDUCE"} for order in orders]
    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while at[r] < len(order):
                op = order[at[r]]
                kind, replica, stage, i = op
                start = clock[r]
                if kind == "REDUCE":
                    if meets[r][stage] == at[r]:
                        others = [q for q, own in enumerate(meets) if stage in own]
                        if any(at[q] != meets[q][stage] for q in others):
                            break
                        start = max(clock[q] for q in others)
                        for q in others:
                            clock[q] = start + costs.reduce[stage]
                            at[q] += 1
                    else:
                        at[r] += 1
                    moved = True
                    continue
                source = stage - 1 if kind == "F" else stage + 1
                if kind != "W" and 0 <= source < program.stages:
                    names = ("F",) if kind == "F" else ("B", "I")
                    known = [end[name, replica, source, i] for name in names if (name, replica, source, i) in end]
                    if not known:
                        break
                    away = program.placement[replica][source] != program.placement[replica][stage]
                    start = max(start, known[0] + (costs.send[source] if away else 0))
                took = {"F": costs.forward, "B": costs.backward, "I": costs.backward_input, "W": costs.backward_weight}
                clock[r] = end[op] = start + took[kind][stage]
                first[r] = start if first[r] is None else first[r]
                at[r], moved = at[r] + 1, True
    if any(n < len(order) for n, order in zip(at, orders, strict=True)):
        return None
    spans = [last - begun for last, begun in zip(clock, first, strict=True) if begun is not None]
    return max(clock), max(spans)
