"""What is proved for all m against the ordinary verifier at many m, on schedules that depend on m in many ways."""

from __future__ import annotations

from random import Random

import parametric
from hypothesis import given, settings
from hypothesis import strategies as st

from pipedsl.api import parse_text, verify
from pipedsl.parametric import Bounds, prove_for_all
from verify import Verdict

BOUNDS = Bounds(period=24, microbatches=400)


def verdict_at(text: str, p: int, m: int) -> Verdict | None:
    """None where `require` refuses m."""
    report = verify(parse_text(text), {"p": p, "m": m}).report
    return None if {each.code for each in report.diagnostics} == {"PD112"} else report.verdict


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_all_m_agrees_with_each_m(seed: int) -> None:
    random = Random(seed)
    text, p = parametric.schedule(random)
    proved = prove_for_all(parse_text(text), {"p": p}, bounds=BOUNDS)
    sample = {*range(1, 8), *(random.randint(8, 80) for _ in range(4)), random.randint(81, 240)}
    if proved.from_m is not None:
        sample |= {proved.from_m, proved.from_m + 1}
    for m in sorted(sample):
        found = verdict_at(text, p, m)
        early = proved.fails_at is not None and m < proved.fails_at
        if proved.verdict is Verdict.VERIFIED or early:
            assert found in (Verdict.VERIFIED, None), (text, p, m)
    if proved.fails_at is not None:
        assert verdict_at(text, p, proved.fails_at) is Verdict.REJECTED, (text, p)


def test_most_random_schedules_are_decided() -> None:
    """So that the test above is about something: both answers occur, early and late, and few are left open."""
    answers = []
    for seed in range(60):
        text, p = parametric.schedule(Random(seed))
        answers.append(prove_for_all(parse_text(text), {"p": p}, bounds=BOUNDS))
    verdicts = [answer.verdict for answer in answers]
    assert verdicts.count(Verdict.UNKNOWN) <= 6
    assert verdicts.count(Verdict.VERIFIED) >= 15
    assert verdicts.count(Verdict.REJECTED) >= 15
    assert sum(answer.fails_at is not None and answer.fails_at > 4 for answer in answers) >= 3
