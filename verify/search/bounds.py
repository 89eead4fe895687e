"""Lower bounds: no order whatever is faster. Each is an argument a person can follow.

*Path*: the longest chain of operations that follow each other in every order: what they need, their strand, and what
memory forces (see `memory_edges`).
*Load*: a rank cannot end before its first operation may start, plus all its work, plus the shortest chain that follows
its last operation.
*Load with releases*: the same for every set of a rank's operations that become possible late and have long tails; the
preemptive one-machine schedule gives the largest of all these (Carlier 1982).
*Round trips*: from the end of F[i] to the start of I[i] of a rank a fixed time G passes. Under a cap only few other
microbatches can be worked on meanwhile, so where that is less than G the rank idles. Microbatches that are a whole cap
apart have disjoint round trips, so their idle times add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from pipedsl.program import Kind
from verify.search.model import Model
from verify.search.narrowed import NOTHING, Narrowed
from verify.search.problem import Infeasible, Objective, Problem


@dataclass(frozen=True)
class Bound:
    """`value`: no order is below it. `argument`: path, load, releases or round trips. `rank`: whose."""

    value: int
    argument: str
    rank: int


@dataclass(frozen=True, eq=False)
class Chains:
    """`head[x]`: the earliest start of x. `tail[x]`: the shortest time from the end of x to the end of everything."""

    head: list[int]
    tail: list[int]
    order: list[int]
    before: list[list[tuple[int, int]]]


def in_order(model: Model) -> list[bool]:
    """Per rank, whether each of its (kind, stage) runs in microbatch order whatever is chosen."""
    found = []
    for pairs in model.strands:
        where: dict[tuple[Kind, int], tuple[int, int]] = {}
        good = True
        for k, (first, last) in enumerate(pairs):
            for operation in model.operations[first:last]:
                name = (Kind.I if operation.kind == Kind.B else operation.kind, operation.stage)
                strand, i = where.get(name, (k, -1))
                good = good and strand == k and operation.microbatch > i
                where[name] = (k, operation.microbatch)
        found.append(good)
    return found


def memory_edges(model: Model) -> list[tuple[int, int]]:
    """Pairs (x, y) of a rank such that x ends before y starts in every order that keeps to the cap.

    If I[i] of a stage had not run when F[j] starts, F[i..j] of it and of the rank's stages before it would be held. If
    W[i] had not, F[j] and what W[i..j-1] hold would be. Only for ranks that run in microbatch order. Raises
    `Infeasible` where one microbatch does not fit.
    """
    problem = model.problem
    edges = []
    check_room(problem)
    ordered = in_order(model)
    row_of: dict[tuple[Kind, int, int], int] = {
        (op.kind, op.stage, op.microbatch): row for row, op in enumerate(model.operations)
    }

    def release(stage: int, i: int) -> int:
        found = row_of.get((Kind.I, stage, i))
        return row_of[(Kind.B, stage, i)] if found is None else found

    for r, room in enumerate(model.room):
        if room is None:
            continue
        if not ordered[r]:
            continue
        for stages, at in [(own, at) for own in problem.chains[r] for at in range(len(own))]:
            s = stages[at]
            whole, held = sum(problem.activation[u] for u in stages[: at + 1]), problem.held_by_w[s]
            if not whole:
                continue
            for t in stages[at:]:
                # Those between s and t hold at least microbatch j.
                between = sum(problem.activation[u] for u in stages if s < u <= t)
                most = (room - between) // whole
                edges += [(release(s, j - most), row_of[(Kind.F, t, j)]) for j in range(most, problem.microbatches)]
            if held:
                most = (room - whole) // held
                late: list[int] = []  # W of the microbatches before j; those with a whole backward have none
                for j in range(problem.microbatches):
                    if len(late) > most:
                        edges.append((late[-1 - most], row_of[(Kind.F, s, j)]))
                    late += [row_of[(Kind.W, s, j)]] if (Kind.W, s, j) in row_of else []
    return edges


def check_room(problem: Problem) -> None:
    """Raise `Infeasible` where one microbatch does not fit."""
    for r, room in enumerate(problem.cap):
        needed = max((sum(problem.activation[s] for s in stages) for stages in problem.chains[r]), default=0)
        if room is not None and needed > room and problem.microbatches:
            raise Infeasible(r, needed, f"rank {r} holds {needed} when the last of its stages runs one microbatch")


def chains(model: Model, extra: list[tuple[int, int]] | None = None, narrowed: Narrowed = NOTHING) -> Chains:
    """Longest chains through everything that holds in every order. Raises `Infeasible` where that is a circle."""
    count = len(model)
    before: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for pairs in model.strands:
        for first, last in pairs:
            for row in range(first + 1, last):
                before[row].append((row - 1, 0))
    for row in range(count):
        if model.upstream[row] >= 0:
            before[row].append((model.upstream[row], model.lag[row]))
        if model.local[row] >= 0:
            before[row].append((model.local[row], 0))
    for x, y in memory_edges(model) if extra is None else extra:
        before[y].append((x, 0))
    waits = [len(items) for items in before]
    for row, items in enumerate(before):
        for x, _ in items:
            after[x].append(row)
    head, tail, order = [0] * count, list(model.closing), [row for row in range(count) if not waits[row]]
    end, duration = [0] * count, model.duration
    for row in order:
        for y in after[row]:
            waits[y] -= 1
            if not waits[y]:
                order.append(y)
    if len(order) < count:
        stuck = next(row for row in range(count) if waits[row])
        r = model.rank[stuck]
        raise Infeasible(r, 0, f"rank {r} cannot give back what it holds before it has to take more")
    for row, time in narrowed.starts:
        head[row] = max(head[row], time)
    for row in order:
        at = head[row]
        for x, gap in before[row]:
            if end[x] + gap > at:
                at = end[x] + gap
        head[row], end[row] = at, at + duration[row]
    for row, length in narrowed.ends:
        tail[row] = max(tail[row], length)
    for row in reversed(order):
        length = tail[row] + duration[row]
        for x, gap in before[row]:
            if length + gap > tail[x]:
                tail[x] = length + gap
    return Chains(head, tail, order, before)


def lower_bound(model: Model, known: Chains | None = None) -> Bound:
    """The best of all arguments, for the problem's objective. Raises `Infeasible`."""
    found = chains(model) if known is None else known
    makespan = model.problem.objective is Objective.MAKESPAN
    trips = round_trips(model)
    rows_of = [[row for first, last in pairs for row in range(first, last)] for pairs in model.strands]
    candidates = [Bound(0, "path", 0)]
    for r, rows in enumerate(rows_of):
        if not rows:
            continue
        load = sum(model.duration[row] for row in rows)
        name = "round trips" if trips[r] else "load"
        beside = load + model.problem.beside[r]
        if not makespan:
            candidates.append(Bound(load + trips[r] + min(model.closing[row] for row in rows), name, r))
            candidates.append(Bound(beside, "load", r))
            continue
        head, tail = min(found.head[row] for row in rows), min(found.tail[row] for row in rows)
        candidates.append(Bound(head + load + trips[r] + tail, name, r))
        candidates.append(Bound(head + beside, "load", r))
        candidates.append(Bound(max(found.head[x] + model.duration[x] + found.tail[x] for x in rows), "path", r))
        candidates.append(Bound(one_machine(model, rows, found.head, found.tail), "releases", r))
    if not makespan:
        candidates += _span_bounds(model, found, rows_of)
    return max(candidates, key=lambda bound: bound.value)


