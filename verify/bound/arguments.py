"""Why no order is better: chains of operations through one rank, its work, and the time that it has to idle.

docs/certificate.md argues why what is accepted here is true.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from verify.bound.problem import MOST, Op, Problem, operations
from verify.bound.reading import Refused, fields, integer, integers, items, need


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
        later = all(is_later(problem, rank, other) for other in others)
        need(op[0] == "F" and position == 0 and later, f"{where}[{n}]", f"{op} need not be the first of its rank")
        need([x for x, _ in problem.needs(op)] == chain[n - 1 : n] if n else not problem.needs(op), where, "a gap")
    return length(problem, chain, where)


def is_later(problem: Problem, rank: int, op: Op) -> bool:
    """Whether an operation needs another one of the rank, by itself or by what it needs."""
    seen, left = {op}, [op]
    while left:
        needed = {x for x, _ in problem.needs(left.pop())} - seen
        if any(problem.at[x][0] == rank for x in needed):
            return True
        seen, left = seen | needed, [*left, *needed]
    return False


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
            tails.append(length(problem, late, f"{where}.tail") + problem.after(late[-1]) - problem.lasts(late[0]))
        else:
            need(not early and not late, where, "no head or tail here")
    need(counted > 0, "evidence.parts", "nothing")
    paused = idle(problem, rank, pauses, "evidence.idle")
    rest, everything = min(tails, default=0), counted == sum(map(len, strands))
    need(not paused or everything, "evidence.idle", "only where all of the rank is counted")
    if everything and end in (None, rank):
        last = min(problem.time["closing"][op[1]] for strand in strands for op in strand)
        rest = max(rest, last, problem.beside[rank] - paused)
    return min(heads, default=0) + work + paused + rest - begun


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
