"""The syntax tree of a `.sched` file: what the text says, before anything is computed.

Every node carries the span that wrote it. Parameters are still names here; `pipedsl.expand` computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from pipedsl.diagnostics import Source, Span

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Number:
    """`3`, `0.7` (exactly 7/10)."""

    value: int | Fraction
    span: Span


@dataclass(frozen=True)
class Size:
    """`80 GiB`: a number with a binary unit (KiB, MiB, GiB, TiB)."""

    value: int | Fraction
    unit: str
    span: Span


@dataclass(frozen=True)
class Boolean:
    """`true`, `false`."""

    value: bool
    span: Span


@dataclass(frozen=True)
class Name:
    """A parameter, variable, cost (`F`, `send`) or bare metric (`bubble`)."""

    id: str
    span: Span


@dataclass(frozen=True)
class Unary:
    """`-x`, `not x`."""

    op: str
    operand: Expr
    span: Span


@dataclass(frozen=True)
class Binary:
    """`+ - * / // %`, and `and or`."""

    op: str
    left: Expr
    right: Expr
    span: Span


@dataclass(frozen=True)
class Compare:
    """A chain as Python reads it: `operands[0] ops[0] operands[1] ops[1] ...`."""

    ops: tuple[str, ...]
    operands: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True)
class Conditional:
    """`then if condition else orelse`."""

    condition: Expr
    then: Expr
    orelse: Expr
    span: Span


@dataclass(frozen=True)
class Call:
    """`min(a, b)`, `warmup(r)`, `peak(r)`. `name_span` is the name alone."""

    function: str
    arguments: tuple[Expr, ...]
    name_span: Span
    span: Span


Expr = Number | Size | Boolean | Name | Unary | Binary | Compare | Conditional | Call

# ---------------------------------------------------------------------- words


@dataclass(frozen=True)
class Op:
    """`F`, `F[i]`, `F@c`, `F@c[i]`; `kind` is a name of `program.Kind`."""

    kind: str
    chunk: Expr | None
    index: Expr | None
    span: Span


@dataclass(frozen=True)
class Sequence:
    """Juxtaposition: `A B C`."""

    items: tuple[Word, ...]
    span: Span


@dataclass(frozen=True)
class Repeat:
    """`A * n`."""

    body: Word
    count: Expr
    span: Span


@dataclass(frozen=True)
class For:
    """`for k in a .. b { body }`: k = a, ..., b - 1."""

    variable: str
    start: Expr
    stop: Expr
    body: Word
    span: Span


@dataclass(frozen=True)
class If:
    """`if c { then } else { orelse }`; `else if` nests in `orelse`."""

    condition: Expr
    then: Word
    orelse: Word | None
    span: Span


@dataclass(frozen=True)
class Let:
    """`let x = e`, in force until the end of the enclosing block."""

    name: str
    value: Expr
    span: Span


@dataclass(frozen=True)
class Overlap:
    """`A & B`: one overlapped unit. Reserved: checked, not yet expanded."""

    left: Word
    right: Word
    span: Span


@dataclass(frozen=True)
class Shuffle:
    """`A || B`: any interleaving. For search."""

    operands: tuple[Word, ...]
    span: Span


Word = Op | Sequence | Repeat | For | If | Let | Overlap | Shuffle

# ---------------------------------------------------------------------- items


@dataclass(frozen=True)
class Parameter:
    """`v = 2` of a header."""

    name: str
    default: Expr | None
    span: Span


@dataclass(frozen=True)
class Header:
    """`schedule name(p, m, v = 2)`; `doc` is the comment block right above it, without `#`."""

    name: str
    parameters: tuple[Parameter, ...]
    doc: str
    span: Span


@dataclass(frozen=True)
class Require:
    """`require condition, "why"`."""

    condition: Expr
    why: str | None
    span: Span


@dataclass(frozen=True)
class Stages:
    """`stages e`."""

    count: Expr
    span: Span


@dataclass(frozen=True)
class Place:
    """`place s -> e`. `place ? in linear, v` (search) has `variable` and `rank` None; without `in`, no choices."""

    variable: str | None
    rank: Expr | None
    span: Span
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replica:
    """`replica name { place s -> e }`: a copy of all stages. Operations name it: `F@name`."""

    name: str
    place: Place
    span: Span


@dataclass(frozen=True)
class Function:
    """`fn f(x) = e`."""

    name: str
    parameters: tuple[str, ...]
    body: Expr
    span: Span


@dataclass(frozen=True)
class RankBlock:
    """`rank r where cond { body }`; an empty block has an empty `Sequence`."""

    variable: str
    where: Expr | None
    body: Word
    span: Span


@dataclass(frozen=True)
class CostEntry:
    """`F = 1`; `name` is F, I, W, B or send (and the kinds that later issues add)."""

    name: str
    value: Expr
    span: Span


@dataclass(frozen=True)
class CostBlock:
    """`cost { ... }`, or `cost s { ... }` per stage."""

    variable: str | None
    entries: tuple[CostEntry, ...]
    span: Span


@dataclass(frozen=True)
class MemoryEntry:
    """`activation(s) = e`; `variable` is a stage, for `cap` a rank."""

    name: str
    variable: str
    value: Expr
    span: Span


@dataclass(frozen=True)
class MemoryBlock:
    """`memory { ... }`."""

    entries: tuple[MemoryEntry, ...]
    span: Span


@dataclass(frozen=True)
class Claim:
    """`condition when guard`. A variable `r` that is nobody's parameter ranges over all ranks."""

    condition: Expr
    guard: Expr | None
    span: Span


@dataclass(frozen=True)
class ExpectBlock:
    """`expect { ... }`."""

    claims: tuple[Claim, ...]
    span: Span


@dataclass(frozen=True)
class Minimize:
    """`minimize makespan`. For search."""

    objective: str
    span: Span


@dataclass(frozen=True)
class SubjectTo:
    """`subject to condition`. For search."""

    condition: Expr
    span: Span


@dataclass(frozen=True)
class DependRef:
    """`F[k]@s` in a `depend` item."""

    kind: str
    index: Expr
    stage: Expr
    span: Span


@dataclass(frozen=True)
class Depend:
    """`depend F[k]@s on F[k - g]@t when guard`. Reserved."""

    target: DependRef
    on: DependRef
    guard: Expr | None
    span: Span


Item = (
    Header
    | Require
    | Stages
    | Place
    | Replica
    | Function
    | RankBlock
    | CostBlock
    | MemoryBlock
    | ExpectBlock
    | Minimize
    | SubjectTo
    | Depend
)


@dataclass(frozen=True)
class Comment:
    """`# text`, with the `#`; `own_line` when nothing but space stands before it on its line."""

    text: str
    own_line: bool
    span: Span


@dataclass(frozen=True)
class Schedule:
    """A parsed file: its items in the order of the text, and its comments (for `fmt`)."""

    source: Source
    header: Header
    items: tuple[Item, ...]
    comments: tuple[Comment, ...] = field(repr=False)
    span: Span
