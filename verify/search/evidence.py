"""What the small checker accepts of a lower bound: operations of a rank, and chains that lead to them and from them.

Written for `verify/bound_checker.py`, which judges it alone: a bound is made of the operations of one rank that start
late and are followed by much, one chain of operations up to the first of each strand and one from the last, and the
times when the rank can but wait. docs/certificate.md describes the form.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from verify.bound import arguments
from verify.bound.certificate import FORMAT, VERSION
from verify.bound.problem import Op, read_problem
from verify.bound.problem import Problem as Subject
from verify.bound.reading import Refused, digest
from verify.bound.text import smt_text
from verify.search.bounds import Chains, chains, first_start, memory_edges, one_machine, own_tails
from verify.search.model import Model, model_of
from verify.search.problem import Objective, Problem
from verify.search.problem_json import problem_json

Json = dict[str, Any]
Chain = list[int]  # rows of the model


def bound_certificate(problem: Problem, bound: int) -> tuple[Json, str | None]:
    """The certificate of a lower bound (in the problem's units); what a solver has to refute beside it, if anything.

    Where the arguments that the checker knows say less than `bound`, the certificate has the best of them, and the text
    asks for an order below `bound`, unless that would be too large. Raises `Infeasible` where no order keeps to the
    caps.
    """
    document = problem_json(problem)
    subject = read_problem(document)
    proof = best_evidence(model_of(problem), subject)
    proved = arguments.lower_bound(subject, proof)
    goal = bound * problem.time_unit.numerator
    text, refuted = None, None
    if goal > proved:
        with suppress(Refused):
            text = smt_text(subject, goal - 1)
            refuted = {"limit": goal - 1, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    body: Json = {
        "format": FORMAT,
        "version": VERSION,
        "problem": digest(document),
        "bound": proved,
        "evidence": proof,
        "refuted": refuted,
    }
    return {**body, "sha256": digest(body)}, text


def best_evidence(model: Model, subject: Subject) -> Json:
    """The evidence for the largest bound of all ranks. Raises `Infeasible`."""
    edges = [(x, y) for x, y in memory_edges(model) if _accepted(model, subject, x, y)]
    known = chains(model, edges)
    ranks = [r for r in range(model.problem.ranks) if any(first < last for first, last in model.strands[r])]
    if model.problem.objective is Objective.MAKESPAN:
        options = [_Option(model, subject, known, known.tail, r) for r in ranks]
    else:
        options = [_Option(model, subject, known, None, r) for r in ranks]
        for end in ranks:
            start = first_start(model, end, known)
            if start is not None:
                tail = own_tails(model, _rows(model, end), known, closing=True)
                options += [_Option(model, subject, known, tail, r, end, start) for r in ranks]
    return max(options, key=lambda option: option.value).evidence()


def _rows(model: Model, r: int) -> Chain:
    return [row for first, last in model.strands[r] for row in range(first, last)]


def _named(model: Model, row: int) -> Op:
    kind, stage, microbatch = model.operations[row]
    return kind.name, stage, microbatch


def _accepted(model: Model, subject: Subject, x: int, y: int) -> bool:
    return arguments.frees(subject, model.rank[x], _named(model, x), _named(model, y))


class _Option:
    """What the operations of rank `r` say: with heads and tails, or (`tail` None) alone.

    `tail[x]`: from the end of x to the end of everything, or of rank `end`, which begins at `start`; -1 for neither.
    """

    def __init__(
        self,
        model: Model,
        subject: Subject,
        known: Chains,
        tail: list[int] | None,
        r: int,
        end: int | None = None,
        start: int = 0,
    ) -> None:
        self.model, self.subject, self.known, self.tail, self.r, self.end = model, subject, known, tail, r, end
        rows = _rows(model, r)
        self.rows = rows if tail is None else [row for row in rows if tail[row] >= 0]
        self.idle = _idle(model, subject, r) if len(self.rows) == len(rows) else []
        self.all = True  # whether the bound is that of all operations of the rank
        work = sum(model.duration[row] for row in self.rows)
        paused = sum(time for _, time in self.idle) // model.problem.time_unit.numerator
        rest = model.problem.beside[r] - paused
        if tail is None:
            self.value = work + paused + max(rest, min(model.closing[row] for row in rows))
            return
        self.value, self.all = one_machine(model, self.rows, known.head, tail) - start, False
        if self.rows and len(self.rows) == len(rows) and (self.idle or (end in (None, r) and rest > 0)):
            rest = max(rest if end in (None, r) else 0, min(tail[row] for row in rows))
            whole = min(known.head[row] for row in rows) + work + paused + rest - start
            self.all = whole > self.value
            self.value = max(self.value, whole)
        self.idle = self.idle if self.all else []

    def evidence(self) -> Json:
        tail, chosen = self.tail, set(self.rows)
        if tail is not None and not self.all:
            early, late = self._thresholds(tail)
            chosen = {row for row in self.rows if self.known.head[row] >= early and tail[row] >= late}
        parts: list[Json] = []
        for k, (first, last) in enumerate(self.model.strands[self.r]):
            inside = [row for row in range(first, last) if row in chosen]
            if inside:
                head = [] if tail is None else self._names(self._back(inside[0]))
                end = [] if tail is None else self._names(self._on(inside[-1]))
                bounds = {"from": inside[0] - first, "to": inside[-1] + 1 - first}
                parts.append({"strand": k, **bounds, "head": head, "tail": end})
        return {
            "rank": self.r,
            "parts": parts,
            "idle": [list(pair) for pair in self.idle],
            "start": None if self.end is None else self._names(self._start(self.end)),
        }

    def _thresholds(self, tail: list[int]) -> tuple[int, int]:
        """The head and tail from which on operations make the largest bound."""
        head, duration = self.known.head, self.model.duration
        falling = sorted(self.rows, key=lambda row: -tail[row])
        best = (-1, 0, 0)
        for least in sorted({head[row] for row in self.rows}):
            work = 0
            for row in falling:
                if head[row] >= least:
                    work += duration[row]
                    best = max(best, (least + work + tail[row], least, tail[row]))
        return best[1:]

    def _back(self, row: int) -> Chain:
        """The chain that makes an operation start no sooner than its head."""
        head, duration = self.known.head, self.model.duration
        chain = [row]
        while head[chain[0]]:
            y = chain[0]
            chain.insert(0, next(x for x, gap in self.known.before[y] if head[x] + duration[x] + gap == head[y]))
        return chain

    def _on(self, row: int) -> Chain:
        """The chain that keeps everything, or the last rank, going as long as the tail after an operation."""
        assert self.tail is not None
        after: dict[int, list[tuple[int, int]]] = {}
        for y, items in enumerate(self.known.before):
            for x, gap in items:
                after.setdefault(x, []).append((y, gap))
        chain, tail, closing = [row], self.tail, self.model.closing
        while tail[chain[-1]] > closing[chain[-1]] or self.end not in (None, self.model.rank[chain[-1]]):
            x = chain[-1]
            options = (y for y, gap in after[x] if tail[y] >= 0 and gap + self.model.duration[y] + tail[y] == tail[x])
            chain.append(next(options))
        return chain

    def _start(self, end: int) -> Chain:
        """The first operations of ranks that lead to the first of rank `end`."""
        for first, last in self.model.strands[end]:
            chain = [first]
            while self.model.upstream[chain[0]] >= 0:
                chain.insert(0, self.model.upstream[chain[0]])
            try:
                if first < last:
                    arguments.begin(self.subject, [_named(self.model, row) for row in chain], "")
                    return chain
            except Refused:
                continue
        raise AssertionError("a rank whose start is known has one that is the first in every order")

    def _names(self, chain: Chain) -> list[list[Any]]:
        return [list(_named(self.model, row)) for row in chain]


def _idle(model: Model, subject: Subject, r: int) -> list[tuple[int, int]]:
    """The microbatches, a whole cap apart, during whose round trips the rank idles, with for how long."""
    places = [place for place, holder in enumerate(subject.placement) if holder == r]
    m = subject.microbatches
    if len(places) > 1 or not subject.ordered[r] or not m:
        return []
    (place,), room = places, subject.cap[r]
    whole = subject.whole[place]
    cap = m if room is None or not whole else max(1, min(m, room // whole))
    middle = range(cap, m - cap, cap) if m > cap else ()
    wanted = [0, *middle, *([m - 1] if m > cap else [])]
    times = [(i, arguments.idle_once(subject, r, place, i)) for i in wanted]
    if m <= cap:
        times.append((m - 1, arguments.idle_once(subject, r, place, m - 1)))
        times = [max(times, key=lambda pair: pair[1])]
    return [(i, time) for i, time in times if time]
