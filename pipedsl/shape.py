"""The shape of a tree: its walks, its depth, and who calls whom. Nothing here recurses, whatever the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits, Span
from pipedsl.evaluate import children, nodes
from pipedsl.syntax import (
    Call,
    Claim,
    CostBlock,
    ExpectBlock,
    Expr,
    For,
    Function,
    If,
    Let,
    MemoryBlock,
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
    Stages,
    SubjectTo,
    Word,
)

MAX_DEPTH = 500
"""Depth of evaluation, functions included. Well below what Python's own stack can hold."""

_LEVEL, _CALL, _FUNCTION = 2, 3, 4
"""What one level of an expression or word, a call, and the body of a function add to the depth."""


def parts(word: Word) -> tuple[Word, ...]:
    """The words right below one."""
    match word:
        case Sequence():
            return word.items
        case Repeat() | For():
            return (word.body,)
        case If():
            return (word.then,) if word.orelse is None else (word.then, word.orelse)
        case Overlap():
            return (word.left, word.right)
        case Shuffle():
            return word.operands
        case _:
            return ()


def words(word: Word) -> list[Word]:
    """A word and everything below it."""
    found = [word]
    for node in found:
        found.extend(parts(node))
    return found


def word_expressions(word: Word) -> tuple[Expr, ...]:
    """The expressions that a word itself holds, not those of the words below it."""
    match word:
        case Op():
            return tuple(expr for expr in (word.chunk, word.index) if expr is not None)
        case Repeat():
            return (word.count,)
        case For():
            return (word.start, word.stop)
        case If():
            return (word.condition,)
        case Let():
            return (word.value,)
        case _:
            return ()


def size(word: Word) -> int:
    """The nodes of a word, expressions included."""
    return sum(1 + sum(len(nodes(expr)) for expr in word_expressions(node)) for node in words(word))


def check_depth(schedule: Schedule, limits: Limits, through_functions: bool = False) -> None:
    """Raise PD104 where evaluation would nest too deep, so that every later walk may recurse.

    `through_functions` follows calls into the functions, which must then not be recursive.
    """
    depths: dict[str, int] = {}
    if through_functions:
        functions = {item.name: item for item in schedule.items if isinstance(item, Function)}
        for name in _callees_first(functions):
            depths[name] = _depth(functions[name].body, depths)
            _refuse_deep(depths[name], functions[name].span)
    for expr in _expressions(schedule):
        _refuse_deep(_depth(expr, depths), expr.span)
    for item in schedule.items:
        if isinstance(item, RankBlock):
            _check_word_depth(item.body, depths, limits)


def recursive_functions(functions: Mapping[str, Function]) -> list[list[str]]:
    """The cycles in who calls whom, each from its first function in the text; one cycle a function at most."""
    done: set[str] = set()
    cycles: list[list[str]] = []
    for root in functions:
        path: dict[str, Iterator[str]] = {}
        entered = None if root in done else root
        while entered is not None or path:
            if entered is not None:
                path[entered] = iter(_callees(functions[entered], functions))
            name = next(reversed(path))
            entered = next((callee for callee in path[name] if callee not in done), None)
            if entered is None:
                del path[name]
                done.add(name)
            elif entered in path:
                names = list(path)
                cycles.append(names[names.index(entered) :])
                entered = None
    return cycles


def _callees(function: Function, functions: Mapping[str, Function]) -> list[str]:
    called = (node.function for node in nodes(function.body) if isinstance(node, Call))
    return [name for name in dict.fromkeys(called) if name in functions]


def _callees_first(functions: Mapping[str, Function]) -> list[str]:
    """The names of functions that are not recursive, callees before callers."""
    order: dict[str, None] = {}
    for root in functions:
        pending = [root]
        while pending:
            name = pending[-1]
            waiting = [callee for callee in _callees(functions[name], functions) if callee not in order]
            if waiting:
                pending.extend(waiting)
            else:
                order[name] = None
                pending.pop()
    return list(order)


def _depth(expr: Expr, functions: Mapping[str, int]) -> int:
    """How deep the evaluation of an expression nests; `functions` are the depths of those it may call."""
    depths: dict[int, int] = {}
    for node in reversed(nodes(expr)):
        below = max((depths[id(child)] for child in children(node)), default=0)
        if isinstance(node, Call):
            body = functions.get(node.function)
            below = max(below, 0 if body is None else body + _FUNCTION)
            depths[id(node)] = below + _CALL
        else:
            depths[id(node)] = below + _LEVEL
    return depths[id(expr)]


def _refuse_deep(depth: int, span: Span) -> None:
    if depth > MAX_DEPTH:
        raise DiagnosticError(
            [
                Diagnostic(
                    "PD104",
                    "this nests too deep, the functions it calls included",
                    span,
                    help="split it: use `let`, or fewer functions that call each other",
                )
            ]
        )


def _check_word_depth(root: Word, functions: Mapping[str, int], limits: Limits) -> None:
    pending = [(root, _LEVEL)]
    while pending:
        word, depth = pending.pop()
        for expr in word_expressions(word):
            _refuse_deep(depth + _depth(expr, functions), expr.span)
        _refuse_deep(depth, word.span)
        pending.extend((part, depth + _LEVEL) for part in parts(word))


def _expressions(schedule: Schedule) -> list[Expr]:
    """The expressions of every item, those in rank blocks' words aside."""
    found: list[Expr | None] = [parameter.default for parameter in schedule.header.parameters]
    for item in schedule.items:
        match item:
            case Require():
                found.append(item.condition)
            case Stages():
                found.append(item.count)
            case Place():
                found.append(item.rank)
            case Replica():
                found.append(item.place.rank)
            case Function():
                found.append(item.body)
            case RankBlock():
                found.append(item.where)
            case CostBlock() | MemoryBlock():
                found.extend(entry.value for entry in item.entries)
            case SubjectTo():
                found.append(item.condition)
            case ExpectBlock():
                found.extend(expr for claim in item.claims for expr in _of_claim(claim))
            case _:
                pass
    return [expr for expr in found if expr is not None]


def _of_claim(claim: Claim) -> list[Expr]:
    return [claim.condition] if claim.guard is None else [claim.condition, claim.guard]
