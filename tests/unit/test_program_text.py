"""Programs as text: `expand` makes the same program of it."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from closed import closed
from words import interleaved, memory, one_f_one_b, word_program, zb_h1

from pipedsl.api import load, parse_text, verify
from pipedsl.expand import expand
from pipedsl.program import Program
from pipedsl.sched_text import program_text


def same(one: Program, other: Program) -> bool:
    columns = ("placement", "offsets", "kind", "stage", "microbatch", "replica")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns) and (
        one.costs == other.costs and one.memory == other.memory
    )


def read(text: str) -> Program:
    schedule = parse_text(text)
    return expand(schedule, {})


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("name", closed())
def test_shipped_schedules_come_back(name: str, p: int, m: int) -> None:
    program = verify(load(name), {"p": p, "m": m}).program
    if program is None:
        pytest.skip("not for these parameters")
    text = program_text(program)
    assert same(read(text), program)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert program_text(read(text)) == text


def test_out_of_order_operations_have_an_index() -> None:
    program = word_program([["F1", "F0", "B0", "B1"], ["F1", "F0", "B0", "B1"]])
    text = program_text(program)
    assert "F[1] F[0]\n    B * 2" in text
    assert same(read(text), program)


def test_chunks_costs_and_sizes() -> None:
    words, placement = interleaved(2, 4, 2), [0, 1, 0, 1]
    program = word_program(words, placement, sizes=memory(4, 2, activation="7/3", held="1/2", weights=5, cap=100))
    costs = program.costs
    program = replace(program, costs=replace(costs, forward=tuple(Fraction(k, 7) for k in (1, 1, 2, 3))))
    text = program_text(program, comment="Written by a test.")
    assert text.startswith("# Written by a test.\nschedule by_hand(p = 2, m = 4)\n")
    assert same(read(text), program)
    odd = replace(program, memory=replace(program.memory, in_bytes=True, activation=(Fraction(1000, 3),) * 4))
    assert same(read(program_text(odd)), odd)


def test_a_placement_of_many_runs() -> None:
    placement = [0, 0, 1, 2, 2, 1, 0, 2]
    words = [[f"F0@{s}" for s in range(8) if placement[s] == r] for r in range(3)]
    words = [word + [f"B0@{op[3:]}" for op in reversed(word)] for word in words]
    program = word_program(words, placement)
    assert same(read(program_text(program)), program)


@pytest.mark.parametrize(
    ("placement", "text"),
    [([0, 1, 1, 0], "s if s < p else 3 - s"), ([0, 0, 1, 1], "s // 2"), ([0, 1, 0, 1], "s % 2"), ([0, 0], "0")],
)
def test_usual_placements_are_formulas(placement: list[int], text: str) -> None:
    words = [[f"F0@{s}" for s in range(len(placement)) if placement[s] == r] for r in range(max(placement) + 1)]
    program = word_program([word + [f"B0@{op[3:]}" for op in reversed(word)] for word in words], placement)
    assert f"place s -> {text}\n" in program_text(program)
    assert same(read(program_text(program)), program)


def test_a_steady_state_is_written_once() -> None:
    assert "(F I W) * 61" in program_text(word_program(zb_h1(4, 64)))


def test_ranks_that_differ_in_counts_share_a_block() -> None:
    text = program_text(word_program(zb_h1(4, 64)))
    assert text.count("rank r") == 1
    assert "F * (p - 1 - r)" in text
    assert "W * r" in text


def test_a_comment_with_what_is_no_character() -> None:
    text = program_text(word_program(one_f_one_b(2, 2)), "From \udcff.sched.\nAnd\u2028more")
    assert text.encode().startswith(b"# From \\udcff.sched.\n# And\n# more\nschedule")


def test_comments_and_claims() -> None:
    text = program_text(word_program(one_f_one_b(2, 2)), "One line.\nAnother.", ["makespan == 9"])
    assert text.startswith("# One line.\n# Another.\nschedule")
    assert text.endswith("expect {\n    makespan == 9\n}\n")
    assert verify(parse_text(text), {}).report.verdict.value == "verified"
