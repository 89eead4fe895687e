"""Whatever bytes a file holds: reading, formatting, verifying and showing it end in a verdict or a diagnostic, soon.

Many more: `python tests/property/test_whole_line.py 100000`.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from fuzz import garbage, mutate  # noqa: E402

from pipedsl.api import rejection, verify  # noqa: E402
from pipedsl.diagnostics import DiagnosticError, Limits  # noqa: E402
from pipedsl.format import format_schedule  # noqa: E402
from pipedsl.parser import parse, read_source  # noqa: E402
from pipedsl.render.document import report_document  # noqa: E402
from pipedsl.render.report import diagnostics_lines  # noqa: E402
from pipedsl.render.style import paint  # noqa: E402
from pipedsl.render.summary import summary_lines  # noqa: E402
from pipedsl.render.timeline import timeline_lines  # noqa: E402
from verify import Report, Verdict  # noqa: E402

TEXTS = [
    path.read_bytes().decode("utf-8", "replace")
    for path in sorted([*ROOT.glob("schedules/*.sched"), *ROOT.glob("tests/golden/*.sched")])
]
# So low that no mutation of a count costs much.
LIMITS = Limits(operations=2_000, steps=5_000)
SECONDS = 5.0  # generous: a busy machine is no hang


def judge(data: bytes, rng: random.Random) -> Report:
    """The whole line for one file, everything it says written out."""
    params = {"p": rng.choice((1, 2, 3, 4)), "m": rng.choice((1, 2, 3, 4, 8))}
    result = None
    try:
        schedule = parse(read_source("x.sched", data, LIMITS), LIMITS)
        formatted = format_schedule(schedule)
        assert format_schedule(parse(read_source("y.sched", formatted.encode(), LIMITS), LIMITS)) == formatted
        result = verify(schedule, params, limits=LIMITS)
        report = result.report
    except DiagnosticError as error:
        report = rejection(error)
    assert report.diagnostics or report.verdict is Verdict.VERIFIED
    paint(diagnostics_lines(report.diagnostics), colour=True)
    report_document("x", params, report)
    if result is not None:
        paint(summary_lines(report, result.program, result.claim_counts), colour=False)
        if result.program is not None and result.timeline is not None:
            paint(timeline_lines(result.program, result.timeline, 80), colour=False)
    return report


def inputs(seed: int) -> tuple[bytes, random.Random]:
    rng = random.Random(seed)
    return (garbage(rng) if rng.random() < 0.1 else mutate(rng, rng.choice(TEXTS))), rng


def check(seed: int) -> Report:
    data, rng = inputs(seed)
    start = time.perf_counter()
    try:
        report = judge(data, rng)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {data!r}") from error
    assert time.perf_counter() - start < SECONDS, f"seed {seed} takes long: {data!r}"
    return report


@pytest.mark.parametrize("part", range(6))
def test_any_input(part: int) -> None:
    verdicts = {check(seed).verdict for seed in range(500 * part, 500 * (part + 1))}
    assert {Verdict.VERIFIED, Verdict.REJECTED} <= verdicts, "the mutations reach both ends"


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + int(sys.argv[1])):
        try:
            check(seed)
        except AssertionError as error:
            print(error, "<-", repr(error.__cause__), flush=True)
