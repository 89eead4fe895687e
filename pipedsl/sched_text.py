"""A Program as a `.sched` text, for what was mended or read from another format.

The text holds for the one p and m of the program. Operations have no index where a rank runs the microbatches of a kind
and chunk in order. What repeats is written as a repetition, and ranks that differ in counts alone share a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from fractions import Fraction
from textwrap import wrap

import numpy as np

from pipedsl.growth import Growth
from pipedsl.program import Ints, Kind, Program
from pipedsl.rank_classes import RankClass, class_words, rank_classes

_WIDTH = 100
_FEW_TERMS = 12  # of a word that has each on a line of its own
_INDENT = "    "
_KIB = 1024
_COSTS = (
    ("F", "forward"),
    ("B", "backward"),
    ("I", "backward_input"),
    ("W", "backward_weight"),
    ("send", "send"),
    ("REDUCE", "reduce"),
)


def program_text(
    program: Program,
    comment: str = "",
    claims: Sequence[str] = (),
    growth: Growth | None = None,
    functions: Sequence[str] = (),
    params: Sequence[str] = (),
) -> str:
    """The text; `expand` makes the same program of it. Replicas without names are called `copy0`, `copy1`, ...

    `claims`: those of its `expect` block; `functions` and other `params` (of the program's) are what they name. A line
    end in `comment` stays one. With a `growth` (of `classes_of`), m is a parameter; the text at the program's own m
    makes the same program.
    """
    p, m = program.ranks, program.microbatches if growth is None else growth.default
    # A name of a file may hold what is no character.
    plain = comment.encode("utf-8", "backslashreplace").decode()
    said = [part for line in plain.splitlines() for part in wrap(line, _WIDTH - 2)]
    lines = [f"# {line}".rstrip() for line in said]
    others = [f"{name} = {program.params[name]}" for name in params]
    lines += [
        f"schedule {program.name}({', '.join([f'p = {p}', f'm = {m}', *others])})",
        _requirement(p, m, growth),
        "",
        f"stages {program.stages}",
        *_places(program),
        *(["", *functions] if functions else []),
    ]
    for number, found in enumerate(classes_of(program)):
        counts = [_affine(term.slope, term.base, p) for term in found.terms]
        if growth is not None:
            grows = growth.terms[number]
            counts[grows] = growth.count(number, found.terms[grows].slope, found.terms[grows].base)
        lines += ["", *_rank_block(found, p, counts)]
    lines += [*_costs(program), *_memory(program)]
    if claims:
        lines += ["", "expect {", *(f"{_INDENT}{claim}" for claim in claims), "}"]
    return "\n".join(part for line in lines for part in _wrapped(line)) + "\n"


def classes_of(program: Program) -> list[RankClass]:
    """The words of all ranks."""
    return rank_classes([_names(program, rank) for rank in range(program.ranks)])


def _requirement(p: int, m: int, growth: Growth | None) -> str:
    if growth is None:
        sizes = f"{p} rank{'' if p == 1 else 's'} and {m} microbatch{'' if m == 1 else 'es'}"
        return f'require p == {p} and m == {m}, "this text was written for {sizes}"'
    shortest, period = growth.shortest, growth.period
    condition = f"p == {p} and m >= {shortest}" + (f" and m % {period} == {growth.remainder}" if period > 1 else "")
    return f'require {condition}, "written for {p} ranks and m = {shortest}, {shortest + period}, ..."'


def _places(program: Program) -> list[str]:
    """`place`, or a `replica` for each copy."""
    places = [f"place s -> {_placement(ranks, program.ranks)}" for ranks in program.placement.tolist()]
    names = program.copies or tuple(f"copy{k}" for k in range(len(places)))
    return places if len(places) == 1 else [f"replica {n} {{ {p} }}" for n, p in zip(names, places, strict=True)]


def _wrapped(line: str) -> list[str]:
    """A line as several where it is long; layout is free, but `fmt` keeps the header on one."""
    if len(line) <= _WIDTH or '"' in line or line.startswith("schedule "):
        return [line]
    return wrap(line, _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False)


# ----------------------------------------------------------------- operations


def _names(program: Program, rank: int) -> list[str]:
    """A rank's operations as the text has them, one by one."""
    rows = program.rows(rank)
    chunks = program.chunks(rank)
    number = {replica * program.stages + stage: chunk for chunk, (replica, stage) in enumerate(chunks)}
    part = slice(rows.start, rows.stop)
    kinds, microbatches = program.kind[part], program.microbatch[part]
    held = program.replica[part].astype(np.int64) * program.stages + program.stage[part]
    counted = _in_order(kinds, held, microbatches)
    names = []
    for kind, stage, microbatch in zip(kinds.tolist(), held.tolist(), microbatches.tolist(), strict=True):
        at = f"@{number[stage]}" if len(chunks) > 1 else ""
        index = "" if kind == Kind.REDUCE or (kind, stage) in counted else f"[{microbatch}]"
        names.append(f"{Kind(kind).name}{at}{index}")
    return names


def _in_order(kinds: Ints, held: Ints, microbatches: Ints) -> set[tuple[int, int]]:
    """The (kind, stage of a replica) whose microbatches run as they are numbered."""
    found = set()
    for kind, stage in set(zip(kinds.tolist(), held.tolist(), strict=True)):
        own = microbatches[(kinds == kind) & (held == stage)]
        if np.array_equal(own, np.arange(len(own))):
            found.add((kind, stage))
    return found


def _rank_block(found: RankClass, ranks: int, counts: Sequence[str]) -> list[str]:
    """The lines of the block of a class, with these texts as counts."""
    if (found.first, found.last) == (0, ranks - 1):
        where = ""
    elif found.first == found.last:
        where = f" where r == {found.first}"
    elif found.first == 0:
        where = f" where r <= {found.last}"
    elif found.last == ranks - 1:
        where = f" where r >= {found.first}"
    else:
        where = f" where {found.first} <= r <= {found.last}"
    words = class_words(found, counts)
    # A line for each term of a short word but for those that run once; of a long one, as many as there is room for.
    lines: list[str] = []
    joins = False
    for term, word in zip(found.terms, words, strict=True):
        once = len(words) > _FEW_TERMS or (term.slope, term.base) == (0, 1)
        if joins and once and len(lines[-1]) + 1 + len(word) <= _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(_INDENT + word)
        joins = once
    return [f"rank r{where} {{", *lines, "}"]


def _affine(slope: int, base: int, ranks: int) -> str:
    """The count `slope * r + base`, as a count may be written; `p` is used for what is near it."""
    if slope == 0:
        return str(base)
    size = abs(slope)
    variable = "r" if size == 1 else f"{size} * r"
    if slope > 0:
        if base == 0:
            return variable if size == 1 else f"({variable})"
        return f"({variable} {'+' if base > 0 else '-'} {abs(base)})"
    near, rest = divmod(base, ranks)
    if rest == ranks - 1:
        near, rest = near + 1, -1
    if near > 0 and rest in (-1, 0):
        whole = "p" if near == 1 else f"{near} * p"
        return f"({whole} - {variable})" if rest == 0 else f"({whole} - 1 - {variable})"
    return f"({base} - {variable})"


# --------------------------------------------------------------------- values


def _placement(ranks: Sequence[int], p: int) -> str:
    """The rank of stage s: as a formula where it is one of the usual placements."""
    stages = len(ranks)
    if stages > p and stages % p == 0 and list(ranks) == [s * p // stages for s in range(stages)]:
        return f"s // {stages // p}" if p > 1 else "0"
    if p > 1 and list(ranks) == [*range(p), *reversed(range(p))]:
        return f"s if s < p else {2 * p - 1} - s"
    if p > 1 and list(ranks) == [*reversed(range(p))]:
        return "p - 1 - s"
    return _choice("s", ranks, str)


def _choice(variable: str, values: Sequence[object], text: Callable[[object], str]) -> str:
    """An expression that is `values[k]` where the variable is k."""
    period = max((int(value) for value in values if isinstance(value, int)), default=0) + 1
    if period > 1 and list(values) == [k % period for k in range(len(values))]:
        return variable if period == len(values) else f"{variable} % {period}"
    runs = [(0, values[0])]
    runs += [(k, value) for k, value in enumerate(values) if k and value != values[k - 1]]
    return _halves(variable, runs, text)


def _halves(variable: str, runs: Sequence[tuple[int, object]], text: Callable[[object], str]) -> str:
    """Halved again and again, so that a thousand runs are nested ten deep."""
    if len(runs) == 1:
        return text(runs[0][1])
    half = len(runs) // 2
    low, high = (_halves(variable, part, text) for part in (runs[:half], runs[half:]))
    low = f"({low})" if half > 1 else low
    return f"{low} if {variable} < {runs[half][0]} else {high}"


def _costs(program: Program) -> list[str]:
    """The `cost` block, without what is so by itself."""
    costs, ones, zeros = program.costs, *((Fraction(value),) * program.stages for value in (1, 0))
    both = tuple(i + w for i, w in zip(costs.backward_input, costs.backward_weight, strict=True))
    usual = {"F": ones, "I": ones, "W": ones, "B": both, "send": zeros, "REDUCE": zeros}
    values = [(name, getattr(costs, attribute)) for name, attribute in _COSTS]
    entries = [f"    {name} = {_choice('s', each, _exact)}" for name, each in values if each != usual[name]]
    return ["", "cost s {", *entries, "}"] if entries else []


def _exact(value: object) -> str:
    """A number as `fmt` writes it."""
    return str(value).replace("/", " / ")


def _memory(program: Program) -> list[str]:
    """The `memory` block, without what is so by itself; all of it where sizes are bytes."""
    memory = program.memory

    def size(value: object) -> str:
        if not memory.in_bytes:
            return _exact(value)
        whole = Fraction(str(value)) / _KIB
        return f"{whole.numerator} KiB" + (f" / {whole.denominator}" if whole.denominator > 1 else "")

    usual: dict[str, object] = {
        "activation": (Fraction(1),) * program.stages,
        "held_by_w": memory.activation,
        "gradients": memory.weights,
    }
    entries = []
    for field in fields(memory):
        values = getattr(memory, field.name)
        if not isinstance(values, tuple) or None in values:
            continue
        if memory.in_bytes or values != usual.get(field.name, (Fraction(0),) * len(values)):
            variable = "r" if field.name == "cap" else "s"
            entries.append(f"    {field.name}({variable}) = {_choice(variable, values, size)}")
    return ["", "memory {", *entries, "}"] if entries else []