def load_bound(problem: Problem) -> Bound:
    """What is soon known: each rank is busy with all that it runs."""
    duration = problem.duration
    loads = [
        beside + sum(duration[kind][stage] for strand in strands for kind, stage, _ in strand)
        for beside, strands in zip(problem.beside, problem.strands, strict=True)
    ]
    return Bound(max(loads), "load", loads.index(max(loads)))


MOST_PAIRS = 2_000_000  # operations times ranks that the bounds on spans may look at


def _span_bounds(model: Model, known: Chains, rows_of: list[list[int]]) -> list[Bound]:
    """For ranks whose first operation always starts at one time: how late they end, because of any rank."""
    found = []
    left = MOST_PAIRS
    for r, rows in enumerate(rows_of):
        start = first_start(model, r, known) if rows else None
        if start is None or left <= 0:
            continue
        left -= len(model)
        tail = own_tails(model, rows, known, closing=True)
        for q, others in enumerate(rows_of):
            towards = [row for row in others if tail[row] >= 0]
            if not towards:
                continue
            length = max(known.head[x] + model.duration[x] + tail[x] for x in towards) - start
            found.append(Bound(length, "path", q))
            found.append(Bound(one_machine(model, towards, known.head, tail) - start, "releases", q))
    return found


def own_tails(model: Model, rows: list[int], known: Chains, closing: bool = False) -> list[int]:
    """The shortest time from the end of each row to the end of the last of these, of one rank; -1 where none follows.

    `closing`: to the end of the rank, with what follows its operations.
    """
    tail = [-1] * len(model)
    mine = set(rows)
    for row in reversed(known.order):
        if row in mine:
            tail[row] = max(tail[row], model.closing[row] if closing else 0)
        if tail[row] < 0:
            continue
        length = tail[row] + model.duration[row]
        for x, gap in known.before[row]:
            if length + gap > tail[x]:
                tail[x] = length + gap
    return tail


