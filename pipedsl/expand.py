"""A tree and parameters to a Program: everything computed, every rank's operations as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipedsl.check import check, suggest
from pipedsl.counting import number_microbatches
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Span
from pipedsl.evaluate import Budget, Evaluator, Value, as_int, as_truth, fail, nodes, show
from pipedsl.open_words import OpenProgram, check_strands, strands_of
from pipedsl.placements import PLACEMENTS
from pipedsl.program import Ints, Kind, Program
from pipedsl.replicas import held_chunks, named_chunks, places_of, replicas_of
from pipedsl.sizes import costs_of, memory_of
from pipedsl.syntax import Expr, Function, Name, Place, RankBlock, Require, Schedule, Stages
from pipedsl.words import Block, Operations, ops_of

STEPS_PER_RANK = 64
"""What a rank costs of the limit on steps, whether it does anything or not."""

NO_PROGRAM = ("PD204", "PD206", "PD207", "PD209")
"""What words may be wrong with under one placement and right under another; whatever else it is, is to be mended."""

RANKS_NAMED = 8
"""Ranks that one message lists before it only counts them."""


def expand(schedule: Schedule, params: Mapping[str, int], limits: Limits | None = None) -> Program:
    """The program of every rank under `params` (`-D`); defaults fill in what is missing there.

    Raises DiagnosticError with every mistake found: those of `check` alone, then of the parameters, then PD112, then
    the rest. What needs the whole program (PD206 and on) is left to the verifier.
    """
    return _expansion(schedule, params, limits or Limits(), searching=False).program()[0]


def expand_open(
    schedule: Schedule,
    params: Mapping[str, int],
    limits: Limits | None = None,
    check: Callable[[OpenProgram], None] = lambda each: None,
) -> list[OpenProgram]:
    """The search problem that a schedule states: its rows and strands, once for each placement that it leaves open.

    `check` raises for what is none. Where the words are no program under some placement, or cannot run, it is left out.
    Raises DiagnosticError as `expand` does, with PD601 for what strands cannot say, and where no placement remains.
    """
    expansion = _expansion(schedule, params, limits or Limits(), searching=True)
    found, wrong = [], []
    names = open_placements(schedule)
    for name in names or (None,):
        try:
            each = replace(expansion, layout=name).open_program()
            check(each)
        except DiagnosticError as error:
            mistakes = error.diagnostics
            if name is not None:
                mistakes = tuple(replace(each, notes=(*each.notes, f"with the placement {name}")) for each in mistakes)
            wrong.append(mistakes)
            if any(each.code not in NO_PROGRAM for each in mistakes):
                raise DiagnosticError(mistakes) from None
        else:
            found.append(each)
    if not found:
        raise DiagnosticError(wrong[0])
    return found


def open_placements(schedule: Schedule) -> tuple[str, ...]:
    """The placements that `place ?` leaves open; none where it is given."""
    place, *_ = places_of(schedule)
    return () if place.rank is not None else tuple(dict.fromkeys(place.choices or PLACEMENTS))


def _expansion(schedule: Schedule, params: Mapping[str, int], limits: Limits, searching: bool) -> _Expansion:
    found = check(schedule, limits, searching)
    if found:
        raise DiagnosticError(found)
    budget = Budget(limits)
    values = parameter_values(schedule, params, limits)
    functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
    evaluator = Evaluator(functions, values, limits, budget)
    _require(schedule, evaluator, values)
    return _Expansion(schedule, values, limits, budget, evaluator)


def parameter_values(schedule: Schedule, params: Mapping[str, int], limits: Limits) -> dict[str, int]:
    """Every parameter's value. Raises DiagnosticError with every PD111."""
    header = schedule.header
    known = [parameter.name for parameter in header.parameters]
    found = [
        Diagnostic(
            "PD111",
            f"the schedule has no parameter `{name}`",
            header.span,
            help=suggest(name, known) or f"its parameters are {', '.join(known)}",
        )
        for name in params
        if name not in known
    ]
    values: dict[str, int] = {}
    for parameter in header.parameters:
        name = parameter.name
        try:
            values[name] = _parameter(name, parameter.default, parameter.span, params, values, limits)
        except DiagnosticError as error:
            found.extend(error.diagnostics)
            values[name] = 1
    if found:
        raise DiagnosticError(found)
    return values


