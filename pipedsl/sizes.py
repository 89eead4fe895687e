"""The `cost` and `memory` blocks of a schedule, as exact numbers per stage and rank."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from pipedsl.diagnostics import Diagnostic, DiagnosticError
from pipedsl.evaluate import Evaluator, as_number, fail, nodes, show
from pipedsl.program import Costs, Memory
from pipedsl.syntax import Call, CostBlock, CostEntry, Expr, Function, MemoryBlock, MemoryEntry, Schedule, Size

DEFAULT_COSTS: Mapping[str, Fraction] = {"F": Fraction(1), "I": Fraction(1), "W": Fraction(1)}
"""Durations of what a file gives no cost for; B is I + W, and neither sending nor REDUCE takes time."""

Values = tuple[Fraction, ...]


def costs_of(schedule: Schedule, evaluator: Evaluator, stages: int) -> tuple[Costs | None, list[Diagnostic]]:
    """Durations per stage; None, with the mistakes, where they cannot be known."""
    found: list[Diagnostic] = []
    entries: dict[str, tuple[str | None, CostEntry]] = {}
    for per_stage in (False, True):
        for item in schedule.items:
            if isinstance(item, CostBlock) and (item.variable is not None) is per_stage:
                entries.update({entry.name: (item.variable, entry) for entry in item.entries})
    given: dict[str, Values] = {}
    for name, (variable, entry) in entries.items():
        try:
            given[name] = _values(evaluator, entry.value, variable, stages, f"the cost `{name}`")
        except DiagnosticError as error:
            found.extend(error.diagnostics)
    if found:
        return None, found
    forward, backward_input, backward_weight = (
        given.get(name, (DEFAULT_COSTS[name],) * stages) for name in ("F", "I", "W")
    )
    both = tuple(i + w for i, w in zip(backward_input, backward_weight, strict=True))
    send, reduce = (given.get(name, (Fraction(0),) * stages) for name in ("send", "REDUCE"))
    return Costs(forward, given.get("B", both), backward_input, backward_weight, send, reduce), []


def memory_of(
    schedule: Schedule, evaluator: Evaluator, stages: int, ranks: int
) -> tuple[Memory | None, list[Diagnostic]]:
    """Sizes per stage and caps per rank; None, with the mistakes, where they cannot be known."""
    found: list[Diagnostic] = []
    entries: dict[str, MemoryEntry] = {
        entry.name: entry for item in schedule.items if isinstance(item, MemoryBlock) for entry in item.entries
    }
    given: dict[str, Values] = {}
    for name, entry in entries.items():
        count = ranks if name == "cap" else stages
        try:
            given[name] = _values(evaluator, entry.value, entry.variable, count, f"the size `{name}`")
        except DiagnosticError as error:
            found.extend(error.diagnostics)
    if found:
        return None, found
    zero = (Fraction(0),) * stages
    activation = given.get("activation", (Fraction(1),) * stages)
    held_by_w = given.get("held_by_w", activation)
    for stage, (held, whole) in enumerate(zip(held_by_w, activation, strict=True)):
        if held > whole:
            span = entries["held_by_w" if "held_by_w" in entries else "activation"].value.span
            message = f"`held_by_w({stage})` is {show(held)}, more than `activation({stage})`, {show(whole)}"
            return None, [Diagnostic("PD107", message, span, help="W holds a part of the activation at most")]
    weights = given.get("weights", zero)
    memory = Memory(
        activation=activation,
        held_by_w=held_by_w,
        weights=weights,
        gradients=given.get("gradients", weights),
        optimizer=given.get("optimizer", zero),
        input=given.get("input", zero),
        output=given.get("output", zero),
        cap=given.get("cap", (None,) * ranks),
        in_bytes=_in_bytes(schedule, [entry.value for entry in entries.values()]),
    )
    return memory, []


def _in_bytes(schedule: Schedule, values: list[Expr]) -> bool:
    """Whether some value says a size in bytes, itself or by a function."""
    functions = {item.name: item.body for item in schedule.items if isinstance(item, Function)}
    waiting = list(values)
    while waiting:
        for node in nodes(waiting.pop()):
            if isinstance(node, Size):
                return True
            if isinstance(node, Call) and node.function in functions:
                waiting.append(functions.pop(node.function))
    return False


def _values(evaluator: Evaluator, expr: Expr, variable: str | None, count: int, what: str) -> Values:
    """`expr` for every value 0 .. count - 1 of its variable. Raises PD114 where it is below 0."""
    value = evaluator.compile(expr, {} if variable is None else {variable: 0})
    values: list[Fraction] = []
    for number in range(count if variable is not None else 1):
        each = as_number(value([number]), expr.span, what)
        if each < 0:
            at = "" if variable is None else f" for {variable} = {number}"
            fail("PD114", f"{what} is negative: it is {show(each)}{at}", expr.span)
        values.append(Fraction(each))
    return tuple(values) if variable is not None else tuple(values) * count
