"""A schedule under one residue class of m: everything the text computes, as lines in q, and the ParametricProgram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.evaluate import Budget, Evaluator, Value, as_number, as_truth, fail
from pipedsl.expand import expand
from pipedsl.parametric.values import Growing, Scope, Unanalysable, of_line
from pipedsl.parametric.words import ParametricBlock, Unknown
from pipedsl.program import Program
from pipedsl.replicas import places_of
from pipedsl.sizes import costs_of, memory_of
from pipedsl.syntax import (
    CostBlock,
    CostEntry,
    Expr,
    Function,
    Item,
    MemoryBlock,
    MemoryEntry,
    RankBlock,
    Require,
    Schedule,
    Stages,
)
from verify.forall import Linear, NeedsPeriod, ParametricProgram, Threshold


class Refused(Exception):
    """`require` admits no m of the class from the threshold on."""


@dataclass(frozen=True)
class Residue:
    """The class m = period * q + residue of a schedule under the other parameters."""

    schedule: Schedule
    params: Mapping[str, int]
    limits: Limits
    period: int
    residue: int

    def microbatches(self) -> Linear:
        return Linear(self.period, self.residue)

    def m(self, size: int) -> int:
        return self.period * size + self.residue

    def functions(self) -> dict[str, Function]:
        return {item.name: item for item in self.schedule.items if isinstance(item, Function)}

    def values(self, scope: Scope) -> dict[str, Value]:
        """Every parameter, with m open."""
        values: dict[str, Value] = {}
        for parameter in self.schedule.header.parameters:
            if parameter.name == "m":
                values["m"] = of_line(scope, self.microbatches())
            elif parameter.name in self.params:
                values[parameter.name] = self.params[parameter.name]
            elif parameter.default is not None:
                value = self._located(parameter.default, Evaluator({}, values, self.limits))
                if not isinstance(value, int | Growing) or isinstance(value, bool):
                    fail("PD111", f"the parameter `{parameter.name}` must be an integer", parameter.span)
                values[parameter.name] = value
            if parameter.name == "p" and isinstance(values["p"], Growing):
                raise Unknown(parameter.span, "the number of ranks depends on m")
        return values

    def program(self, threshold: Threshold) -> ParametricProgram:
        """The program for all q >= `threshold.start`, which rises.

        Raises Refused, Unknown, NeedsPeriod, TooLate, and DiagnosticError for what is wrong from some m on.
        """
        scope = Scope(threshold)
        values = self.values(scope)
        budget = Budget(self.limits)
        evaluator = Evaluator(self.functions(), values, self.limits, budget)
        for item in self.schedule.items:
            if isinstance(item, Require):
                met = self._located(item.condition, evaluator)
                if not as_truth(met, item.condition.span, "what `require` asks for"):
                    raise Refused
        ranks = values["p"]
        stages = self._number(evaluator, self._item(Stages).count, "the number of stages")
        placement = self._placement(evaluator, stages, ranks)
        self._refuse_growing_sizes(evaluator, stages)
        fixed = replace(self.schedule, items=tuple(map(_without_caps, self.schedule.items)))
        costs, cost_problems = costs_of(self.schedule, evaluator, stages)
        memory, memory_problems = memory_of(fixed, evaluator, stages, ranks)
        if costs is None or memory is None:
            raise DiagnosticError([*cost_problems, *memory_problems])
        words = []
        items = [item for item in self.schedule.items if isinstance(item, RankBlock)]
        blocks = [ParametricBlock(item, evaluator, scope, self.limits, budget) for item in items]
        first = np.cumsum([0, *(len(block.ops) for block in blocks)]).tolist()
        spans = tuple(op.span for block in blocks for op in block.ops)
        for rank in range(ranks):
            owners = [number for number, block in enumerate(blocks) if block.covers(rank)]
            if len(owners) != 1:
                fail("PD201", f"rank {rank} has {len(owners)} programs", self.schedule.header.span)
            own = [stage for stage, where in enumerate(placement) if where == rank]
            word = blocks[owners[0]].run(rank, own)
            words.append(
                tuple(
                    replace(part, body=tuple(replace(op, span=op.span + first[owners[0]]) for op in part.body))
                    for part in word
                )
            )
        return ParametricProgram(
            name=self.schedule.header.name,
            ranks=ranks,
            microbatches=self.microbatches(),
            placement=tuple(placement),
            words=tuple(words),
            costs=costs,
            memory=memory,
            caps=self._caps(evaluator, ranks),
            spans=spans,
        )

    def same_as_expanded(self, program: ParametricProgram, size: int) -> bool:
        """Whether the ordinary expansion at q = `size` gives the same rows: a check on the analysis, no proof."""
        ours = program.at(size)
        theirs = expand(self.schedule, {**self.params, "m": self.m(size)}, self.limits)
        return _rows_equal(ours, theirs)

    # ----------------------------------------------------------------- parts

    def _item(self, kind: type[Stages]) -> Stages:
        return next(item for item in self.schedule.items if isinstance(item, kind))

    def _placement(self, evaluator: Evaluator, stages: int, ranks: int) -> list[int]:
        place, *others = places_of(self.schedule)
        if others:
            raise Unknown(others[0].span, "there are replicas")
        assert place.rank is not None
        assert place.variable is not None
        found = []
        for stage in range(stages):
            rank = self._number(evaluator, place.rank, "the rank of a stage", {place.variable: 0}, stage)
            if not 0 <= rank < ranks:
                fail("PD202", f"stage {stage} is placed on rank {rank}", place.rank.span)
            found.append(rank)
        return found

    def _number(
        self, evaluator: Evaluator, expr: Expr, what: str, slots: Mapping[str, int] | None = None, at: int = 0
    ) -> int:
        value = self._located(expr, evaluator, slots, at)
        if isinstance(value, Growing):
            raise Unknown(expr.span, f"{what} depends on m")
        if type(value) is not int:
            fail("PD107", f"{what} must be an integer", expr.span)
        return value

    def _refuse_growing_sizes(self, evaluator: Evaluator, stages: int) -> None:
        """Costs and sizes must not depend on m; caps may."""
        for variable, entry in _entries(self.schedule):
            if isinstance(entry, MemoryEntry) and entry.name == "cap":
                continue
            slots = {} if variable is None else {variable: 0}
            for stage in range(stages if variable is not None else 1):
                if isinstance(self._located(entry.value, evaluator, slots, stage), Growing):
                    raise Unknown(entry.value.span, f"`{entry.name}` depends on m")

    def _caps(self, evaluator: Evaluator, ranks: int) -> tuple[Linear | None, ...]:
        entries = [entry for _, entry in _entries(self.schedule) if entry.name == "cap"]
        if not entries:
            return (None,) * ranks
        entry = entries[-1]
        assert isinstance(entry, MemoryEntry)
        found = []
        for rank in range(ranks):
            value = as_number(self._located(entry.value, evaluator, {entry.variable: 0}, rank), entry.value.span, "cap")
            if value < 0:
                fail("PD114", "the size `cap` is negative for large m", entry.value.span)
            if isinstance(value, Growing):
                try:
                    found.append(value.fractional_line("the cap is no multiple of m and a number"))
                except Unanalysable as error:
                    raise Unknown(entry.value.span, str(error)) from None
            else:
                found.append(Linear(Fraction(0), Fraction(value)))
        return tuple(found)

    def _located(self, expr: Expr, evaluator: Evaluator, slots: Mapping[str, int] | None = None, at: int = 0) -> Value:
        try:
            return evaluator.compile(expr, slots)([at])
        except Unanalysable as error:
            raise Unknown(expr.span, str(error)) from None
        except NeedsPeriod as need:
            need.where = need.where or expr
            raise


def _entries(schedule: Schedule) -> list[tuple[str | None, CostEntry | MemoryEntry]]:
    found: list[tuple[str | None, CostEntry | MemoryEntry]] = []
    for item in schedule.items:
        if isinstance(item, CostBlock):
            found.extend((item.variable, entry) for entry in item.entries)
        elif isinstance(item, MemoryBlock):
            found.extend((entry.variable, entry) for entry in item.entries)
    return found


def _without_caps(item: Item) -> Item:
    if isinstance(item, MemoryBlock):
        return replace(item, entries=tuple(entry for entry in item.entries if entry.name != "cap"))
    return item


def _rows_equal(ours: Program, theirs: Program) -> bool:
    columns = ("offsets", "kind", "stage", "microbatch", "span", "placement")
    return all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in columns)
