"""Calls to one Python file that needs torch alone: the calls as data, and the text of the runtime."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipedsl import __version__
from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Source
from pipedsl.program import COMPUTE, Kind, Program
from verify import check_calls
from verify.layouts import check_layouts
from verify.report import Verdict

if TYPE_CHECKING:
    from pipedsl.api import Result

# In the order that their names are defined in.
RUNTIME_MODULES = (
    "plan",
    "tree",
    "extras",
    "rules",
    "deferred",
    "overlaps",
    "apart",
    "chunk",
    "seeded",
    "clock",
    "patience",
    "shared_memory",
    "wire",
    "files",
    "last_words",
    "position",
    "post_mortem",
    "options",
    "turns",
    "elsewhere",
    "parting",
    "rendezvous",
    "wording",
    "watch",
    "timeline",
    "neighbours",
    "presence",
    "writes",
    "exchange",
    "loop",
    "tied",
    "copies",
    "norms",
    "scaling",
    "checkpoint",
    "data_parallel",
    "reductions",
    "executor",
)
_PACKAGE = "pipedsl.runtime"


def emit(program: Program, calls: Calls, *, source: Source, transports: Mapping[str, str]) -> str:
    """The executor's file for a program and its calls, which must be the verified ones.

    `source` is the text that the program comes from. `transports` is the verdict, as `{"gloo": "safe"}`. The same input
    gives the same text. DiagnosticError for what the executor cannot run yet (PD113), and where it would hang although
    the calls are safe (PD301).
    """
    _refuse_unsupported(program, calls)
    _, held = check_layouts(program, calls, transports)
    if held:
        raise DiagnosticError(list(dict.fromkeys(held.values())))
    return _text(program, calls, source, transports)


def _text(program: Program, calls: Calls, source: Source, transports: Mapping[str, str]) -> str:
    lines = ["\n".join(_lines(program, calls, rank)) for rank in range(calls.ranks)]
    copies = program.placement.tolist()
    names = list(program.copies or map(str, range(len(copies)))) if len(copies) > 1 else []
    imports, bodies = _runtime()
    params_text = json.dumps(dict(program.params), sort_keys=True)
    fingerprint = _fingerprint(__version__, source.text, params_text, *lines, imports, *bodies)
    name = _one_line(Path(source.name).name)
    params = ", ".join(f"{key}={value}" for key, value in program.params.items())
    data = "".join(f'    # rank {rank}\n    """\n{text}\n""",\n' for rank, text in enumerate(lines))
    parts = [
        f'"""Pipeline schedule {program.name}({params}), compiled by pipedsl {__version__} from {_docstring(name)}.\n\n'
        f"{_docstring(_verdict(transports))}\n\n{_use(program)}"
        '"""\n\n# ruff: noqa\n# mypy: ignore-errors\n'
        f"from __future__ import annotations\n\n{imports}\n",
        f"PARAMS = {json.dumps(dict(program.params))}\n"
        f"STAGES = {program.stages}\n"
        f"PLACEMENT = {copies if names else copies[0]}  # the rank of every stage{', of each copy' if names else ''}\n"
        f"TRANSPORTS = {json.dumps(dict(transports))}\n"
        f'FINGERPRINT = "{fingerprint}"  # of the schedule\'s text, the parameters, the calls, and what runs them\n',
        "# Every rank's calls, in order: `F stage microbatch line`, `REDUCE stage line`,\n"
        "# `isend message peer line`, `wait request line`.\n"
        "# Message F3@1 is microbatch 3's activation to stage 1, B3@1 its gradient; lines are the schedule's.\n"
        f"{_numbers(program, names)}"
        f"CALLS = (\n{data})\n",
        *bodies,
        f"""PLAN = Plan(
    schedule={json.dumps(program.name)},
    source={json.dumps(name)},
    params=PARAMS,
    fingerprint=FINGERPRINT,
    transports=TRANSPORTS,
    ranks={program.ranks},
    stages=STAGES,
    microbatches={program.microbatches * len(copies)},
    placement={"[rank for copy in PLACEMENT for rank in copy]" if names else "PLACEMENT"},
    calls=CALLS,
    copies={json.dumps(names)},
)


def stages_of(rank):
    \"\"\"The stage of each of a rank's modules, in order.\"\"\"
    return [stage % STAGES for stage in PLAN.chunks(rank)]


class Pipeline(Executor):
    __doc__ = Executor.__doc__

    def __init__(self, stage_modules, loss_fn=None, **options):
        super().__init__(PLAN, stage_modules, loss_fn, **options)
""",
    ]
    return "\n\n".join(parts)


def emit_result(result: Result) -> str:
    """The file for a verified result, which says of every transport whether it is safe there.

    Raises ValueError for a result that is not verified, of calls alone, or verified for nothing that a process group
    is; DiagnosticError as `emit`, where the executor would hang on a transport that the result was verified for.
    """
    program, calls = result.program, result.calls
    if result.verdict is not Verdict.VERIFIED or program is None or calls is None:
        raise ValueError("only a verified schedule can be compiled")
    asked = result.report.transports
    if not runnable(asked):
        raise ValueError(NOTHING_TO_RUN_ON)
    _refuse_unsupported(program, calls)
    states, held = check_layouts(program, calls, check_calls(calls, remedies=0).transports)
    if found := [held[name] for name in asked if name in held]:
        raise DiagnosticError(list(dict.fromkeys(found)))
    return _text(program, calls, program.spans[0].source, states)