def first_start(model: Model, r: int, known: Chains) -> int | None:
    """When a rank's first operation starts, where that is the same in every order, else None.

    Operations run as early as they can, so one whose chain back consists of the first operations of their ranks starts
    at its head.
    """
    only = _only_first(model)
    row = only[r]
    while row >= 0 and only[model.rank[row]] == row:
        if model.upstream[row] < 0:
            return known.head[only[r]]
        row = model.upstream[row]
    return None


def _only_first(model: Model) -> list[int]:
    """Per rank the operation that comes first in every order, or -1."""
    found = []
    for pairs in model.strands:
        heads = [first for first, last in pairs if first < last]
        # The one head that needs nothing of its own rank first.
        free = [row for row in heads if not _needs_own_rank(model, row)]
        found.append(free[0] if len(free) == 1 else -1)
    return found


def _needs_own_rank(model: Model, row: int) -> bool:
    r, stack, seen = model.rank[row], [row], set()
    while stack:
        x = stack.pop()
        for source in (model.local[x], model.upstream[x]):
            if source >= 0 and source not in seen:
                if model.rank[source] == r:
                    return True
                seen.add(source)
                stack.append(source)
    return False


def one_machine(model: Model, rows: list[int], head: list[int], tail: list[int]) -> int:
    """The makespan of one rank's operations alone, each with its head and tail, may they be interrupted."""
    duration = model.duration
    queue: list[tuple[int, int]] = []  # (-tail, row)
    left = {}
    time = best = 0
    coming = sorted(rows, key=head.__getitem__)
    at, count = 0, len(coming)
    while at < count or queue:
        if not queue:
            time = max(time, head[coming[at]])
        while at < count and head[coming[at]] <= time:
            row = coming[at]
            left[row] = duration[row]
            heappush(queue, (-tail[row], row))
            at += 1
        minus, row = queue[0]
        until = head[coming[at]] if at < count else None
        if until is None or time + left[row] <= until:
            time += left[row]
            best = max(best, time - minus)
            heappop(queue)
        else:
            left[row] -= until - time
            time = until
    return best


def round_trips(model: Model) -> list[int]:
    """Per rank, how long it idles at least because of its cap. 0 where the argument says nothing."""
    problem = model.problem
    ordered = in_order(model)
    input_time, rest_time = _backward_times(model)
    beyond = _beyond(model, input_time)
    found = []
    for r in range(problem.ranks):
        stages = [s for chain in problem.chains[r] for s in chain]
        if len(stages) == 1 and ordered[r] and problem.microbatches:
            found.append(_idle(model, r, stages[0], beyond[stages[0]], rest_time[stages[0]]))
        else:
            found.append(0)
    return found


def _beyond(model: Model, input_time: list[int]) -> list[int]:
    """Per stage, the least time from the end of an F of it to the start of the same microbatch's backward."""
    problem = model.problem
    found = [0] * problem.stages
    for s in reversed(range(problem.stages - 1)):
        t = s + 1
        if t % problem.depth:
            hops = (problem.send[s] + problem.send[t]) if problem.placement[t] != problem.placement[s] else 0
            found[s] = hops + problem.duration[Kind.F][t] + input_time[t] + found[t]
    return found


def _idle(model: Model, r: int, s: int, gap: int, rest_time: tuple[int, int]) -> int:
    problem = model.problem
    m, room, whole, held = problem.microbatches, model.room[r], problem.activation[s], problem.held_by_w[s]
    forward, (both, weights) = problem.duration[Kind.F][s], rest_time
    cap = m if room is None or not whole else min(m, room // whole)

    def older(count: int) -> int:
        """The most work that `count` older microbatches may leave to be done after an F starts."""
        if room is None or not whole:
            return count * both
        free, best = room - whole, 0
        for running in range(min(count, free // whole) + 1):
            waiting = count - running
            if held:
                waiting = min(waiting, (free - running * whole) // held)
            best = max(best, running * both + waiting * weights)
        return best

    first = max(0, gap - min(cap - 1, m - 1) * forward)
    last = max(0, gap - older(m - 1))
    if m - 1 < cap:
        return max(first, last)
    between = (max(0, gap - min(cap - 1, m - 1 - k) * forward - older(k)) for k in range(cap, m - cap, cap))
    return first + last + sum(between)


def _backward_times(model: Model) -> tuple[list[int], list[tuple[int, int]]]:
    """Per stage: the least time of I or B; the most of a whole backward, and of W."""
    problem = model.problem
    used: list[set[int]] = [set() for _ in range(problem.stages)]
    for operation in model.operations:
        used[operation.stage].add(int(operation.kind))
    least, rest = [], []
    for s, kinds in enumerate(used):
        whole, inputs, weights = (problem.duration[kind][s] for kind in (Kind.B, Kind.I, Kind.W))
        split = Kind.I in kinds
        least.append(min([whole] * (Kind.B in kinds) + [inputs] * split, default=0))
        rest.append((max([whole] * (Kind.B in kinds) + [inputs + weights] * split, default=0), weights * split))
    return least, rest
