"""The problem that a bound is about: operations, what they need, what they take and hold, and how far they are open."""

from __future__ import annotations

from typing import Any, NamedTuple

from verify.bound.reading import fields, integer, integers, items, need

MOST = 2**4096
TIMES, SIZES = ("F", "B", "I", "W", "send", "closing"), ("activation", "held_by_w")
Op = tuple[str, int, int]  # letter, place (replica * stages + stage), microbatch


class Problem(NamedTuple):
    """`time[letter][place]`, in multiples of 1 / `unit`; `send` is that to a neighbour on another rank, `closing` what
    has to pass after the place's operations before the end (of its rank, for spans). `beside[rank]`: for so long it is
    busy with other things before its end. `whole` and `held` sizes a place; `cap[rank]` or None. `strands[rank]`:
    operations in an order that every answer keeps. `at[operation]`: rank, its strand there, where in that.
    `ordered[rank]`: whether each kind of each place runs in the order of the microbatches there, B and I being one.
    `fences[y]`: what y has to wait for beside all that.
    """

    microbatches: int
    depth: int
    placement: list[int]
    makespan: bool
    unit: int
    time: dict[str, list[int]]
    beside: list[int]
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

    def after(self, op: Op) -> int:
        """From the start of an operation to the end that follows it."""
        return self.lasts(op) + self.time["closing"][op[1]]

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
    time_unit, *columns, beside = fields(times, "times", "unit", *TIMES, "beside")
    size_unit, *held, cap = fields(sizes, "sizes", "unit", *SIZES, "cap")
    integer(time_unit, "times.unit", 1, MOST)
    integer(size_unit, "sizes.unit", 1, MOST)
    time = {name: integers(column, name, 0, MOST, count) for name, column in zip(TIMES, columns, strict=True)}
    beside = integers(beside, "beside", 0, MOST, ranks)
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
    sizes = (whole, rest, caps)
    return Problem(m, depth, placement, makespan, time_unit, time, beside, *sizes, read_strands, at, ordered, fences)
