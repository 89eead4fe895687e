"""The `expect` of a schedule in the text of another program of it: what still holds is kept, with what it names."""

from __future__ import annotations

from collections.abc import Sequence

from pipedsl.api import parse_text, verify
from pipedsl.evaluate import nodes
from pipedsl.format import format_expression
from pipedsl.program import Program
from pipedsl.sched_text import program_text
from pipedsl.syntax import Call, Claim, ExpectBlock, Expr, Function, Name, Schedule


def text_with_claims(schedule: Schedule | None, program: Program, comment: str) -> tuple[str, list[str]]:
    """The `.sched` of a program, and the claims that are not proved of it, which are left out."""
    claims = (
        [claim for item in schedule.items if isinstance(item, ExpectBlock) for claim in item.claims] if schedule else []
    )
    kept, dropped = list[Claim](), list[str]()
    for claim in claims:
        report = verify(parse_text(_text(schedule, program, comment, [claim])), {}).report
        holds = report.metrics is not None and not any(each.code.startswith("PD5") for each in report.diagnostics)
        kept, dropped = ([*kept, claim], dropped) if holds else (kept, [*dropped, _claim(claim)])
    return _text(schedule, program, comment, kept), dropped


def _text(schedule: Schedule | None, program: Program, comment: str, claims: Sequence[Claim]) -> str:
    functions = {item.name: item for item in schedule.items if isinstance(item, Function)} if schedule else {}
    waiting: list[Expr] = [each for claim in claims for each in (claim.condition, claim.guard) if each is not None]
    used, called = set[str](), set[str]()
    while waiting:
        for node in nodes(waiting.pop()):
            if isinstance(node, Name):
                used.add(node.id)
            elif isinstance(node, Call) and node.function in functions and node.function not in called:
                called.add(node.function)
                waiting.append(functions[node.function].body)
    written = [
        f"fn {name}({', '.join(each.parameters)}) = {format_expression(each.body)}"
        for name, each in functions.items()
        if name in called
    ]
    others = [name for name in program.params if name in used and name not in ("p", "m")]
    return program_text(program, comment, [_claim(claim) for claim in claims], functions=written, params=others)


def _claim(claim: Claim) -> str:
    text = format_expression(claim.condition)
    text = f"({text})" if text.startswith("-") else text  # else the sign would join it to the claim before
    return text if claim.guard is None else f"{text} when {format_expression(claim.guard)}"