def _parameter(
    name: str, default: Expr | None, span: Span, params: Mapping[str, int], values: Mapping[str, int], limits: Limits
) -> int:
    value: Value
    if name in params:
        value = params[name]
    elif default is None:
        fail("PD111", f"the parameter `{name}` has no value", span, help=f"give it one: `-D {name}=4`")
    else:
        value = Evaluator({}, values, limits).value(default)
    if type(value) is not int:
        fail("PD111", f"the parameter `{name}` must be an integer, not {show(value)}", span)
    if value.bit_length() > limits.bits:
        fail("PD104", f"the parameter `{name}` needs more than {limits.bits} bits", span)
    if name in ("p", "m") and value < 1:
        what = "ranks" if name == "p" else "microbatches"
        fail("PD111", f"`{name}`, the number of {what}, must be at least 1, not {value}", span)
    return value


def _require(schedule: Schedule, evaluator: Evaluator, values: Mapping[str, int]) -> None:
    """Raise PD112 for every `require` that is not met."""
    found: list[Diagnostic] = []
    for item in schedule.items:
        if not isinstance(item, Require):
            continue
        try:
            met = as_truth(evaluator.value(item.condition), item.condition.span, "what `require` asks for")
        except DiagnosticError as error:
            found.extend(error.diagnostics)
            continue
        if not met:
            why = item.why or f"`{item.condition.span.text}` does not hold"
            used = _given(item.condition, values)
            found.append(Diagnostic("PD112", why, item.span, notes=(f"with {used}",) if used else ()))
    if found:
        raise DiagnosticError(found)


def admits(schedule: Schedule, params: Mapping[str, int], limits: Limits) -> bool:
    """Whether the `require`s of a checked schedule let these parameters in."""
    try:
        values = parameter_values(schedule, params, limits)
        functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
        _require(schedule, Evaluator(functions, values, limits, Budget(limits)), values)
    except DiagnosticError:
        return False
    return True


def _given(expr: Expr, values: Mapping[str, int]) -> str:
    """`p = 4, m = 6`, for the parameters in an expression."""
    names = dict.fromkeys(node.id for node in nodes(expr) if isinstance(node, Name))
    return ", ".join(f"{name} = {values[name]}" for name in names if name in values)


@dataclass(frozen=True)
class _Rows:
    """The operations of one rank, as a Program has them; `op` is an index into the spans of its block."""

    kind: Ints
    stage: Ints
    replica: Ints
    microbatch: Ints
    span: Ints
    operations: Operations


