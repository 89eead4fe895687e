"""Parameters, placement, ranks, costs, memory and limits; small programs word for word."""

import time
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipedsl.api import parse_text
from pipedsl.diagnostics import Diagnostic, DiagnosticError, Limits
from pipedsl.expand import expand
from pipedsl.program import Kind, Program
from pipedsl.simulate import simulate

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\n"
TWO_CHUNKS = "schedule x(p, m)\nstages 2 * p\nplace s -> s % p\n"
GPIPE = "rank r { F * m B * m }\n"
ONE_F_ONE_B = (
    HEAD + "fn warmup(r) = min(p - 1 - r, m)\nrank r { F * warmup(r) (F B) * (m - warmup(r)) B * warmup(r) }\n"
)
INTERLEAVED = """schedule interleaved_1f1b(p, m, v = 2)
stages p * v
place s -> s % p
fn warmup(r) = min(2 * (p - 1 - r) + (v - 1) * p, m * v)
rank r {
    for k in 0 .. warmup(r)             { F@(k // p % v) }
    for k in 0 .. m * v - warmup(r)     { F@((k + warmup(r)) // p % v)   B@(v - 1 - k // p % v) }
    for k in m * v - warmup(r) .. m * v { B@(v - 1 - k // p % v) }
}
"""


def program(text: str, limits: Limits | None = None, **params: int) -> Program:
    return expand(parse_text(text), params or {"p": 2, "m": 2}, limits)


def found(text: str, limits: Limits | None = None, **params: int) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as error:
        program(text, limits, **params)
    return error.value.diagnostics


def codes(text: str, limits: Limits | None = None, **params: int) -> list[str]:
    return [diagnostic.code for diagnostic in found(text, limits, **params)]


def words(program: Program, rank: int) -> str:
    """`F0 F1 B0`, with `stage:` before it where there are more stages than ranks."""
    return " ".join(
        f"{Kind(program.kind[row]).name}{program.microbatch[row]}"
        if program.stages == program.ranks
        else f"{program.stage[row]}:{Kind(program.kind[row]).name}{program.microbatch[row]}"
        for row in program.rows(rank)
    )


def between(forward: int, backward: int, m: int, takes: list[Fraction]) -> Fraction:
    """The end of m forwards and then m backwards on len(takes) + 1 stages, with these times between neighbours."""
    end, stages = [Fraction(0)] * (len(takes) + 1), range(len(takes) + 1)
    for _ in range(m):
        for s in stages:
            end[s] = max(end[s], end[s - 1] + takes[s - 1] if s else 0) + forward
    for _ in range(m):
        for s in reversed(stages):
            end[s] = max(end[s], end[s + 1] + takes[s] if s < len(takes) else 0) + backward
    return max(end)


