"""SMT-LIB text that says: some order's objective is at most a limit. Any solver of linear integer arithmetic reads it.

One integer per operation, its start. Pairs of one rank that no argument orders get a truth value, "x before y"; those
of two strands form a staircase, since x before y implies that the one before x is before y, and x before the one after
y. Memory is clauses over the same truth values: how many of a strand come before F[j] is what they say. Only
differences of two starts and bounds of one occur, except where a rank that does not run in microbatch order needs sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from pipedsl.program import Kind
from verify.search.bounds import in_order
from verify.search.early import Prompt, prompt_rows
from verify.search.load import Literal, load_clauses, negated
from verify.search.model import Model
from verify.search.windows import Window


class Formula:
    """`lines`: the assertions. `sums`: whether some are more than differences and clauses.

    `lazy`: ranks of several chunks, whose memory is left out: `overfull` says what orders that do not fit break.
    `literal(x, y)`: that x ends before y starts, for two rows of a rank.
    """

    def __init__(self, model: Model, window: Window, loads: bool = True) -> None:
        self.model, self.window = model, window
        self.names = [f"{op.kind.name}.{op.stage}.{op.microbatch}" for op in model.operations]
        # A start that is known is a number.
        known = [first if first == last else None for first, last in zip(window.earliest, window.latest, strict=True)]
        self.starts = [name if at is None else str(at) for name, at in zip(self.names, known, strict=True)]
        self.open = [at is None for at in known]
        self.declared: list[str] = [
            f"(declare-const {name} Int)" for name, is_open in zip(self.names, self.open, strict=True) if is_open
        ]
        self.lines: list[str] = []
        self.sums = False
        self.lazy: list[int] = []
        self._truths: dict[tuple[int, int], str] = {}
        self._times()
        for pairs in model.strands:
            for one, other in combinations(pairs, 2):
                self._staircase(one, other)
        ordered = in_order(model)
        for r, room in enumerate(model.room):
            if room is not None:
                self._memory(r, room, ordered[r])
        if loads:
            self.lines += load_clauses(model, window, self.literal, dict(enumerate(self.names)))

    def text(self, comment: str = "", more: Sequence[str] = ()) -> str:
        """A whole file: unsatisfiable when no order is within the limit. `more`: clauses about lazy ranks."""
        notes = [f"; {line}" for line in comment.splitlines()]
        return "\n".join((*notes, "(set-logic QF_LIA)", *self.declared, *self.lines, *more, "(check-sat)", ""))

    def assertions(self) -> str:
        return "\n".join((*self.declared, *self.lines))

    def near(self, like: Sequence[int]) -> dict[str, int]:
        """Of starts those that are open, by name: told of others, which it does not know, z3 answers wrongly."""
        return {name: at for name, at, is_open in zip(self.names, like, self.open, strict=True) if is_open}

    def prompts(self) -> list[str]:
        """Assertions that no rank begins later than it could, which `lines` leave out: mostly they only cost time."""
        return [self._prompt(prompt) for prompt in prompt_rows(self.model, self.window)]

    def literal(self, x: int, y: int) -> Literal:
        model = self.model
        if model.strand[x] == model.strand[y]:
            return x < y
        if model.local[x] == y or model.local[y] == x:
            return model.local[y] == x
        known = self.window.known(x, y)
        if known is not None:
            return known
        found = self._truths.get((x, y))
        return f"(not {self._truths[y, x]})" if found is None else found

    def _times(self) -> None:
        names, window, duration = self.starts, self.window, self.model.duration
        for row, name in enumerate(names):
            if self.open[row]:
                self.lines.append(f"(assert (<= {window.earliest[row]} {name} {window.latest[row]}))")
        for y, items in enumerate(window.before):
            for x, gap in items:
                if window.latest[x] + duration[x] + gap > window.earliest[y]:
                    self.lines.append(f"(assert {self._apart(x, y, duration[x] + gap)})")
        for r in window.spans:
            self.declared.append(f"(declare-const begin.{r} Int)")
            for row in (row for pair in self.model.strands[r] for row in range(*pair)):
                self.lines.append(f"(assert (>= (- {names[row]} begin.{r}) 0))")
                self.lines.append(
                    f"(assert (<= (- {names[row]} begin.{r}) {window.limit - duration[row] - self.model.closing[row]}))"
                )

    def _apart(self, x: int, y: int, gap: int) -> str:
        return f"(>= (- {self.starts[y]} {self.starts[x]}) {gap})"

    def _prompt(self, prompt: Prompt) -> str:
        """Why a row starts when it does."""
        name, duration = self.starts[prompt.row], self.model.duration
        reasons = [f"(<= {name} 0)"]
        if prompt.upstream >= 0:
            reasons.append(self._no_later(prompt.row, prompt.upstream, duration[prompt.upstream] + prompt.lag))
        for other in prompt.others:
            before, at_once = self.literal(other, prompt.row), self._no_later(prompt.row, other, duration[other])
            if before is not False:
                reasons.append(at_once if before is True else f"(and {before} {at_once})")
        return f"(assert (or false {' '.join(reasons)}))"

    def _no_later(self, y: int, x: int, gap: int) -> str:
        return f"(<= (- {self.starts[y]} {self.starts[x]}) {gap})"

    def _staircase(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        model, duration, truths = self.model, self.model.duration, self._truths
        for x in range(*one):
            for y in self.window.undecided(x, other):
                if model.local[x] == y or model.local[y] == x:
                    continue
                name = f"{self.names[x]}<{self.names[y]}"
                truths[x, y] = name
                self.declared.append(f"(declare-const {name} Bool)")
                self.lines.append(f"(assert (or (not {name}) {self._apart(x, y, duration[x])}))")
                self.lines.append(f"(assert (or {name} {self._apart(y, x, duration[y])}))")
        for x in range(*one):
            for y in self.window.undecided(x, other):
                if (x, y) not in truths:
                    continue
                for left, right, inside in ((x - 1, y, x > one[0]), (x, y + 1, y + 1 < other[1])):
                    implied = truths.get((left, right)) if inside else None
                    if implied is not None:
                        self.lines.append(f"(assert (or (not {truths[x, y]}) {implied}))")

    def _memory(self, r: int, room: int, ordered: bool) -> None:
        model = self.model
        kinds = sorted(model.kind[first] for first, last in model.strands[r] if first < last)
        alike = ordered and all(self._one_kind(pair) for pair in model.strands[r])
        if alike and kinds == sorted((int(Kind.F), int(Kind.I), int(Kind.W))):
            self._memory_of_one_chunk(r, room)
        elif alike:
            if len(kinds) > 2:
                self.lazy.append(r)
        else:
            self._memory_by_sums(r, room)
        # F and B of one chunk: the precedences that memory forces say it all.

    def _memory_of_one_chunk(self, r: int, room: int) -> None:
        """F[j] fits when enough I and W are before it: for every number of I, how many W are needed."""
        model = self.model
        by_kind = {model.kind[first]: (first, last) for first, last in model.strands[r]}
        forwards, inputs, weights = (by_kind[int(kind)] for kind in (Kind.F, Kind.I, Kind.W))
        held = model.give[weights[0]]
        for j, f in enumerate(range(*forwards)):
            whole = model.take[f]
            for done in range(j + 1):
                # With at most `done` I before F[j] are held (j + 1) whole - done (whole - held) - (W before) held.
                over = (j + 1) * whole - done * (whole - held) - room
                if over <= 0:
                    break
                needed = -(-over // held) if held else done + 1
                more: Literal = self.literal(inputs[0] + done, f) if done < j else False
                enough: Literal = self.literal(weights[0] + needed - 1, f) if needed <= done else False
                self._either(more, enough)

    def _one_kind(self, pair: tuple[int, int]) -> bool:
        return len({(self.model.kind[row], self.model.operations[row].stage) for row in range(*pair)}) <= 1

    def overfull(self, r: int, order: Sequence[int]) -> Iterator[list[Literal]]:
        """For every F of an order that does not fit: what of it must change, as a clause; one of these is to hold.

        Fewer of a strand that takes must come before F, or more of one that gives: one literal a strand says so.
        """
        model = self.model
        room = model.room[r]
        assert room is not None
        counts = [0] * len(model.strands[r])
        held = 0
        for row in order:
            over = held + model.take[row] - room
            if model.take[row] and over > 0:
                yield self._relief(r, row, counts, over - 1)
            counts[model.strand[row]] += 1
            held += model.take[row] - model.give[row]

    def _relief(self, r: int, f: int, counts: Sequence[int], spare: int) -> list[Literal]:
        """`spare`: so much less would still be too much, so that the clause may ask for more."""
        model = self.model
        clause: list[Literal] = []
        for k, (first, last) in enumerate(model.strands[r]):
            if k == model.strand[f] or first == last:
                continue
            at, size = counts[k], model.give[first] - model.take[first]
            if size > 0:
                more = min(spare // size, last - first - at)
                spare -= more * size
                if first + at + more < last:
                    clause.append(self.literal(first + at + more, f))
            elif size < 0 and at:
                fewer = min(spare // -size, at - 1)
                spare -= fewer * -size
                before = self.literal(first + at - 1 - fewer, f)
                clause.append(not before if isinstance(before, bool) else negated(before))
        return [literal for literal in clause if literal is not False]

    def _either(self, *options: Literal) -> None:
        if any(option is True for option in options):
            return
        self.lines.append(f"(assert (or false {' '.join(str(option) for option in options if option is not False)}))")

    def _memory_by_sums(self, r: int, room: int) -> None:
        """What is held when each F starts, as a sum over the operations before it."""
        model = self.model
        rows = [row for first, last in model.strands[r] for row in range(first, last)]
        for f in rows:
            if not model.take[f]:
                continue
            left, terms, most = room - model.take[f], [], 0
            for row in rows:
                change = model.take[row] - model.give[row]
                if row == f or not change:
                    continue
                before = self.literal(row, f)
                if before is True:
                    left -= change
                elif before is not False:
                    terms.append(f"(ite {before} {change} 0)" if change > 0 else f"(ite {before} (- {-change}) 0)")
                    most += max(change, 0)
            if most > left:
                self.sums = True
                limit = str(left) if left >= 0 else f"(- {-left})"
                total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
                self.lines.append(f"(assert (<= {total if terms else 0} {limit}))")
