"""What can be said about a schedule before any number is known.

Names, arities, duplicates, kinds of values, recursion, missing items, and what is not supported yet. Every mistake is
reported once, at its first place; what follows from it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Label, Limits, Span
from pipedsl.evaluate import BUILTINS, nodes
from pipedsl.placements import PLACEMENTS
from pipedsl.replicas import check_replicas, replicas_of
from pipedsl.shape import check_depth, recursive_functions, words
from pipedsl.syntax import (
    Binary,
    Boolean,
    Call,
    Claim,
    Compare,
    Conditional,
    CostBlock,
    Depend,
    ExpectBlock,
    Expr,
    For,
    Function,
    If,
    Let,
    MemoryBlock,
    Minimize,
    Name,
    Op,
    Overlap,
    Place,
    RankBlock,
    Repeat,
    Replica,
    Require,
    Schedule,
    Sequence,
    Shuffle,
    Size,
    Stages,
    SubjectTo,
    Unary,
    Word,
)

COSTS = ("F", "I", "W", "B", "send", "REDUCE")
OBJECTIVES = ("makespan", "span")
METRICS = ("makespan", "bubble", "span", "span_bubble")
RANK_METRICS = ("peak", "memory")
RANK_VARIABLE = "r"
"""The name that ranges over all ranks in a claim."""

MEMORY_NAMES = ("activation", "held_by_w", "input", "output", "weights", "gradients", "optimizer", "cap")
PLANNED_KINDS = ("OFFLOAD", "RELOAD", "RECOMPUTE")

Type = Literal["number", "truth"] | None
"""What an expression is known to give; None when only its arguments can tell."""


@dataclass(frozen=True)
class _Variable:
    """Where a variable was defined, and what is known of its values."""

    span: Span | None
    type: Type


def _claims_only(scope: _Scope) -> str:
    return "what a claim says, not in its `when`" if scope.guard else "the claims of `expect` only"


@dataclass(frozen=True)
class _Scope:
    """The names that an expression may use."""

    variables: Mapping[str, _Variable]
    claims: bool = False
    functions: bool = True
    guard: bool = False  # of a claim

    def add(self, name: str, span: Span | None, type: Type = "number") -> _Scope:
        return replace(self, variables={**self.variables, name: _Variable(span, type)})


def check(schedule: Schedule, limits: Limits | None = None, searching: bool = False) -> list[Diagnostic]:
    """Every mistake of a schedule that needs no numbers to be seen, in the order of the text.

    `searching`: open orders are what is looked for; without it they are a mistake (PD601).
    """
    checker = _Checker(schedule, frozenset(item.name for item in replicas_of(schedule)))
    try:
        check_depth(schedule, limits or Limits())
    except DiagnosticError as error:
        return list(error.diagnostics)
    checker.run()
    if not searching:
        checker.found.extend(_refused_openings(schedule))
    if not any(d.code == "PD110" for d in checker.found):
        try:
            check_depth(schedule, limits or Limits(), through_functions=True)
        except DiagnosticError as error:
            checker.found.extend(error.diagnostics)
    return sorted(checker.found, key=lambda d: d.span.start if d.span else 0)


def openings(schedule: Schedule) -> list[Span]:
    """What a schedule leaves open: its `||` and its `place ?`. None makes it a search problem."""
    found = []
    for item in schedule.items:
        if isinstance(item, Place) and item.rank is None:
            found.append(item.span)
        elif isinstance(item, RankBlock):
            found.extend(word.span for word in words(item.body) if isinstance(word, Shuffle))
    return found


def _refused_openings(schedule: Schedule) -> list[Diagnostic]:
    """PD601, once, where something only search can work with."""
    places = openings(schedule)
    if places:
        help_ = "run `pipedsl search` on it: what it writes can be verified, shown and compiled"
        return [Diagnostic("PD601", "this is a search problem: an order or placement is open", places[0], help=help_)]
    for item in schedule.items:
        if isinstance(item, Minimize | SubjectTo):
            name = "minimize" if isinstance(item, Minimize) else "subject to"
            help_ = "leave it out (`expect` holds claims), or leave an order open with `||`"
            message = f"`{name}` is for a search problem, and nothing is open here"
            return [Diagnostic("PD601", message, item.span, help=help_)]
    return []


def suggest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean ...`, where a known name is close."""
    import difflib  # only where there is a mistake

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None


