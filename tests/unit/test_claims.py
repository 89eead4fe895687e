"""Claims of small schedules whose numbers are known."""

from dataclasses import replace

import pytest

from pipedsl.api import parse_text, verify, verify_text
from pipedsl.claims import ClaimCounts, check_claims
from pipedsl.diagnostics import Diagnostic
from pipedsl.expand import expand
from pipedsl.program import Costs
from pipedsl.render.summary import summary_lines
from pipedsl.simulate import Metrics, measure, simulate

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\nfn warmup(r) = min(p - 1 - r, m)\n"
GPIPE = HEAD + "rank r { F * m B * m }\n"
ONE_F_ONE_B = HEAD + "rank r { F * warmup(r) (F B) * (m - warmup(r)) B * warmup(r) }\n"
ZB_H1 = HEAD + "rank r { F * (p - 1 - r) (F I) * r (F I W) * (m - p + 1) (I W) * (p - 1 - r) W * r }\n"


def found(schedule: str, claim: str, own_costs: bool = True, p: int = 4, m: int = 8) -> list[Diagnostic]:
    tree = parse_text(f"{schedule}expect {{ {claim} }}")
    program = expand(tree, {"p": p, "m": m})

    def resimulate(costs: Costs) -> Metrics:
        changed = replace(program, costs=costs)
        return measure(changed, simulate(changed))

    return check_claims(tree, program, resimulate(program.costs), resimulate, own_costs)


@pytest.mark.parametrize(
    ("schedule", "claim"),
    [
        (ONE_F_ONE_B, "makespan == 33 and bubble == 3 / 11 and peak(r) == p - r"),
        (ONE_F_ONE_B, "peak(r) == min(p - r, m) when r < p"),
        (ONE_F_ONE_B, "peak(0) > peak(p - 1)"),
        (ONE_F_ONE_B, "makespan == 1 when m < p"),
        (ONE_F_ONE_B, "memory(r) == peak(r)"),
        (ONE_F_ONE_B, "bubble == (p - 1) / (m + p - 1)"),
        (ONE_F_ONE_B, "makespan == (m + p - 1) * (F + B)"),
        (ONE_F_ONE_B, "bubble == (p - 1) * (F + B) / ((m + p - 1) * (F + B))"),
        (ONE_F_ONE_B, "span == (m + p - 1) * (F + B)"),
        (ONE_F_ONE_B, "m * (F + B) <= makespan <= (m + p - 1) * (F + B)"),
        (ONE_F_ONE_B, "makespan >= m * (F + B) + 2 * (p - 1) * send"),
        (ONE_F_ONE_B, "F + B + send >= 0 and m == 8"),
        (GPIPE, "makespan == (m + p - 1) * (F + B) + 2 * (p - 1) * send and peak(r) == m"),
        (ZB_H1, "makespan == 27 and peak(r) == p"),
        (ZB_H1, "makespan >= m * (F + B)"),
        (ZB_H1, "makespan >= m * (F + I + W) + (p - 1) * F"),
    ],
)
def test_true_claims_are_proved(schedule: str, claim: str) -> None:
    assert found(schedule, claim) == []


@pytest.mark.parametrize(
    ("schedule", "claim", "says"),
    [
        (ONE_F_ONE_B, "makespan == 34", "`makespan` is 33"),
        (
            ONE_F_ONE_B,
            "bubble < (p - 1) / (m + p)",
            "`bubble` is 3/11 (0.2727) and `(p - 1) / (m + p)` is 1/4 (0.2500)",
        ),
        (ONE_F_ONE_B, "m > 1 and 3 < peak(r) <= 4", "`peak(r)` is 3"),
        (ONE_F_ONE_B, "peak(r) == 0 or peak(r) > 1", "`peak(r) == 0 or peak(r) > 1` is false"),
        (
            ONE_F_ONE_B,
            "makespan == (m + p - 1) * (F + B) + 2 * (p - 1) * send",
            "F = 1, B = 1, send = 1, `makespan` is",
        ),
        (ONE_F_ONE_B, "makespan <= 10 * (F + B)", "is 22"),
        (ONE_F_ONE_B, "makespan < 34 + 0 * F", "F = 1000, `makespan` is"),
        (ONE_F_ONE_B, "bubble > 3 / 11 + 0 * F * B", "`bubble` is 3/11"),
        (ZB_H1, "makespan == m * (F + B)", "F = 1, I = 1, W = 1, `makespan` is 27"),
    ],
)
def test_false_claims_are_refuted_with_the_values(schedule: str, claim: str, says: str) -> None:
    (diagnostic,) = found(schedule, claim)
    assert diagnostic.code == "PD501"
    assert says in diagnostic.message


