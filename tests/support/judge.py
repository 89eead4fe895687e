"""A mutant's verdict, and what really happens to it: whether the two agree.

A program that can be lowered is run as lowered, on every transport, and the verdict on each must be what happens there.
One whose structure is wrong has no calls; it gets the best chance that it can have: sends that never wait, messages
told apart by name, none sent twice. If it fails there, it fails everywhere. If it does not, it repeats something that
makes no difference (`wasteful`), and `repeated` is what happens where each operation sends its own message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from compiled import build
from mutants import Mutant
from rehearse import EQUAL, ERROR, HANGS, TRANSPORTS, WRONG, as_written, from_calls, run
from tiny import Model

from pipedsl.diagnostics import Source
from pipedsl.program import Program
from pipedsl.torch_csv import read_csv, write_csv
from verify import Verdict, verify

WASTEFUL = "wasteful"
_EXPECTED = {"safe": EQUAL, "deadlock": HANGS, "crossed": WRONG}
_WORST_FIRST = (ERROR, HANGS, WRONG, EQUAL)


@dataclass(frozen=True)
class Judged:
    """`happens`: the worst over the transports, or `wasteful`. `codes`: of our findings. `wrong`: a disagreement."""

    edit: str
    name: str
    accepted: bool
    happens: str
    codes: tuple[str, ...] = ()
    repeated: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""


def forms(schedule: str, p: int, m: int) -> Iterator[tuple[str, Program]]:
    """A schedule as its computations alone and, where there are any messages, with its communication written out."""
    _, program, calls = build(schedule, p=p, m=m)
    yield "computations", program
    if p > 1:
        yield "communication", read_csv(Source("explicit.csv", write_csv(program, calls)))


def judge(mutant: Mutant, model: Model) -> Judged:
    program = mutant.program
    home = program.placement[0].tolist()
    report = verify(program, remedies=0)
    accepted = report.verdict is Verdict.VERIFIED
    codes = tuple(finding.code for finding in report.diagnostics)
    if report.calls is not None:
        actions = from_calls(program, report.calls)
        outcomes = {name: run(model, home, actions, name) for name in TRANSPORTS}
        wrong = "; ".join(
            f"{name}: we say {report.transports[name]}, it is {outcome.kind} {outcome.detail}".rstrip()
            for name, outcome in outcomes.items()
            if outcome.kind != _EXPECTED.get(report.transports[name])
        )
        happens = min((outcome.kind for outcome in outcomes.values()), key=_WORST_FIRST.index)
        if not wrong and accepted != (happens == EQUAL):
            wrong = f"{'accepted' if accepted else 'rejected'}, and it is {happens}"
        return Judged(mutant.edit, mutant.name, accepted, happens, codes, wrong=wrong)
    best = run(model, home, as_written(program, once=True), "buffered").kind
    if best != EQUAL:
        return Judged(mutant.edit, mutant.name, accepted, best, codes, wrong=f"accepted: {best}" if accepted else "")
    each = as_written(program, once=False)
    repeated = {name: run(model, home, each, name).kind for name in TRANSPORTS}
    wrong = "" if set(codes) == {"PD207"} else f"rejected for {', '.join(codes)}, and it is equal"
    return Judged(mutant.edit, mutant.name, accepted, WASTEFUL, codes, repeated, wrong)