@dataclass
class _Checker:
    """Walks a schedule once and collects."""

    schedule: Schedule
    replicas: frozenset[str]
    found: list[Diagnostic] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)

    def say(self, code: str, message: str, span: Span, help: str | None = None, first: Span | None = None) -> None:
        labels = (Label(first, "first here"),) if first is not None else ()
        self.found.append(Diagnostic(code, message, span, labels=labels, help=help))

    def planned(self, what: str, span: Span) -> None:
        help_ = "see `Kept for later` in docs/language.md"
        self.say("PD113", f"{what} is not supported yet", span, help=help_)

    # ----------------------------------------------------------------- items

    def run(self) -> None:
        top = self.parameters()
        self.declare_functions(top)
        cycles = recursive_functions(self.functions)
        for cycle in cycles:
            path = " -> ".join(f"`{name}`" for name in [*cycle, cycle[0]])
            span = self.functions[cycle[0]].span
            self.say("PD110", f"functions must not be recursive: {path}", span, help="use `for` or a closed formula")
        recursive = {name for cycle in cycles for name in cycle}
        for name, function in self.functions.items():
            self.function(name, function, top, name in recursive)
        self.single_items()
        self.cost_entries()
        self.memory_entries()
        for item in self.schedule.items:
            self.item(item, top)

    def parameters(self) -> _Scope:
        """The scope of the file. A default may use the parameters before it."""
        scope = _Scope({}, functions=False)
        header = self.schedule.header
        for parameter in header.parameters:
            if parameter.default is not None:
                self.expect(parameter.default, scope, "number", f"the default of `{parameter.name}`")
            scope = self.define(scope, parameter.name, parameter.span)
        missing = [name for name in ("p", "m") if name not in scope.variables]
        if missing:
            names = " and ".join(f"`{name}`" for name in missing)
            self.say(
                "PD115",
                f"the schedule has no parameter {names}",
                header.span,
                help="`p` is the number of ranks and `m` of microbatches: `schedule name(p, m)`",
            )
            for name in missing:
                scope = scope.add(name, header.span)
        return replace(scope, functions=True)

    def define(self, scope: _Scope, name: str, span: Span, type: Type = "number") -> _Scope:
        """`scope` with one more name; a name has one meaning at a time."""
        if name in scope.variables:
            self.say("PD106", f"`{name}` is defined twice", span, "choose another name", scope.variables[name].span)
        elif name in COSTS or name in METRICS or name in self.replicas:
            what = "a cost" if name in COSTS else "a metric" if name in METRICS else "a replica"
            self.say("PD106", f"`{name}` already has a meaning: it is {what}", span, help="choose another name")
        return scope.add(name, span, type)

    def declare_functions(self, top: _Scope) -> None:
        for item in self.schedule.items:
            if not isinstance(item, Function):
                continue
            if item.name in self.functions:
                first = self.functions[item.name].span
                self.say("PD106", f"function `{item.name}` is defined twice", item.span, first=first)
            elif item.name in BUILTINS or item.name in RANK_METRICS:
                self.say("PD106", f"`{item.name}` is a built-in function", item.span, help="choose another name")
            elif item.name in top.variables or item.name in METRICS or item.name in COSTS or item.name in self.replicas:
                self.say("PD106", f"`{item.name}` already has a meaning", item.span, help="choose another name")
            self.functions.setdefault(item.name, item)

    def function(self, name: str, function: Function, top: _Scope, recursive: bool) -> None:
        scope = top
        seen: set[str] = set()
        for parameter in function.parameters:
            if parameter in seen:
                self.say("PD106", f"function `{name}` has two parameters called `{parameter}`", function.span)
            elif parameter in COSTS or parameter in METRICS:
                self.say("PD106", f"`{parameter}` already has a meaning", function.span, help="choose another name")
            seen.add(parameter)
            scope = scope.add(parameter, function.span, None)
        found = self.expr(function.body, scope)
        if not recursive:
            self.types[name] = found

    def single_items(self) -> None:
        """What must be there once."""
        self.found.extend(check_replicas(self.schedule))
        wanted: tuple[tuple[type, str, str], ...] = (
            (Stages, "stages", "`stages p` for one stage a rank"),
            (Place, "place", "`place s -> s` puts stage s on rank s"),
            (Minimize, "minimize", ""),
        )
        for kind, name, example in wanted:
            items = [item for item in self.schedule.items if isinstance(item, kind)]
            for item in items[1:]:
                self.say("PD106", f"`{name}` is given twice", item.span, first=items[0].span)
            if not items and example and not (kind is Place and self.replicas):
                self.say("PD115", f"the schedule has no `{name}`", self.schedule.header.span, help=f"write {example}")
        if not any(isinstance(item, RankBlock) for item in self.schedule.items):
            self.say(
                "PD115",
                "the schedule has no `rank` block",
                self.schedule.header.span,
                help="write `rank r { ... }`, the program of every rank",
            )

    def item(self, item: object, top: _Scope) -> None:
        match item:
            case Require():
                self.expect(item.condition, top, "truth", "what `require` asks for")
            case Stages():
                self.expect(item.count, top, "number", "the number of stages")
            case Place():
                self.place(item, top)
            case Replica():
                self.place(item.place, top)
            case RankBlock():
                scope = self.define(top, item.variable, item.span)
                if item.where is not None:
                    self.expect(item.where, scope, "truth", "what stands after `where`")
                self.word(item.body, scope)
            case CostBlock():
                scope = top if item.variable is None else self.define(top, item.variable, item.span)
                for cost in item.entries:
                    self.expect(cost.value, scope, "number", f"the cost `{cost.name}`")
            case MemoryBlock():
                for entry in item.entries:
                    scope = self.define(top, entry.variable, entry.span)
                    self.expect(entry.value, scope, "number", f"the size `{entry.name}`")
            case ExpectBlock():
                for claim in item.claims:
                    self.claim(claim, top)
            case Minimize():
                if item.objective not in OBJECTIVES:
                    self.unknown("objective", item.objective, OBJECTIVES, item.span)
            case SubjectTo():
                scope = top if RANK_VARIABLE in top.variables else top.add(RANK_VARIABLE, None)
                self.expect(item.condition, replace(scope, claims=True), "truth", "what stands after `subject to`")
            case Depend():
                self.planned("`depend`", item.span)
            case _:
                pass

    def place(self, place: Place, top: _Scope) -> None:
        if place.variable is None or place.rank is None:
            for name in place.choices:
                if name not in PLACEMENTS:
                    self.unknown("placement", name, PLACEMENTS, place.span)
        else:
            self.expect(place.rank, self.define(top, place.variable, place.span), "number", "the rank of a stage")

    def cost_entries(self) -> None:
        first: dict[tuple[bool, str], Span] = {}
        for item in self.schedule.items:
            for entry in item.entries if isinstance(item, CostBlock) else ():
                if entry.name not in COSTS:
                    self.unknown("cost", entry.name, COSTS, entry.span)
                    continue
                key = (isinstance(item, CostBlock) and item.variable is None, entry.name)
                if key in first:
                    self.say("PD106", f"the cost `{entry.name}` is given twice", entry.span, first=first[key])
                first.setdefault(key, entry.span)

    def memory_entries(self) -> None:
        first: dict[str, Span] = {}
        for item in self.schedule.items:
            for entry in item.entries if isinstance(item, MemoryBlock) else ():
                if entry.name not in MEMORY_NAMES:
                    self.unknown("size", entry.name, MEMORY_NAMES, entry.span)
                    continue
                if entry.name in first:
                    self.say("PD106", f"`{entry.name}` is given twice", entry.span, first=first[entry.name])
                first.setdefault(entry.name, entry.span)

    def unknown(self, what: str, name: str, known: Iterable[str], span: Span) -> None:
        """PD105, once a name."""
        if name in self.reported:
            return
        self.reported.add(name)
        known = list(known)
        help = suggest(name, known) or (f"known here: {', '.join(known)}" if 0 < len(known) <= 12 else None)
        self.say("PD105", f"unknown {what} `{name}`", span, help=help)

    def claim(self, claim: Claim, top: _Scope) -> None:
        scope = top if RANK_VARIABLE in top.variables else top.add(RANK_VARIABLE, None)
        self.expect(claim.condition, replace(scope, claims=True), "truth", "a claim")
        if claim.guard is not None:
            self.expect(claim.guard, replace(scope, guard=True), "truth", "what stands after `when`")

    # ----------------------------------------------------------------- words

    def word(self, word: Word, scope: _Scope) -> _Scope:
        """Checks a word; gives the scope of what follows it in its block."""
        match word:
            case Op():
                self.operation(word, scope)
            case Sequence():
                inner = scope
                for item in word.items:
                    inner = self.word(item, inner)
            case Repeat():
                self.expect(word.count, scope, "number", "a count")
                self.word(word.body, scope)
            case For():
                self.expect(word.start, scope, "number", "the start of a range")
                self.expect(word.stop, scope, "number", "the end of a range")
                self.word(word.body, self.define(scope, word.variable, word.span))
            case If():
                self.expect(word.condition, scope, "truth", "the condition of `if`")
                self.word(word.then, scope)
                if word.orelse is not None:
                    self.word(word.orelse, scope)
            case Let():
                found = self.expr(word.value, scope)
                return self.define(scope, word.name, word.span, found)
            case Overlap():
                self.planned("`&`, two operations overlapped as one,", word.span)
            case Shuffle():
                for operand in word.operands:
                    self.word(operand, scope)
        return scope

    def operation(self, op: Op, scope: _Scope) -> None:
        if op.kind == "REDUCE" and op.index is not None:
            message = "`REDUCE` has no microbatch: it sums the gradients of all of them"
            self.say("PD205", message, op.index.span, "leave the brackets out; `REDUCE@c` names the chunk")
        elif op.kind in PLANNED_KINDS:
            self.planned(f"`{op.kind}`", op.span)
        if op.chunk is not None and not (isinstance(op.chunk, Name) and op.chunk.id in self.replicas):
            self.expect(op.chunk, scope, "number", "the number of a chunk")
        if op.index is not None:
            self.expect(op.index, scope, "number", "the number of a microbatch")

    # ----------------------------------------------------------- expressions

    def expect(self, expr: Expr, scope: _Scope, wanted: Type, what: str) -> None:
        """Checks `expr`, which must give a number, or true or false."""
        found = self.expr(expr, scope)
        if found is not None and found != wanted:
            if wanted == "truth":
                self.say("PD107", f"{what} must be true or false, this is a number", expr.span, "compare it")
            else:
                self.say("PD107", f"{what} must be a number, this is true or false", expr.span)

    def expr(self, expr: Expr, scope: _Scope) -> Type:
        match expr:
            case Boolean():
                return "truth"
            case Name():
                return self.name(expr, scope)
            case Unary(op="not"):
                self.expect(expr.operand, scope, "truth", "what `not` negates")
                return "truth"
            case Unary():
                self.expect(expr.operand, scope, "number", "what `-` negates")
                return "number"
            case Binary():
                wanted: Type = "truth" if expr.op in ("and", "or") else "number"
                self.expect(expr.left, scope, wanted, f"each side of `{expr.op}`")
                self.expect(expr.right, scope, wanted, f"each side of `{expr.op}`")
                if expr.op in ("/", "//", "%") and isinstance(expr.right, Size) and _is_bare(expr.left):
                    message = f"this divides by a size: `{expr.span.text}` is one over bytes, not bytes"
                    self.say("PD107", message, expr.span, help="half a GiB is `0.5 GiB`, or `512 MiB`")
                return wanted
            case Compare():
                for operand in expr.operands:
                    self.expect(operand, scope, "number", "what is compared")
                return "truth"
            case Conditional():
                self.expect(expr.condition, scope, "truth", "the condition")
                then, orelse = self.expr(expr.then, scope), self.expr(expr.orelse, scope)
                return then if then == orelse else None
            case Call():
                return self.call(expr, scope)
            case _:
                return "number"

    def name(self, name: Name, scope: _Scope) -> Type:
        known = name.id
        if known in scope.variables:
            return scope.variables[known].type
        if known in COSTS or known in METRICS:
            if not scope.claims:
                what = "cost" if known in COSTS else "metric"
                operation = "if the operation is meant: a number is wanted here, as in `A * n B`"
                help_ = operation if len(known) == 1 and not scope.guard else None
                where = _claims_only(scope)
                self.say("PD107", f"the {what} `{known}` may stand in {where}", name.span, help_)
            return "number"
        if known in self.functions or known in BUILTINS or known in RANK_METRICS:
            self.say("PD108", f"`{known}` is a function and needs its arguments", name.span, f"write `{known}(...)`")
            return None
        self.unknown("name", known, [*scope.variables, *(METRICS if scope.claims else ())], name.span)
        return None

    def call(self, call: Call, scope: _Scope) -> Type:
        name = call.function
        for argument in call.arguments:
            self.expr(argument, scope)
        if name in RANK_METRICS:
            if not scope.claims:
                self.say("PD107", f"`{name}` may stand in {_claims_only(scope)}", call.name_span)
            self.arity(call, 1)
            return "number"
        if name in self.functions and not scope.functions:
            self.say("PD107", f"the default of a parameter cannot call `{name}`", call.span, "use earlier parameters")
            return None
        if name in self.functions:
            self.arity(call, len(self.functions[name].parameters))
            return self.types.get(name)
        if name in BUILTINS:
            self.arity(call, BUILTINS[name])
            return "number"
        if name in scope.variables or name in METRICS or name in COSTS:
            self.say("PD108", f"`{name}` is a number, not a function", call.name_span, f"write `{name}`")
            return None
        self.unknown("function", name, [*self.functions, *BUILTINS, *RANK_METRICS], call.name_span)
        return None

    def arity(self, call: Call, wanted: int | None) -> None:
        """`wanted` is the number of arguments; None is one or more."""
        given = len(call.arguments)
        if given == wanted or (wanted is None and given >= 1):
            return
        want = "at least 1 argument" if wanted is None else f"{wanted} argument{'' if wanted == 1 else 's'}"
        function = self.functions.get(call.function)
        self.found.append(
            Diagnostic(
                "PD108",
                f"`{call.function}` takes {want}, {given} given",
                call.span,
                labels=() if function is None else (Label(function.span, "defined here"),),
            )
        )


def _is_bare(expr: Expr) -> bool:
    """Whether an expression is no size for certain: of numbers and names alone."""
    return not any(isinstance(node, Size | Call) for node in nodes(expr))
