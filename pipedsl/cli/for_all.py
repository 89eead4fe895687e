"""`pipedsl verify --for-all`: every m, and every p of a range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import click

from pipedsl.api import load
from pipedsl.cli.common import finish, print_diagnostics, print_json, print_lines
from pipedsl.cli.status import FAILED, OK, REJECTED, UNKNOWN
from pipedsl.diagnostics import Limits
from pipedsl.library import UsageError
from pipedsl.parametric import ForAll, prove_for_all, prove_for_all_in
from pipedsl.render.proof import proof_document, proof_lines
from pipedsl.render.style import Colour
from verify import Verdict

_RANGE = re.compile(r"p\s*=\s*(\d+)\s*\.\.\s*(\d+)")


def parse_quantifier(text: str) -> range:
    """`m` is the empty range, for the p of -D; `p=2..8,m` is 2 .. 8, the last one included. Raises BadParameter."""
    parts = sorted(part.strip() for part in text.split(","))
    if parts == ["m"]:
        return range(0)
    match = _RANGE.fullmatch(parts[1]) if len(parts) == 2 and parts[0] == "m" else None
    if match is None:
        raise click.BadParameter(f"{text!r} is neither `m` nor of the form `p=2..8,m`")
    first, last = int(match[1][:9]), int(match[2][:9])
    if not 1 <= first <= last:
        raise click.BadParameter(f"{text!r}: a range of p goes from 1 or more upwards")
    return range(first, last + 1)


def run(file: str, params: Mapping[str, int], ranks: range, json: bool, color: Colour, limits: Limits) -> NoReturn:
    """Prove, print, and end with the status of the worst answer."""
    if "m" in params:
        raise UsageError("--for-all proves every m: leave out `-D m=...`")
    if ranks and "p" in params:
        raise UsageError("--for-all has a range of p: leave out `-D p=...`")
    schedule = load(file, limits)
    if ranks:
        proofs = list(prove_for_all_in(schedule, params, ranks, limits).values())
    else:
        proofs = [prove_for_all(schedule, params, limits)]
    if json:
        print_json(proof_document(schedule.header.name, proofs))
    else:
        for proof in proofs:
            print_diagnostics(proof.diagnostics or (proof.report.diagnostics if proof.report else ()), color)
            print_lines(proof_lines(schedule.header.name, proof), color)
    finish(_status(proofs))


def _status(proofs: list[ForAll]) -> int:
    if any(each.code == "PD111" for proof in proofs for each in proof.diagnostics):
        return FAILED
    verdicts = {proof.verdict for proof in proofs}
    if Verdict.REJECTED in verdicts:
        return REJECTED
    return UNKNOWN if Verdict.UNKNOWN in verdicts else OK