def test_a_message_takes_the_time_that_its_bytes_do() -> None:
    """The examples of docs/language.md, against runs in which what lies between two stages has the time."""
    docs = (Path(__file__).resolve().parents[2] / "docs" / "language.md").read_text()
    part = docs.split("## The time of a message from its bytes")[1].split("\n## ")[0]
    equal, unequal = (parse_text(each.split("```")[0]) for each in part.split("```sched\n")[1:])
    each = expand(unequal, {"p": 8, "m": 2})
    assert each.costs.send == tuple(map(Fraction, "16/25 16/25 16/25 32/25 32/25 8/25 8/25 8/25".split()))
    assert each.memory.output == (16 << 20,) * 4 + (8 << 20,) * 4
    assert each.memory.in_bytes
    for p, m in product((1, 2, 3, 5, 8), (1, 2, 4)):
        takes = [Fraction(16 if s < p // 2 else 8) / (25 if s % 4 < 3 else Fraction(25, 2)) for s in range(p - 1)]
        said = [simulate(expand(schedule, {"p": p, "m": m})).makespan for schedule in (equal, unequal)]
        assert said[0] == between(3, 5, m, [Fraction(16, 25)] * (p - 1))
        assert said[1] >= between(3, 5, m, takes)
        assert p > 2 or said[1] == between(3, 5, m, takes)


def test_one_f_one_b_is_the_papers() -> None:
    each = program(ONE_F_ONE_B, p=4, m=4)
    assert words(each, 0) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert words(each, 2) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert words(each, 3) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaved_is_the_papers() -> None:
    each = program(INTERLEAVED, p=2, m=2)
    assert words(each, 0) == "0:F0 0:F1 2:F0 2:F1 2:B0 2:B1 0:B0 0:B1"
    assert words(each, 1) == "1:F0 1:F1 3:F0 3:B0 3:F1 3:B1 1:B0 1:B1"


def test_every_row_knows_the_text_that_wrote_it() -> None:
    each = program(ONE_F_ONE_B, p=2, m=3)
    starts = [each.span_of(row).start for row in each.rows(0)]
    assert [each.span_of(row).text for row in each.rows(0)] == ["F", "F", "B", "F", "B", "B"]
    assert starts[0] < starts[1] == starts[3] < starts[2] == starts[4] < starts[5]


def test_what_a_program_says_of_itself() -> None:
    each = program("schedule x(p, m, v = p + 1, w = 2 * v)\nstages p\nplace s -> p - 1 - s\n" + GPIPE, p=2, m=3)
    assert each.params == {"p": 2, "m": 3, "v": 3, "w": 6}
    assert (each.name, each.ranks, each.stages, each.microbatches) == ("x", 2, 2, 3)
    assert each.placement.tolist() == [[1, 0]]
    assert each.stage.tolist() == [1] * 6 + [0] * 6
    assert len(each.rank_spans) == 2
    assert each.replica.tolist() == [0] * 12


def test_explicit_communication_is_counted_like_everything_else() -> None:
    text = (
        HEAD + "rank r where r == 0 { (F SEND_F) * m (RECV_B B) * m }\nrank r where r == 1 { (RECV_F F B SEND_B) * m }"
    )
    each = program(text)
    assert words(each, 0) == "F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1"
    assert each.explicit_communication


@pytest.mark.parametrize(
    ("code", "text", "params"),
    [
        ("PD111", HEAD + GPIPE, {"p": 2}),
        ("PD111", HEAD + GPIPE, {"p": 2, "m": 2, "q": 1}),
        ("PD111", HEAD + GPIPE, {"p": 0, "m": 2}),
        ("PD111", HEAD + GPIPE, {"p": 2, "m": -1}),
        ("PD111", HEAD + GPIPE, {"p": 2, "m": True}),
        ("PD111", "schedule x(p, m, v = p / 2)\nstages p\nplace s -> s\n" + GPIPE, {"p": 3, "m": 1}),
        ("PD109", "schedule x(p, m, v = 1 // (p - 2))\nstages p\nplace s -> s\n" + GPIPE, {"p": 2, "m": 1}),
        ("PD104", HEAD + GPIPE, {"p": 1 << 300, "m": 1}),
        ("PD112", HEAD + 'require m % p == 0, "no"\n' + GPIPE, {"p": 2, "m": 3}),
        ("PD112", HEAD + "require m % p == 0\n" + GPIPE, {"p": 2, "m": 3}),
        ("PD202", "schedule x(p, m)\nstages p - 2\nplace s -> s\n" + GPIPE, {"p": 2, "m": 2}),
        ("PD107", "schedule x(p, m)\nstages p / 2\nplace s -> s\n" + GPIPE, {"p": 3, "m": 2}),
        ("PD202", "schedule x(p, m)\nstages p\nplace s -> s + 1\n" + GPIPE, {"p": 2, "m": 2}),
        ("PD202", "schedule x(p, m)\nstages p\nplace s -> s - 1\n" + GPIPE, {"p": 2, "m": 2}),
        ("PD201", HEAD + "rank r where r > 0 { F * m B * m }", {"p": 2, "m": 2}),
        ("PD201", HEAD + GPIPE + "rank r where r > 0 { F * m B * m }", {"p": 2, "m": 2}),
        ("PD203", HEAD + "rank r { F F[1] B * m }", {"p": 2, "m": 2}),
        ("PD204", TWO_CHUNKS + "rank r { F * m B * m }", {"p": 2, "m": 2}),
        ("PD204", TWO_CHUNKS + "rank r { F@2 * m B@0 * m }", {"p": 2, "m": 2}),
        ("PD204", TWO_CHUNKS + "rank r { F@(0 - 1) * m B@0 * m }", {"p": 2, "m": 2}),
        ("PD107", TWO_CHUNKS + "rank r { F@(1 / 2) * m B@0 * m }", {"p": 2, "m": 2}),
        ("PD204", HEAD + "rank r { F@1 * m B * m }", {"p": 2, "m": 2}),
        ("PD204", "schedule x(p, m)\nstages 1\nplace s -> s\n" + GPIPE, {"p": 2, "m": 2}),
        ("PD205", HEAD + "rank r { F * (m + 1) B * m }", {"p": 2, "m": 2}),
        ("PD205", HEAD + "rank r { for k in 0 .. m { F[k + 1] } B * m }", {"p": 2, "m": 2}),
        ("PD205", HEAD + "rank r { for k in 0 .. m { F[k - 1] } B * m }", {"p": 2, "m": 2}),
        ("PD107", HEAD + "rank r { for k in 0 .. m { F[k / 2] } B * m }", {"p": 2, "m": 2}),
        ("PD114", HEAD + "rank r { F * (m - 3) B * m }", {"p": 2, "m": 2}),
        ("PD114", HEAD + "rank r { for k in m .. 1 { F } B * m }", {"p": 2, "m": 2}),
        ("PD107", HEAD + "rank r { for k in 0 .. m / 2 { F } B * m }", {"p": 2, "m": 3}),
        ("PD109", HEAD + "rank r { F * (m // r) B * m }", {"p": 2, "m": 2}),
        ("PD114", HEAD + GPIPE + "cost { F = 0 - 1 }", {"p": 2, "m": 2}),
        ("PD114", HEAD + GPIPE + "cost s { send = s - 1 }", {"p": 2, "m": 2}),
        ("PD114", HEAD + GPIPE + "memory { cap(r) = 0 - r }", {"p": 2, "m": 2}),
        ("PD107", HEAD + GPIPE + "memory { activation(s) = 1 held_by_w(s) = 2 }", {"p": 2, "m": 2}),
    ],
)
def test_mistakes_that_need_the_numbers(code: str, text: str, params: dict[str, int]) -> None:
    assert codes(text, **params) == [code]


def test_a_mistake_on_every_rank_is_reported_once_and_names_a_rank() -> None:
    (diagnostic,) = found(HEAD + "rank r { F * (m - r) B * (m - r) F * (0 - r) }", p=8, m=9)
    assert diagnostic.code == "PD114"
    assert diagnostic.notes == ("on rank 1, with p = 8, m = 9",)


def test_mistakes_of_several_blocks_are_all_reported() -> None:
    text = HEAD + "rank r where r < 1 { F * (m + 1) B * m }\nrank r where r > 0 { F * m B[9] }\ncost { F = 0 - 1 }"
    assert sorted(codes(text)) == ["PD114", "PD205", "PD205"]


def test_the_reason_of_a_require_and_its_numbers_are_given() -> None:
    (diagnostic,) = found(HEAD + 'require m % p == 0, "m is a multiple of p"\n' + GPIPE, p=2, m=3)
    assert diagnostic.message == "m is a multiple of p"
    assert diagnostic.notes == ("with m = 3, p = 2",)


def test_costs_per_stage_override_the_common_ones() -> None:
    costs = program(HEAD + GPIPE + "cost s { W = s + 0.5 }\ncost { F = 3 I = 2 W = 1 send = 1 / 4 }").costs
    assert costs.forward == (3, 3)
    assert costs.backward_weight == (Fraction(1, 2), Fraction(3, 2))
    assert costs.backward == (Fraction(5, 2), Fraction(7, 2))
    assert costs.send == (Fraction(1, 4),) * 2
    default = program(HEAD + GPIPE).costs
    assert (default.forward, default.backward, default.send) == ((1, 1), (2, 2), (0, 0))
    assert program(HEAD + GPIPE + "cost { B = 5 }").costs.backward == (5, 5)


def test_memory_defaults() -> None:
    memory = program(HEAD + GPIPE).memory
    assert (memory.activation, memory.held_by_w, memory.weights, memory.output) == ((1, 1), (1, 1), (0, 0), (0, 0))
    assert memory.cap == (None, None)
    assert not memory.in_bytes
    sizes = "memory { activation(s) = 3 GiB weights(s) = s + 1 cap(r) = 80 GiB }"
    memory = program(HEAD + GPIPE + sizes).memory
    assert memory.held_by_w == (3 << 30,) * 2
    assert memory.gradients == memory.weights == (1, 2)
    assert memory.cap == (80 << 30,) * 2
    assert memory.in_bytes


@pytest.mark.parametrize(
    "body",
    [
        "F * 1000000000000000",
        "((((F * 1000) * 1000) * 1000) * 1000) * 1000",
        "for k in 0 .. 1000000000000000 { }",
        "for a in 0 .. 100000 { for b in 0 .. 100000 { if false { F } } }",
        "for a in 0 .. 100000 { F * 1000 }",
        "for a in 0 .. 100000 { F F F F F F F F F F }",
        "F * f9(1)",
    ],
)
def test_what_is_too_large_is_refused_before_it_is_made(body: str) -> None:
    functions = "fn f0(x) = x\n" + "".join(f"fn f{i}(x) = {'+'.join([f'f{i - 1}(x)'] * 10)}\n" for i in range(1, 10))
    started = time.perf_counter()
    assert codes(f"{HEAD}{functions}rank r {{ {body} }}", Limits(operations=100_000, steps=100_000)) == ["PD104"]
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("params", [{"p": 10**12, "m": 1}, {"p": 1, "m": 10**12}, {"p": 10**6, "m": 10**6}])
def test_huge_parameters_are_refused_at_once(params: dict[str, int]) -> None:
    assert codes(HEAD + GPIPE, **params) == ["PD104"]


def test_large_ones_are_arrays() -> None:
    each = program(ONE_F_ONE_B, p=64, m=1024)
    assert len(each) == 131_072
    assert each.kind.dtype == np.int8
    assert {array.dtype for array in (each.stage, each.microbatch, each.span)} == {np.dtype(np.int32)}


@pytest.mark.parametrize("functions", range(45, 55))
def test_the_deepest_schedules_that_are_admitted_fit_pythons_stack(functions: int) -> None:
    chain = "fn f0(x) = x\n" + "".join(f"fn f{i}(x) = max(0, f{i - 1}(x))\n" for i in range(1, functions))
    body = "(" * 90 + f"F * f{functions - 1}(m)" + ")" * 90 + " B * m"
    text = f"{HEAD}{chain}rank r {{ {body} }}"
    if functions < 50:
        assert len(program(text)) == 8
    else:
        assert codes(text) == ["PD104"]


def test_a_function_that_calls_itself_twice_over_is_no_work() -> None:
    """Each of 40 functions calls the one before twice: 2**40 calls, if none were remembered."""
    chain = "fn f0(x) = x\n" + "".join(f"fn f{i}(x) = f{i - 1}(x) // 2 + f{i - 1}(x) // 2\n" for i in range(1, 40))
    assert len(program(f"{HEAD}{chain}rank r {{ F * (f39(0) + m) B * m }}")) == 8


def test_remembered_results_keep_true_and_1_apart() -> None:
    text = "fn f(x) = x + 1\nrank r { F * (f(1) + m - 2) B * (f(1 == 1)) }"
    assert codes(HEAD + text) == ["PD107"]