@dataclass(frozen=True)
class _Expansion:
    """One expansion: a checked schedule, its parameters, and what it may still cost.

    `layout`: the placement to take for `place ?`.
    """

    schedule: Schedule
    values: Mapping[str, int]
    limits: Limits
    budget: Budget
    evaluator: Evaluator
    layout: str | None = None

    def open_program(self) -> OpenProgram:
        program, rows = self.program()
        ops = [op for item in self.schedule.items if isinstance(item, RankBlock) for op in ops_of(item)]
        found, fences = [], []
        for rank, each in enumerate(rows):
            names = list(zip(each.kind.tolist(), each.replica.tolist(), each.stage.tolist(), strict=True))
            strands = strands_of(each.operations, names)
            written = [ops[number] for number in each.span.tolist()]
            first = program.rows(rank).start
            needed = check_strands(program, rank, strands, written, each.operations.index < 0)
            fences += [(first + x, first + y) for x, y in needed]
            found.append(tuple(tuple(first + row for row in strand) for strand in strands.strands))
        return OpenProgram(program, tuple(found), self.layout, tuple(fences))

    def program(self) -> tuple[Program, list[_Rows]]:
        """The program, and every rank's rows."""
        ranks, microbatches = self.values["p"], self.values["m"]
        stages_item = next(item for item in self.schedule.items if isinstance(item, Stages))
        items = [item for item in self.schedule.items if isinstance(item, RankBlock)]
        self.budget.spend(ranks * (STEPS_PER_RANK + len(items)), self.schedule.header.span)
        stages = self._stages(stages_item, microbatches)
        placement = self._placement(stages)
        costs, cost_problems = costs_of(self.schedule, self.evaluator, stages)
        memory, memory_problems = memory_of(self.schedule, self.evaluator, stages, ranks)
        names = [item.name for item in replicas_of(self.schedule)]
        blocks = [Block(item, self.evaluator, microbatches, self.limits, self.budget, names) for item in items]
        owners, problems = self._owners(blocks, ranks)
        rows, rank_problems = self._ranks(blocks, owners, placement)
        problems = [*cost_problems, *memory_problems, *problems, *rank_problems]
        if problems or costs is None or memory is None:
            raise DiagnosticError(problems)
        lengths = [len(each.kind) for each in rows]
        stage = _join([each.stage for each in rows], np.int32)
        program = Program(
            name=self.schedule.header.name,
            params=dict(self.values),
            ranks=ranks,
            stages=stages,
            microbatches=microbatches,
            placement=placement,
            offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64),
            kind=_join([each.kind for each in rows], np.int8),
            stage=stage,
            microbatch=_join([each.microbatch for each in rows], np.int32),
            replica=_join([each.replica for each in rows], np.int32),
            span=_join([each.span for each in rows], np.int32),
            spans=tuple(op.span for block in blocks for op in block.ops),
            costs=costs,
            memory=memory,
            header_span=self.schedule.header.span,
            rank_spans=tuple(blocks[owner].block.span for owner in owners),
            copies=tuple(names),
        )
        return program, rows

    def _stages(self, item: Stages, microbatches: int) -> int:
        stages = as_int(self.evaluator.value(item.count), item.count.span, "the number of stages")
        if stages < 1:
            fail("PD202", f"there must be at least 1 stage, not {stages}", item.count.span)
        copies = len(places_of(self.schedule))
        if 2 * stages * microbatches * copies > self.limits.operations:
            fail(
                "PD104",
                f"{stages:,} stages and {microbatches:,} microbatches need {2 * stages * microbatches * copies:,} "
                f"operations or more, the limit is {self.limits.operations:,}",
                item.span,
                help="use smaller parameters, or raise the limit on operations",
            )
        return stages

    def _placement(self, stages: int) -> Ints:
        """The rank of every stage of every copy: (replicas, stages). Raises PD202 for the first stage on no rank."""
        names = [item.name for item in replicas_of(self.schedule)] or [""]
        pairs = zip(places_of(self.schedule), names, strict=True)
        return np.array([self._placed(place, stages, name) for place, name in pairs], np.int32)

    def _placed(self, place: Place, stages: int, name: str) -> list[int]:
        count = next(item.count for item in self.schedule.items if isinstance(item, Stages))
        ranks = self.values["p"]
        self.budget.spend(stages, place.span)
        if self.layout is not None:
            rank_in = PLACEMENTS[self.layout]
            return [rank_in(stage, stages, ranks) for stage in range(stages)]
        assert place.rank is not None
        assert place.variable is not None
        rank_of = self.evaluator.compile(place.rank, {place.variable: 0})
        placement = []
        for stage in range(stages):
            rank = as_int(rank_of([stage]), place.rank.span, "the rank of a stage")
            if not 0 <= rank < ranks:
                of = f" of replica {name}" if name else ""
                message = f"stage {stage}{of} is placed on rank {rank}, but the ranks are 0 .. {ranks - 1}"
                raise DiagnosticError([_misplaced(message, place.rank, count)])
            placement.append(rank)
        return placement

    def _owners(self, blocks: list[Block], ranks: int) -> tuple[list[int], list[Diagnostic]]:
        """The number of the block of every rank (-1 where there is none), and PD201 where it is not one."""
        owners: list[int] = []
        bare: list[int] = []
        twice: dict[tuple[int, int], list[int]] = {}
        for rank in range(ranks):
            covering = [number for number, block in enumerate(blocks) if block.covers(rank)]
            owners.append(covering[0] if covering else -1)
            if not covering:
                bare.append(rank)
            for other in covering[1:]:
                twice.setdefault((covering[0], other), []).append(rank)
        found = []
        if bare:
            have = "has" if len(bare) == 1 else "have"
            span = self._nearest(blocks, owners, bare[0])
            found.append(Diagnostic("PD201", f"{_rank_list(bare)} {have} no program", span, help="add a `rank` block"))
        for (first, second), both in twice.items():
            have = "has" if len(both) == 1 else "have"
            label = Label(blocks[first].block.span, "and here")
            message = f"{_rank_list(both)} {have} two programs: here"
            found.append(
                Diagnostic("PD201", message, blocks[second].block.span, (label,), help="make the `where`s exclude it")
            )
        return owners, found

    def _nearest(self, blocks: list[Block], owners: list[int], bare: int) -> Span:
        """The block that was to be the program of a rank without one: one of no rank at all, or of its neighbour."""
        unused = [number for number in range(len(blocks)) if number not in owners]
        beside = [owners[rank] for rank in (bare - 1, bare + 1) if 0 <= rank < len(owners) and owners[rank] >= 0]
        block = blocks[(unused or beside or [0])[0]].block
        return block.span if block.where is None else block.where.span

    def _ranks(self, blocks: list[Block], owners: list[int], placement: Ints) -> tuple[list[_Rows], list[Diagnostic]]:
        """Every rank's rows. A mistake is reported for the first rank that has it; PD104 ends everything."""
        found: list[Diagnostic] = []
        seen: Counter[tuple[str, Span | None]] = Counter()
        rows: list[_Rows] = []
        first_op = np.cumsum([0, *(len(block.ops) for block in blocks)])
        kinds = [np.array([Kind[op.kind] for op in block.ops], np.int8) for block in blocks]
        held = held_chunks(placement, len(owners))
        left = self.limits.operations
        for rank, owner in enumerate(owners):
            if owner < 0:
                continue
            try:
                each, problems = self._rank(rank, blocks[owner], kinds[owner], held[rank], placement.shape[1], left)
                rows.append(replace(each, span=each.span + first_op[owner]))
                left -= len(each.kind)
            except DiagnosticError as error:
                if any(d.code == "PD104" for d in error.diagnostics):
                    raise
                problems = list(error.diagnostics)
                if not len(held[rank]):
                    problems = [self._without_stages(rank, problem) for problem in problems]
            for problem in problems:
                key = (problem.code, problem.span)
                seen[key] += 1
                if seen[key] == 1:
                    found.append(replace(problem, notes=(*problem.notes, self._on(rank))))
        return rows, found

    def _rank(
        self, rank: int, block: Block, kinds: Ints, held: Ints, stages: int, left: int
    ) -> tuple[_Rows, list[Diagnostic]]:
        named = named_chunks(self.schedule, held, stages)
        operations = block.run(rank, len(held), left, named)
        kind = kinds[operations.op]
        microbatch, problems = number_microbatches(operations, kind, block.ops, self.values["m"], len(held), named)
        replica, stage = np.divmod(held[operations.chunk] if len(operations.op) else operations.chunk, stages)
        return _Rows(kind, stage, replica, microbatch, operations.op, operations), problems

    def _without_stages(self, rank: int, problem: Diagnostic) -> Diagnostic:
        """PD204 on a rank that holds nothing, at what places the stages."""
        place, *_ = places_of(self.schedule)
        if problem.code != "PD204" or problem.span is None or place.rank is None:
            return problem
        labels = (Label(problem.span, f"rank {rank} runs an operation here"),)
        help_ = "place a stage on every rank, or leave the rank out with a `where`"
        message = f"no stage is placed on rank {rank}, which has operations"
        return replace(problem, message=message, span=place.rank.span, labels=labels, help=help_)

    def _on(self, rank: int) -> str:
        given = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return f"on rank {rank}, with {given}"


def _misplaced(message: str, rank: Expr, count: Expr) -> Diagnostic:
    """PD202, where the number of stages is wrong if it changes with that of microbatches."""
    if any(isinstance(node, Name) and node.id == "m" for node in nodes(count)):
        labels = (Label(rank.span, "this is their placement"),)
        return Diagnostic(
            "PD202", message, count.span, labels, help="stages are of ranks, not of microbatches: use `p`"
        )
    return Diagnostic("PD202", message, rank.span)


def _join(parts: list[Ints], dtype: type) -> Ints:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _rank_list(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`, and how many more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:RANKS_NAMED]))
    more = f" and {len(ranks) - RANKS_NAMED} more" if len(ranks) > RANKS_NAMED else ""
    return f"ranks {named}{more}"
