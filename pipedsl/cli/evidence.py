"""What `pipedsl verify` and `search` write besides their reports: certificates, and the mended file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipedsl.api import Result
from pipedsl.cli.common import write_output
from pipedsl.files import write_atomically
from pipedsl.library import UsageError
from pipedsl.program import Program
from pipedsl.render.numbers import number
from verify import Verdict, mend_calls, mend_program

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult


def write_certificate(result: Result, path: str) -> str:
    """Write the evidence of a verified result; what became of it in a line. Nothing is written for another one."""
    if result.verdict is not Verdict.VERIFIED or result.calls is None:
        return f"no certificate: only what is verified gets one, and this is {result.verdict.value}"
    from verify.certificate import certificate

    try:
        document = certificate(result.program, result.calls, result.report)
    except ValueError as error:
        raise UsageError(f"no certificate: {error}") from None
    write_output(path, json.dumps(document, separators=(",", ":")) + "\n")
    return f"certificate written to {_place(path)}"


def evidence_paths(path: str) -> list[str]:
    """The files that `write_search_evidence` may write: for the answer, the bound, and a solver twice."""
    if path == "-":
        raise UsageError("the certificate of a search is several files, beside one another: --certificate wants a path")
    stem = path.removesuffix(".json")
    return [path, f"{stem}.bound.json", f"{stem}.smt2", f"{stem}.narrowed.smt2"]


def write_search_evidence(result: SearchResult, path: str) -> list[str]:
    """Write the evidence for the answer to `path`, and beside it that of its bound; what was written, in lines.

    PATH.bound.json is for the small checker, PATH.smt2 and PATH.narrowed.smt2 for a solver where the bound needs one.
    """
    from pipedsl.api import parse_text, verify

    bound, refutation, narrowed = evidence_paths(path)[1:]
    # Of the .sched that is written, which has no parameters but p and m.
    said = [write_certificate(verify(parse_text(result.text), {}), path)]
    evidence = result.evidence
    write_atomically(bound, json.dumps(evidence.certificate, separators=(",", ":")) + "\n")
    said.append(f"evidence that nothing is below {number(evidence.proved)} written to {bound}")
    if evidence.refutation is None and evidence.proved < result.bound:
        said.append(f"what a solver would have to refute for {number(result.bound)} is too large to be written")
    for other, text in ((refutation, evidence.refutation), (narrowed, evidence.narrowed)):
        if text is None:  # what is there is of another search
            Path(other).unlink(missing_ok=True)
    if evidence.refutation is not None:
        write_atomically(refutation, evidence.refutation)
        said.append(f"that nothing is below {number(result.bound)} a solver says who answers unsat to {refutation}")
    if evidence.narrowed is not None:
        write_atomically(narrowed, evidence.narrowed)
        said.append(f"the same, quicker, with what follows from it: {narrowed}")
    return said


def check_mended_name(file: str, output: str) -> None:
    """UsageError where the mended `file` would be read as something else, by the name of `output`."""
    suffix, what = (".json", "calls in JSON") if file.endswith(".json") else (".sched", "a schedule's text")
    if Path(output).suffix in {".json", ".csv", ".sched"} - {suffix}:
        raise UsageError(f"{output} would be read as something else: what --fix writes of {file} is {what}, *{suffix}")


def write_mended(result: Result, file: str, output: str | None) -> str:
    """Write what is safe on every transport in place of `file`; what became of it in a line.

    The mended file stands beside the other unless `output` names it; `file` itself is left as it is.
    """
    if result.verdict is Verdict.VERIFIED:
        return "nothing to mend"
    if result.program is not None:
        return _mended_program(result, result.program, file, output)
    if result.calls is not None:
        return _mended_calls(result, file, output)
    return "not mended: see the findings"


def _mended_program(result: Result, program: Program, file: str, output: str | None) -> str:
    mended = mend_program(program)
    if mended.program is None:
        return f"not mended: {mended.reason}"
    if not program.explicit_communication:
        return "not mended: what is wrong is not the order of its messages"
    from pipedsl.kept_claims import text_with_claims

    comment = f"{program.name} with its messages in an order that is safe on every transport, written by pipedsl."
    text, dropped = text_with_claims(result.schedule, mended.program, comment)
    path = output or _beside(file, ".sched")
    write_output(path, text)
    said = f"mended, for p = {program.ranks} and m = {program.microbatches}: written to {_place(path)}"
    return f"{said}, without what does not hold of it: {'; '.join(dropped)}" if dropped else said


def _mended_calls(result: Result, file: str, output: str | None) -> str:
    assert result.calls is not None
    mended = mend_calls(result.calls)
    if mended.calls is None:
        return f"not mended: {mended.reason}"
    from pipedsl.calls_json import write_calls

    path = output or _beside(file, ".json")
    write_output(path, json.dumps(write_calls(mended.calls)) + "\n")
    return f"mended: written to {_place(path)}"


def _place(path: str) -> str:
    return "standard output" if path == "-" else path


def _beside(file: str, suffix: str) -> str:
    if file == "-":
        raise UsageError("--fix needs -o PATH where the schedule comes from standard input")
    path = Path(file)
    return str(path.with_name(f"{path.name.removesuffix(path.suffix)}.mended{suffix}"))
