"""Proofs for all m: the shipped schedules, planted traps, and what is named when nothing is decided."""

from __future__ import annotations

import pytest
from closed import closed

import pipedsl
from pipedsl.api import parse_text
from pipedsl.parametric import Bounds, ForAll, prove_for_all, prove_for_all_in
from verify import Verdict

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\nfn w(r) = min(p - 1 - r, m)\n"
ONE_F_ONE_B = "F * w(r) (F B) * (m - w(r)) B * w(r)"
GROWING_PEAK = """
schedule x(p, m)
stages p
place s -> s
fn w(r) = min(p - 1 - r + m // 50, m)
rank r { F * w(r) (F B) * (m - w(r)) B * w(r) }
"""


def prove(text: str, p: int = 4, **params: int) -> ForAll:
    return prove_for_all(parse_text(text), {"p": p, **params})


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("name", closed())
def test_shipped_schedules_are_proved(name: str, p: int) -> None:
    proved = prove_for_all(pipedsl.load(name), {"p": p})
    assert proved.verdict is Verdict.VERIFIED, proved.diagnostics
    assert proved.from_m is not None
    assert proved.from_m <= 20 * p
    covered = {*proved.checked}
    for m in range(1, proved.from_m):
        refused = {each.code for each in pipedsl.verify(pipedsl.load(name), {"p": p, "m": m}).diagnostics} == {"PD112"}
        assert refused or m in covered


GPIPE = HEAD + "rank r { F * m B * m }\n"


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        ("for k in 0 .. 1000000000000 { }", "this takes more than 20,000,000 loop rounds"),
        ("for k in 0 .. 200001 { }", "more than 200,000 rounds of loops that are taken one by one"),
        ("for i in 0 .. 500 { for k in 0 .. 500 { } }", "more than 200,000 rounds of loops"),
    ],
)
def test_rounds_are_counted_before_they_are_taken(loop: str, says: str) -> None:
    found = prove(f"{HEAD} rank r {{ {loop} F * m B * m }}", p=1)
    assert found.verdict is Verdict.UNKNOWN
    assert says in found.diagnostics[0].message
    assert prove(f"{HEAD} rank r {{ for k in 0 .. 2000 {{ }} F * m B * m }}", p=1).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("claim", ["makespan > F", "makespan != F", "bubble == (p - 1) / (m + p - 1) + 0 * F"])
def test_a_file_where_nothing_takes_time_refutes_what_it_names(claim: str) -> None:
    text = f"{GPIPE} expect {{ makespan >= m * F  {claim} when m >= 40 }}"
    assert prove(text, p=2).verdict is Verdict.VERIFIED
    assert prove(text + " cost { F = 0  I = 0  W = 0 }", p=2).verdict is not Verdict.VERIFIED