IDLE = GPIPE + "cost { F = 0 I = 0 W = 0 }\n"


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ("makespan > F", "F = 0, `makespan` is 0 and `F` is 0"),
        ("makespan != F", "F = 0, `makespan` is 0 and `F` is 0"),
        ("makespan > 3 * B + F / 2", "F = 0, B = 0, `makespan` is 0"),
        ("0 < span", "`span` is 0"),
        ("bubble == (p - 1) / (m + p - 1) + 0 * F", "F = 0, `bubble` is 0"),
        ("makespan > send", "send = 0, `makespan` is 0"),
    ],
)
def test_where_nothing_takes_time_it_is_the_files_own_costs_that_refute(claim: str, says: str) -> None:
    (diagnostic,) = found(IDLE, claim)
    assert diagnostic.code == "PD501"
    assert says in diagnostic.message


@pytest.mark.parametrize("claim", ["makespan == (m + p - 1) * (F + B)", "makespan >= F", "F >= 0", "B / F >= 0"])
def test_where_nothing_takes_time_other_claims_hold(claim: str) -> None:
    assert found(IDLE, claim) == []


@pytest.mark.parametrize(
    ("cost", "counts"),
    [("", (6, 3, 0, 0)), ("cost s { F = s + 1 }", (6, 3, 0, 2)), ("cost s { W = s  send = s + 1 }", (6, 3, 0, 1))],
)
def test_claims_that_say_less_are_counted(cost: str, counts: tuple[int, ...]) -> None:
    claims = "peak(r) == 2  makespan >= m * F  makespan >= m * F + B when m == 2  makespan == 1 when m == 3"
    claims += "  peak(r) == 9 when r > 5  makespan == F when m > 2 and r == 0"
    result = verify(parse_text(f"{GPIPE}{cost} expect {{ {claims} }}"), {"p": 2, "m": 2})
    assert result.verdict.value == "verified"
    assert tuple(vars(result.claim_counts).values()) == counts


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (ClaimCounts(1), "1 holds"),
        (ClaimCounts(2, even=1), "all 2 hold, 1 of them for stages of equal costs, unlike these"),
        (ClaimCounts(2, even=2), "all 2 hold, for stages of equal costs, unlike these"),
        (
            ClaimCounts(3, absent=2, even=1),
            "1 of 3 holds, for stages of equal costs, unlike these, 2 do not apply: `when` is false",
        ),
        (ClaimCounts(1, absent=1), "1 does not apply: `when` is false"),
    ],
)
def test_what_is_said_of_claims(counts: ClaimCounts, says: str) -> None:
    result = verify(parse_text(GPIPE), {"p": 2, "m": 2})
    assert summary_lines(result.report, result.program, counts)[-1].text == f"  claims            {says}"


@pytest.mark.parametrize(
    "claim",
    [
        "makespan >= max(F, B) * m",
        "makespan >= m * F or makespan >= m * B",
        "not makespan < m * F",
        "(F - B) * (F - B) >= 0 and makespan > 0",
        "abs(makespan) >= F",
        "F / (B - B) == 1",
        "(makespan > 1) if F > 1 else true",
    ],
)
def test_what_is_not_proved_is_not_called_true(claim: str) -> None:
    codes = [diagnostic.code for diagnostic in found(ONE_F_ONE_B + "cost { send = 1 }\n", claim)]
    assert codes == ["PD502"]


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ("peak(p) == 1", "PD107"),
        ("peak(1 / 2) == 1", "PD107"),
        ("m // (p - p) == 1", "PD109"),
        ("m * m < 5 when 1 // (p - p) > 1", "PD109"),
    ],
)
def test_claims_that_cannot_be_computed_say_why(claim: str, code: str) -> None:
    assert [diagnostic.code for diagnostic in found(ONE_F_ONE_B, claim)] == [code]


def test_the_rank_and_the_parameters_are_named() -> None:
    (diagnostic,) = found(ONE_F_ONE_B, "peak(r) == 4")
    assert diagnostic.notes == ("on rank 1, and on 2 more", "with p = 4, m = 8")
    assert diagnostic.span is not None
    assert diagnostic.span.text == "peak(r) == 4"


def test_plain_times_are_about_the_files_own_costs_only() -> None:
    assert found(ONE_F_ONE_B, "makespan == 1  bubble == 1", own_costs=False) == []
    assert len(found(ONE_F_ONE_B, "peak(r) == 9  makespan == F", own_costs=False)) == 2


def test_an_unknown_claim_makes_the_verdict_unknown() -> None:
    report = verify_text(GPIPE + "expect { makespan >= max(F, B) }", {"p": 2, "m": 2})
    assert report.verdict.value == "unknown"
