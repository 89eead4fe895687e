"""Accepts or refuses evidence that no order of a search problem is better than a bound; says how good one order is.

    python bound_checker.py bound.json problem.json [program.json]

The problem is what `pipedsl expand --problem` writes, the program what `pipedsl expand --format json` does for the
order that was found. Exit status: 0 accepted, 1 refused, 2 wrong usage. docs/certificate.md describes the format and
argues why what is accepted is true. Needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, NamedTuple

FORMAT, VERSION, MOST_BYTES, MOST = "pipedsl bound", 1, 2**30, 2**4096
MOST_PAIRS = 2_000_000
TIMES, SIZES = ("F", "B", "I", "W", "send"), ("activation", "held_by_w")
Op = tuple[str, int, int]  # letter, place (replica * stages + stage), microbatch


class Refused(Exception):
    """Where, and why."""


def need(holds: bool, where: str, why: str) -> None:
    if not holds:
        raise Refused(f"{where}: {why}")


def read(path: str) -> Any:
    """The value in a file: no floats, no key twice, within a size. Raises OSError and Refused."""
    with open(path, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    need(len(data) <= MOST_BYTES, ascii(path), f"larger than {MOST_BYTES} bytes")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), ascii(path), "a key stands twice in one object")
        return dict(pairs)

    def never(text: str) -> Any:
        raise Refused(f"{path!a}: {text[:20]} is no whole number")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=never, parse_constant=never)
    except ValueError as error:
        raise Refused(f"{path!a}: {str(error)[:200]!a}") from None


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fields(value: Any, where: str, *names: str) -> list[Any]:
    """The values of an object that has these keys and no other."""
    need(type(value) is dict and value.keys() == set(names), where, f"expected an object with {', '.join(names)}")
    return [value[name] for name in names]


def items(value: Any, where: str, count: int | None = None) -> list[Any]:
    right = type(value) is list and count in (None, len(value))
    need(right, where, f"expected a list of {'any' if count is None else count} values")
    return list(value)


def integer(value: Any, where: str, low: int, high: int) -> int:
    need(type(value) is int and low <= value <= high, where, f"expected an integer from {low} to {high}")
    return int(value)


def integers(value: Any, where: str, low: int, high: int, count: int | None = None) -> list[int]:
    return [integer(each, f"{where}[{at}]", low, high) for at, each in enumerate(items(value, where, count))]


class Problem(NamedTuple):
    """`time[letter][place]`, `send[place]` to a neighbour on another rank, in multiples of 1 / `unit`; `whole` and
    `held` sizes a place; `cap[rank]` or None. `strands[rank]`: operations in an order that every answer keeps.
    `at[operation]`: rank, its strand there, where in that. `ordered[rank]`: whether each kind of each place runs in the
    order of the microbatches there, B and I being one kind. `fences[y]`: what y has to wait for beside all that.
    """

    microbatches: int
    depth: int
    placement: list[int]
    makespan: bool
    unit: int
    time: dict[str, list[int]]
    whole: list[int]
    held: list[int]
    cap: list[int | None]
    strands: list[list[list[Op]]]
    at: dict[Op, tuple[int, int, int]]
    ordered: list[bool]
    fences: dict[Op, Op]

    def needs(self, op: Op) -> list[tuple[Op, int]]:
        """What ends before `op` starts, and how long before at least."""
        letter, place, i = op
        found = [(self.fences[op], 0)] if op in self.fences else []
        if letter == "W":
            return [*found, (("I", place, i), 0)]
        found += [] if letter == "F" else [(("F", place, i), 0)]
        other = place - 1 if letter == "F" else place + 1
        if 0 <= other < len(self.placement) and other // self.depth == place // self.depth:
            away = self.placement[other] != self.placement[place]
            source = ("F", other, i) if letter == "F" else self.release(other, i)
            found.append((source, away * self.time["send"][other]))
        return found

    def release(self, place: int, i: int) -> Op:
        """The backward that gives back (a part of) the activation."""
        return ("B", place, i) if ("B", place, i) in self.at else ("I", place, i)

    def lasts(self, op: Op) -> int:
        return self.time[op[0]][op[1]]

    def change(self, op: Op) -> int:
        """What is held more after `op` than before."""
        whole, held = self.whole[op[1]], self.held[op[1]]
        return {"F": whole, "B": -whole, "I": held - whole, "W": -held}[op[0]]

    def own(self, rank: int, place: int) -> list[int]:
        """The places of a rank in the replica of `place`."""
        first = place // self.depth * self.depth
        return [u for u in range(first, first + self.depth) if self.placement[u] == rank]


def operation(value: Any, where: str, known: dict[Op, tuple[int, int, int]]) -> Op:
    right = type(value) is list and list(map(type, value)) == [str, int, int] and tuple(value) in known
    need(right, where, "no operation of the problem")
    return value[0], value[1], value[2]


def operations(value: Any, where: str, problem: Problem) -> list[Op]:
    return [operation(each, f"{where}[{n}]", problem.at) for n, each in enumerate(items(value, where))]


def read_problem(value: Any) -> Problem:
    """A problem in which every microbatch runs F and B, or F, I and W, at every place, once and on its rank."""
    names = ("ranks", "microbatches", "replicas", "placement", "minimize", "times", "sizes", "strands", "fences")
    ranks, m, replicas, placement, aim, times, sizes, strands, waits = fields(value, "the problem", *names)
    integer(ranks, "ranks", 1, 2**20)
    integer(m, "microbatches", 0, 2**30)
    placement = integers(placement, "placement", 0, ranks - 1)
    count = len(placement)
    integer(replicas, "replicas", 1, max(1, count))
    need(count > 0 and count % replicas == 0, "placement", "not as many stages in every replica")
    need(aim in ("makespan", "span"), "minimize", "expected makespan or span")
    time_unit, *columns = fields(times, "times", "unit", *TIMES)
    size_unit, *held, cap = fields(sizes, "sizes", "unit", *SIZES, "cap")
    integer(time_unit, "times.unit", 1, MOST)
    integer(size_unit, "sizes.unit", 1, MOST)
    time = {name: integers(column, name, 0, MOST, count) for name, column in zip(TIMES, columns, strict=True)}
    whole, rest = (integers(column, name, 0, MOST, count) for name, column in zip(SIZES, held, strict=True))
    need(all(r <= w for r, w in zip(rest, whole, strict=True)), "held_by_w", "more than the activation")
    caps = [None if c is None else integer(c, f"cap[{r}]", -MOST, MOST) for r, c in enumerate(items(cap, "cap", ranks))]
    at: dict[Op, tuple[int, int, int]] = {}
    read_strands: list[list[list[Op]]] = []
    ordered = [True] * ranks
    for r, of_rank in enumerate(items(strands, "strands", ranks)):
        read_strands.append([])
        last: dict[tuple[str, int], tuple[int, int]] = {}
        for k, strand in enumerate(items(of_rank, f"strands[{r}]")):
            read_strands[r].append([])
            for n, each in enumerate(items(strand, f"strands[{r}][{k}]")):
                where = f"strands[{r}][{k}][{n}]"
                letter, place, i = items(each, where, 3)
                need(type(letter) is str and letter in ("F", "B", "I", "W"), where, "no such kind")
                integer(place, where, 0, count - 1)
                integer(i, where, 0, m - 1)
                op = (letter, place, i)
                need(placement[place] == r and op not in at, where, "on another rank, or a second time")
                at[op] = (r, k, n)
                read_strands[r][k].append(op)
                kind = ("I" if letter == "B" else letter, place)
                strand_before, i_before = last.get(kind, (k, -1))
                ordered[r] = ordered[r] and strand_before == k and i_before < i
                last[kind] = (k, i)
    for place in range(count) if len(at) >= 2 * count * m else ():
        for i in range(m):
            kinds = [letter for letter in "FBIW" if (letter, place, i) in at]
            need(kinds in (["F", "B"], ["F", "I", "W"]), "strands", f"microbatch {i} at {place} does not run once")
    need(len(at) >= 2 * count * m, "strands", "an operation is missing")
    depth, makespan = count // replicas, aim == "makespan"
    fences: dict[Op, Op] = {}
    for n, pair in enumerate(items(waits, "fences")):
        before, after = (operation(each, f"fences[{n}]", at) for each in items(pair, f"fences[{n}]", 2))
        need(at[before][0] == at[after][0] and after not in fences, f"fences[{n}]", "of two ranks, or a second one")
        fences[after] = before
    return Problem(m, depth, placement, makespan, time_unit, time, whole, rest, caps, read_strands, at, ordered, fences)


# ------------------------------------------------------------------------------ what an order costs


def cost(problem: Problem, program: Any) -> int:
    """The objective of a program's orders. Refuses what is no answer to the problem: other operations, strands out of
    order, more than a cap, ranks that wait for each other."""
    ranks = items(program.get("ranks") if type(program) is dict else None, "the program's ranks", len(problem.strands))
    orders: list[list[Op]] = []
    for r, row in enumerate(ranks):
        orders.append([])
        counts, held, cap = [0] * len(problem.strands[r]), 0, problem.cap[r]
        for n, each in enumerate(items(row, f"the program's rank {r}")):
            where = f"the program's rank {r}, operation {n}"
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
    return max(free) if problem.makespan else max(b - a for a, b in zip(first, free, strict=True))


# ------------------------------------------------------------------------------ why none is better


def hop(problem: Problem, x: Op, y: Op, where: str) -> int:
    """How long after the end of x, at least, y starts in every order. Refuses where nothing says that it does."""
    gaps = [gap for source, gap in problem.needs(y) if source == x]
    (rank, k, n), (other, strand, position) = problem.at[x], problem.at[y]
    follows = (rank, k) == (other, strand) and n < position
    known = bool(gaps) or follows or (rank == other and frees(problem, rank, x, y))
    need(known, where, f"nothing says that {x} ends before {y} starts")
    return max(gaps, default=0)


def frees(problem: Problem, rank: int, x: Op, y: Op) -> bool:
    """Whether y = F[j] of place t has no room on its rank before x, which gives something back of place s, has ended.

    Were y before x: of every place u up to t of that replica, F[0 .. j] would have begun; and of places up to s nothing
    of what x comes before in its row could have been given back, nor anything of microbatch j up to t.
    """
    (letter, s, i), (forward, t, j), cap = x, y, problem.cap[rank]
    mine = [u for u in problem.own(rank, t) if u <= t]
    if forward != "F" or letter == "F" or cap is None or not problem.ordered[rank] or s not in problem.own(rank, t):
        return False
    if letter == "W":
        waiting = sum(("W", s, k) in problem.at for k in range(i, j)) if s <= t else 0
        held = waiting * problem.held[s] + sum(problem.whole[u] for u in mine)
    else:
        held = sum(problem.whole[u] * (max(0, j - i) * (u <= s) + 1) for u in mine)
    return held > cap


def length(problem: Problem, chain: list[Op], where: str) -> int:
    """From the start of the first to the start of the last of operations that follow each other in every order."""
    steps = enumerate(pairwise(chain))
    return sum(problem.lasts(x) + hop(problem, x, y, f"{where}[{n}]") for n, (x, y) in steps)


def begin(problem: Problem, chain: list[Op], where: str) -> int:
    """When the last of these starts, in every order: each is the first of its rank, and needs only the one before."""
    for n, op in enumerate(chain):
        rank, k, position = problem.at[op]
        others = [strand[0] for each, strand in enumerate(problem.strands[rank]) if strand and each != k]
        # A backward comes after a forward of its rank; so does a forward that has one of an earlier stage there.
        later = all(other[0] != "F" or min(problem.own(rank, other[1])) < other[1] for other in others)
        need(op[0] == "F" and position == 0 and later, f"{where}[{n}]", f"{op} need not be the first of its rank")
        need([x for x, _ in problem.needs(op)] == chain[n - 1 : n] if n else not problem.needs(op), where, "a gap")
    return length(problem, chain, where)


def idle(problem: Problem, rank: int, windows: Any, where: str) -> int:
    """How long a rank of one place does nothing, at least, between F and the backward of microbatches that are so far
    apart that these times are. [[microbatch, idle time], ...]."""
    found, before = 0, None
    places = [place for place, holder in enumerate(problem.placement) if holder == rank]
    for n, pair in enumerate(items(windows, where)):
        spot = f"{where}[{n}]"
        need(len(places) == 1 and problem.ordered[rank], spot, "only for one place, microbatches in their order")
        (i, time), place = integers(pair, spot, 0, MOST, 2), places[0]
        need(i < problem.microbatches, spot, "no such microbatch")
        after = before is None or (before < i and frees(problem, rank, problem.release(place, before), ("F", place, i)))
        need(after, spot, "the times overlap")
        need(time == idle_once(problem, rank, place, i), spot, f"it idles {idle_once(problem, rank, place, i)}")
        found, before = found + time, i
    return found


def idle_once(problem: Problem, rank: int, place: int, i: int) -> int:
    """From the end of F[i] to the start of its backward a message goes to the last stage and back; meanwhile there are
    only so many F after it that fit, and what is left of older microbatches."""
    op, gap = problem.release(place, i), 0
    while op != ("F", place, i):
        op, wait = problem.needs(op)[-1]
        gap += wait + problem.lasts(op) * (op != ("F", place, i))
    whole, held, cap = problem.whole[place], problem.held[place], problem.cap[rank]
    room = None if cap is None or not whole else cap - whole
    newer = problem.microbatches - 1 - i if room is None else min(problem.microbatches - 1 - i, room // whole)
    used = {letter for strand in problem.strands[rank] for letter, _, _ in strand}
    both = sum(problem.time[letter][place] for letter in "IW" if letter in used)
    both = max(both, problem.time["B"][place] * ("B" in used))
    most = 0
    for running in range(min(i, i if room is None else room // whole) + 1):
        waiting = i - running if "W" in used else 0
        if room is not None and held:
            waiting = min(waiting, (room - running * whole) // held)
        most = max(most, running * both + waiting * problem.time["W"][place])
    return max(0, gap - newer * problem.time["F"][place] - most)


def lower_bound(problem: Problem, evidence: Any) -> int:
    """What no order is below. Some operations of a rank, how late they start at least, how much comes after them."""
    rank, parts, pauses, start = fields(evidence, "evidence", "rank", "parts", "idle", "start")
    strands = problem.strands[integer(rank, "evidence.rank", 0, len(problem.strands) - 1)]
    begun, end = 0, None
    if start is not None:
        chain = operations(start, "evidence.start", problem)
        need(not problem.makespan and bool(chain), "evidence.start", "only for spans")
        begun, end = begin(problem, chain, "evidence.start"), problem.at[chain[-1]][0]
    heads, tails, work, counted, strand = list[int](), list[int](), 0, 0, -1
    for n, part in enumerate(items(parts, "evidence.parts")):
        where, before = f"evidence.parts[{n}]", strand
        strand, first, last, early, late = fields(part, where, "strand", "from", "to", "head", "tail")
        integer(strand, where, before + 1, len(strands) - 1)
        integer(first, where, 0, integer(last, where, 1, len(strands[strand])) - 1)
        some = strands[strand][first:last]
        work, counted = work + sum(map(problem.lasts, some)), counted + len(some)
        early, late = operations(early, where, problem), operations(late, where, problem)
        if problem.makespan or end is not None:
            need(early[-1:] == some[:1] and late[:1] == some[-1:], where, "its head or tail is of another part")
            need(end in (None, problem.at[late[-1]][0]), where, "its tail ends on another rank")
            heads.append(length(problem, early, f"{where}.head"))
            tails.append(length(problem, late, f"{where}.tail") + problem.lasts(late[-1]) - problem.lasts(late[0]))
        else:
            need(not early and not late, where, "no head or tail here")
    need(counted > 0, "evidence.parts", "nothing")
    paused = idle(problem, rank, pauses, "evidence.idle")
    need(not paused or counted == sum(map(len, strands)), "evidence.idle", "only where all of the rank is counted")
    return min(heads, default=0) + work + paused + min(tails, default=0) - begun


# ------------------------------------------------------------------------------ what a solver refutes


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
    def name(op: Op) -> str:
        return f"{op[0]}.{op[1]}.{op[2]}"

    def time(op: Op) -> int:
        return problem.lasts(op) * fine or 1

    def apart(x: Op, y: Op, gap: int = 0) -> str:
        return f"(>= (- {name(y)} {name(x)}) {time(x) + gap * fine})"

    def before(x: Op, y: Op) -> str:
        (_, one, n), (_, other, k) = problem.at[x], problem.at[y]
        if any(x == source for source, _ in problem.needs(y)) or (one == other and n < k):
            return "true"
        if any(y == source for source, _ in problem.needs(x)) or one == other:
            return "false"
        return f"{name(x)}<{name(y)}" if problem.at[x] < problem.at[y] else f"(not {name(y)}<{name(x)})"

    yield "; When everything begins, and how long it takes at most."
    yield "(declare-const begin Int)"
    for rank, strands in enumerate(problem.strands):
        since = "begin" if problem.makespan else f"begin.{rank}"
        if not problem.makespan:
            yield f"(declare-const {since} Int)"
        for op in (op for strand in strands for op in strand):
            yield f"(declare-const {name(op)} Int)"
            yield f"(assert (>= (- {name(op)} {since}) 0))"
            yield f"(assert (<= (- {name(op)} {since}) {_number(limit - time(op))}))"
    if not problem.makespan:
        yield "; What comes first on its rank in every order, and needs only such, starts as early as it can."
        for chain in filter(None, (forced(problem, rank) for rank in range(len(problem.strands)))):
            starts = sum(time(x) + fine * hop(problem, x, y, "") for x, y in pairwise(chain))
            yield f"(assert (= (- {name(chain[-1])} begin) {starts}))"
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


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def forced(problem: Problem, rank: int) -> list[Op]:
    """The operations up to a rank's first of which all come first in every order; none where that is open."""
    for strand in problem.strands[rank]:
        chain = strand[:1] if strand and strand[0][0] == "F" else []
        while chain and problem.needs(chain[0]):
            chain = [problem.needs(chain[0])[0][0], *chain]
        try:
            begin(problem, chain, "")
        except Refused:
            continue
        if chain:
            return chain
    return []


