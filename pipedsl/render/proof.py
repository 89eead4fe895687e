"""What is proved for every m, as text and as JSON (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipedsl.render.document import diagnostic_document
from pipedsl.render.style import Line, line
from pipedsl.render.summary import STYLES, title
from verify.report import Verdict

if TYPE_CHECKING:
    from pipedsl.parametric import ForAll

VERSION = 1


def proof_lines(name: str, proof: ForAll) -> Iterator[Line]:
    """The verdict, and which m it rests on; nothing where a parameter has no value."""
    if any(each.code == "PD111" for each in proof.diagnostics):
        return
    verdict = (STYLES[proof.verdict], proof.verdict.value)
    about = " for every m"
    if proof.verdict is Verdict.REJECTED and proof.fails_at is not None:
        about = f": it fails at m = {proof.fails_at}, the smallest m that does"
    yield line(f"{title(name, proof.params)}: ", verdict, about)
    if proof.checked:
        yield line(("dim", "  one by one      "), f"  {_numbers(proof.checked)}")
    if proof.from_m is not None:
        modulo = "" if proof.period == 1 else f", argued for m modulo {proof.period}"
        admitted = " that `require` admits" if proof.refused else ""
        yield line(("dim", "  by repetition   "), f"  every m >= {proof.from_m}{admitted}{modulo}")


def _numbers(values: Sequence[int]) -> str:
    """`m = 1 .. 9, 12`: runs of neighbours together; runs of equal steps too."""
    parts: list[str] = []
    i = 0
    while i < len(values):
        step = values[i + 1] - values[i] if i + 1 < len(values) else 1
        j = i
        while j + 1 < len(values) and values[j + 1] - values[j] == step:
            j += 1
        if j - i < 2:
            parts.append(str(values[i]))
            i += 1
        else:
            every = "" if step == 1 else f" in steps of {step}"
            parts.append(f"{values[i]} .. {values[j]}{every}")
            i = j + 1
    return "m = " + ", ".join(parts)


def proof_document(name: str, proofs: Sequence[ForAll]) -> dict[str, Any]:
    """All answers; `verdict` is the worst."""
    verdicts = {proof.verdict for proof in proofs}
    worst = next(each for each in (Verdict.REJECTED, Verdict.UNKNOWN, Verdict.VERIFIED) if each in verdicts)
    return {
        "version": VERSION,
        "schedule": name,
        "verdict": worst.value,
        "proofs": [
            {
                "params": dict(proof.params),
                "verdict": proof.verdict.value,
                "checked": list(proof.checked),
                "refused": proof.refused,
                "from_m": proof.from_m,
                "period": proof.period,
                "fails_at": proof.fails_at,
                "diagnostics": [
                    diagnostic_document(each)
                    for each in proof.diagnostics or (proof.report.diagnostics if proof.report else ())
                ],
            }
            for proof in proofs
        ],
    }