NOTHING_TO_RUN_ON = (
    "no process group behaves as `buffered`, so that is not enough to compile for: add `--transport gloo`"
)


def runnable(transports: Iterable[str]) -> bool:
    """Whether these name a transport that a compiled file can run on."""
    return any(name != "buffered" for name in transports)


def _refuse_unsupported(program: Program, calls: Calls) -> None:
    if (calls.batch >= 0).any():
        raise DiagnosticError(
            [Diagnostic("PD113", "batched communication cannot be compiled yet", program.header_span)]
        )


def _lines(program: Program, calls: Calls, rank: int) -> Iterator[str]:
    """One rank's calls, as `pipedsl.runtime.plan.read_calls` reads them."""
    line_of_span = [span.line for span in program.spans]
    names = {int(kind): kind.name for kind in COMPUTE}
    words = {int(kind): kind.name.lower() for kind in CallKind}
    first, last = int(calls.offsets[rank]), int(calls.offsets[rank + 1])
    columns = (calls.kind, calls.op, calls.request, calls.tag, calls.peer)
    stage = program.replica.astype(np.int64) * program.stages + program.stage
    microbatch = program.replica.astype(np.int64) * program.microbatches + program.microbatch
    for kind, op, request, tag, peer in zip(*(column[first:last].tolist() for column in columns), strict=True):
        line = line_of_span[int(program.span[op])] if op >= 0 else 0
        if kind == CallKind.COMPUTE:
            operation = names[Kind(int(program.kind[op]))]
            yield f"{operation} {stage[op]} {microbatch[op]} {line}"
        elif kind == CallKind.REDUCE:
            yield f"REDUCE {stage[op]} {line}"
        elif kind == CallKind.WAIT:
            yield f"wait {request} {line}"
        else:
            yield f"{words[kind]} {_message(program, calls.tags[tag])} {peer} {line}"


def _message(program: Program, tag: str) -> str:
    """`F3@1` for itself; of a copy's `F3@1/2` the numbers that count on from copy to copy."""
    message, _, copy = tag.partition("/")
    if not copy:
        return tag
    microbatch, stage = map(int, message[1:].split("@"))
    replica = int(copy)
    return f"{tag[0]}{replica * program.microbatches + microbatch}@{replica * program.stages + stage}"


def _numbers(program: Program, names: Sequence[str]) -> str:
    """How the copies' stages and microbatches are numbered, as comments."""
    return "".join(
        f"# {name}: stages {k * program.stages} to {(k + 1) * program.stages - 1}, "
        f"microbatches {k * program.microbatches} to {(k + 1) * program.microbatches - 1}.\n"
        for k, name in enumerate(names)
    )


def _fingerprint(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _verdict(transports: Mapping[str, str]) -> str:
    safe = [name for name, verdict in transports.items() if verdict == "safe"]
    others = [f"{name} ({verdict})" for name, verdict in transports.items() if verdict != "safe"]
    text = f"Verified free of deadlock on: {', '.join(safe) or 'no transport'}."
    return f"{text}\nNOT on: {', '.join(others)}." if others else text


def _use(program: Program) -> str:
    copies = len(program.placement)
    shared = f"""
Every stage has {copies} copies, which must begin equal. Each runs its part of the batch, and gets the gradient of all.
"""
    return f"""Needs torch alone. Start {program.ranks} processes with torchrun; in each, with the modules of this
rank's stages, `[stages[s] for s in stages_of(rank)]`:

    pipe = Pipeline(stage_modules, loss_fn=loss_fn)
    for batch, targets in loader:
        losses = pipe.step(batch, targets)  # on the last stage's rank: one per microbatch
        optimizer.step()
        optimizer.zero_grad()

A batch has a multiple of {copies * program.microbatches} rows. Each stage is called with what the one before returned.
{shared if copies > 1 else ""}"""


def _one_line(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", text)


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _runtime() -> tuple[str, list[str]]:
    """The import lines that the runtime needs, and its modules' texts without theirs."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    bodies = []
    for module in RUNTIME_MODULES:
        text = (Path(__file__).parent / "runtime" / f"{module}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = text.splitlines()
        drop: set[int] = set()
        for node in tree.body:
            if isinstance(node, ast.Import):
                plain.update(alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                if origin != "__future__" and not origin.startswith(_PACKAGE):
                    named.setdefault(origin, set()).update(alias.name for alias in node.names)
            elif node is not tree.body[0]:  # the first is the docstring
                continue
            drop.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        body = "\n".join(line for number, line in enumerate(lines, 1) if number not in drop).strip()
        about = (ast.get_docstring(tree) or "").splitlines()
        banner = "\n".join(["# " + "-" * 98, *(f"# {line}".rstrip() for line in about)])
        bodies.append(
            f"{banner}\n\n\n{body}\n" if body.startswith(("class ", "def ", "@")) else f"{banner}\n\n{body}\n"
        )
    imports = [f"import {name}" for name in sorted(plain)]
    imports += [f"from {origin} import {', '.join(sorted(names))}" for origin, names in sorted(named.items())]
    return "\n".join(imports), bodies