# ------------------------------------------------------------------------------ a file


def check(certificate: Any, subject: Any, program: Any = None) -> str:
    """What the certificate proves of the problem, and of the program if one is given. Raises Refused."""
    names = ("format", "version", "sha256", "problem", "bound", "evidence", "refuted")
    title, version, signature, about, bound, evidence, refuted = fields(certificate, "the certificate", *names)
    need(
        title == FORMAT and type(version) is int and version == VERSION, "the certificate", "another format or version"
    )
    body = {name: value for name, value in certificate.items() if name != "sha256"}
    need(signature == digest(body), "sha256", "something was altered")
    need(about == digest(subject), "problem", "the certificate is about another problem")
    problem = read_problem(subject)
    proved = lower_bound(problem, evidence)
    need(type(bound) is int and bound == proved, "bound", f"the evidence says {proved}")
    aim = "makespan" if problem.makespan else "span"
    condition = ""
    if refuted is not None:
        limit, text = fields(refuted, "refuted", "limit", "sha256")
        integer(limit, "refuted.limit", proved, MOST)
        own = hashlib.sha256(smt_text(problem, limit).encode()).hexdigest()
        need(text == own, "refuted.sha256", f"the problem's own text has {own}")
        proved, condition = limit + 1, f", if a solver answers unsat to the file with SHA-256 {own}"
    said = f"no order has a {aim} below {Fraction(proved, problem.unit)}"
    if program is None:
        return said + condition
    value = cost(problem, program)
    need(value >= proved, "the program", f"its {aim} is below the bound")
    best = ", so it is the smallest" if value == proved else ""
    return f"this order has a {aim} of {Fraction(value, problem.unit)}; {said}{best}{condition}"


def main(arguments: list[str]) -> int:
    if not 2 <= len(arguments) <= 3:
        print("usage: python bound_checker.py bound.json problem.json [program.json]", file=sys.stderr)
        return 2
    try:
        print("accepted:", check(*map(read, arguments)))
    except (Refused, RecursionError, MemoryError) as error:
        print("refused:", error if isinstance(error, Refused) else "nested too deeply, or too large")
        return 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