SHORT_OF_ONE = "F * w(r) (F B) * (m - w(r)) B * (w(r) - 1)"
TRAPS = {
    "one m": (HEAD + f"rank r {{ if m == 37 {{ F * (m + 1) B * m }} else {{ {ONE_F_ONE_B} }} }}", 37, "PD205"),
    "one residue": (
        HEAD + f"require m > 10\nrank r {{ if m % 7 == 3 and r == 1 {{ B * m F * m }} else {{ {ONE_F_ONE_B} }} }}",
        17,
        "PD209",
    ),
    "from some m on": (
        HEAD + f"rank r {{ if m > 500 and r == 0 {{ {SHORT_OF_ONE} }} else {{ {ONE_F_ONE_B} }} }}",
        501,
        "PD206",
    ),
    "a cycle over ranks": (
        HEAD + f"rank r {{ if m > 90 and r == 0 {{ (F B) * m }} else {{ {ONE_F_ONE_B} }} }}",
        91,
        "PD209",
    ),
    "one round": (
        HEAD + "rank r { F * m for k in 0 .. m { if k == 60 { B[k - 1] } else { B[k] } } }",
        61,
        "PD207",
    ),
    "a second form": (HEAD + "rank r { F * m for k in 0 .. m { B[k] } B * (m // 90) }", 90, "PD203"),
    "cap": (GROWING_PEAK + "memory { cap(r) = 5 }", 100, "PD401"),
    "late cap": (GROWING_PEAK + "memory { cap(r) = 20 }", 850, "PD401"),
    "peak claimed": (GROWING_PEAK + "expect { peak(r) <= 5 }", 100, "PD501"),
    "makespan claimed": (
        HEAD + f"rank r {{ {ONE_F_ONE_B} }}\nexpect {{ makespan <= 3 * m + 9 - m // 100 }}",
        100,
        "PD501",
    ),
    "guard": (GPIPE + "expect { peak(r) < 90 when m % 2 == 0 }", 90, "PD501"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_traps(name: str) -> None:
    text, fails_at, code = TRAPS[name]
    p = 2 if name == "from some m on" else 4
    proved = prove(text, p)
    assert proved.fails_at == fails_at
    assert proved.verdict is Verdict.REJECTED
    assert proved.report is not None
    assert code in {each.code for each in proved.diagnostics}
    schedule = parse_text(text)
    assert pipedsl.verify(schedule, {"p": p, "m": fails_at}).verdict is Verdict.REJECTED


PROVED = {
    "growing peak": GROWING_PEAK + "expect { peak(r) <= p + m // 50 }",
    "long warmup": HEAD.replace("p - 1 - r", "150 + p - r") + f"rank r {{ {ONE_F_ONE_B} }}",
    "uneven stages": HEAD
    + f"rank r {{ {ONE_F_ONE_B} }}\ncost s {{ F = 40 + s  send = 1/3 }}\nexpect {{ bubble <= 1 }}",
    "period of two": HEAD
    + f"rank r {{ {ONE_F_ONE_B} }}\ncost {{ F = 1  I = 2  W = 1  send = 3/2 }}\nexpect {{ makespan >= 4 * m }}",
    "reversed": HEAD + "rank r { F * m for k in 0 .. m { B[m - 1 - k] } }\nexpect { makespan == 3 * (m + p - 1) }",
    "remainders": HEAD + "rank r { for k in 0 .. m // 4 { F * 4 B * 4 } F * (m % 4) B * (m % 4) }",
    "quotient by m": HEAD + "rank r { for k in 0 .. 2 * m { if k // m == 0 { F[k % m] } else { B[k % m] } } }",
    "squares cancel": HEAD + "rank r { F * (m * m - m * (m - 1)) B * (m * m / m) }",
    "bounded m": HEAD + "require m <= 5\nrank r { F * m B * m }",
    "cap in m": HEAD + "rank r { F * m B * m }\nmemory { cap(r) = m }",
    "half held": HEAD
    + "rank r { F * m I * m W * m }\nmemory { held_by_w(s) = 1/2  cap(r) = m }\nexpect { memory(r) == m }",
    "every size": GPIPE
    + "memory { activation(s) = s  input(s) = 2  weights(s) = 5  optimizer(s) = 1/2  cap(r) = 6 * m + 11 }\n"
    + "expect { memory(0) == 2 * m + 21 / 2 }",
    "bound for all costs": GPIPE + "expect { makespan <= (m + p) * (F + B) }",
}


@pytest.mark.parametrize("name", PROVED)
def test_proved(name: str) -> None:
    proved = prove(PROVED[name])
    assert proved.verdict is Verdict.VERIFIED, proved.diagnostics


OPEN = {
    "m * m // (m + 1)": HEAD + "rank r { F * (m * m // (m + 1) + 1) B * m }",
    "k": HEAD + "rank r { for k in 0 .. m { for j in k * (m - k) .. k * (m - k) + 1 { F } } B * m }",
    "2 * m": "schedule x(p, m)\nstages 2 * m\nplace s -> 0\nrank r { for s in 0 .. 2 * m { F@s * m } "
    "for s in 0 .. 2 * m { B@(2 * m - 1 - s) * m } }",
    "m % 5041": HEAD + "rank r { F * m if m % 5041 == 9999 { F } B * m }",
    "F = m": HEAD + "cost { F = m }\nrank r { F * m B * m }",
    "memory(r) <= 100 * m": HEAD + "memory { output(s) = 1 }\nrank r { F * m B * m }\nexpect { memory(r) <= 100 * m }",
}


@pytest.mark.parametrize("name", OPEN)
def test_what_is_not_analysed_is_unknown_and_named(name: str) -> None:
    proved = prove(OPEN[name], p=1)
    assert proved.verdict is Verdict.UNKNOWN, proved
    assert proved.fails_at is None
    spans = [each.span.text for each in proved.diagnostics if each.span is not None]
    assert any(name in text or text in name for text in spans), spans


def test_explicit_communication_is_unknown() -> None:
    text = HEAD + (
        "rank r where r == 0 { (F SEND_F) * m (RECV_B B) * m }\nrank r where r == 1 { (RECV_F F) * m (B SEND_B) * m }\n"
    )
    proved = prove(text, p=2)
    assert proved.verdict is Verdict.UNKNOWN
    assert "SEND_F" in proved.diagnostics[0].message


def test_parameters() -> None:
    assert prove(HEAD + "rank r { F * m B * m }", q=3).diagnostics[0].code == "PD111"
    assert prove(HEAD + "rank r { F * n B * m }").diagnostics[0].code == "PD105"
    refused = prove(HEAD + "require p > 100\nrank r { F * m B * m }")
    assert (refused.verdict, refused.fails_at) == (Verdict.REJECTED, None)
    assert refused.diagnostics[0].code == "PD112"
    assert prove("schedule x(p, m, n = m // 2)\nstages p\nplace s -> s\nrank r { F * n F * (m - n) B * m }").from_m


def test_a_range_of_ranks() -> None:
    answers = prove_for_all_in(pipedsl.load("interleaved_1f1b"), {"v": 2}, range(1, 5))
    assert {p: answer.verdict for p, answer in answers.items()} == dict.fromkeys(range(1, 5), Verdict.VERIFIED)


def test_bounds_are_kept() -> None:
    schedule = parse_text(TRAPS["from some m on"][0])
    assert prove_for_all(schedule, {"p": 4}, bounds=Bounds(microbatches=100)).verdict is Verdict.UNKNOWN
    schedule = parse_text(PROVED["growing peak"])
    assert prove_for_all(schedule, {"p": 4}, bounds=Bounds(period=10)).verdict is Verdict.UNKNOWN
