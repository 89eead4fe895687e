"""Advice: it is true, it is found where there is some, and it changes no verdict."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from closed import closed
from words import costs, gpipe, memory, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.api import advise, load, parse_text, verify
from pipedsl.cli.main import cli
from pipedsl.diagnostics import Diagnostic, Severity
from pipedsl.program import Program
from pipedsl.simulate import Stuck, simulate
from verify import Verdict
from verify import verify as verify_program
from verify.advice import advise as advise_on
from verify.moves import Budget, Move, at_its_shortest, moved, simulate_move

HEAD = "schedule x(p, m)\nstages p\nplace s -> s\n"


def advice_on(program: Program, thorough: bool = True) -> dict[str, Diagnostic]:
    report = verify_program(program)
    assert report.verdict is Verdict.VERIFIED
    assert report.calls is not None
    assert report.timeline is not None
    assert report.metrics is not None
    found = advise_on(program, report.calls, report.timeline, report.metrics, thorough)
    assert all(each.severity is Severity.ADVICE for each in found)
    return {each.code: each for each in found}


def shuffled(program: Program, draw: random.Random, swaps: int) -> Program:
    """The program after swaps of neighbours that leave its order possible."""
    for _ in range(swaps):
        row = draw.randrange(len(program) - 1)
        if row + 1 in program.offsets.tolist():
            continue
        done = simulate_move(program, Move(row, row + 1))
        program = program if done is None else done[0]
    return program


def every_move(program: Program) -> list[Move]:
    return [
        Move(row, place)
        for rank in range(program.ranks)
        for row in program.rows(rank)
        for place in program.rows(rank)
        if row != place
    ]


def keeps_its_kind_in_order(program: Program, move: Move) -> bool:
    low, high = sorted((move.row, move.place))
    between = [row for row in range(low, high + 1) if row != move.row]
    key = [(int(program.kind[row]), int(program.stage[row]), int(program.replica[row])) for row in (move.row, *between)]
    return key[0] not in key[1:]


@pytest.mark.parametrize("seed", range(25))
def test_a_move_is_named_only_where_it_helps_and_then_it_does(seed: int) -> None:
    """Against trying every move of every operation."""
    draw = random.Random(seed)
    p = draw.randint(2, 3)
    words = draw.choice((gpipe, one_f_one_b, zb_h1))(p, draw.randint(p, 5))
    program = word_program(words, cost=costs(p, *(draw.randint(1, 3) for _ in range(3)), send=draw.randint(0, 1)))
    program = shuffled(program, draw, 12)
    timeline = simulate(program)
    results = {}
    for move in every_move(program):
        if keeps_its_kind_in_order(program, move):
            done = simulate_move(program, move)
            if done is not None:
                results[move] = done[1].makespan
    best = min(results.values(), default=timeline.makespan)
    if at_its_shortest(program, timeline):
        assert best >= timeline.makespan
    found = advice_on(program).get("PD901")
    if found is None:
        return
    numbers = re.search(r"makespan from (\S+) to (\S+), the", found.message)
    assert numbers is not None
    old, new = (Fraction(each) for each in numbers.groups())
    assert old == timeline.makespan
    assert best <= new < old


def test_most_moves_that_help_are_found() -> None:
    """Only some places of each operation are tried; they must be the ones that matter."""
    missed = helped = 0
    for seed in range(60):
        draw = random.Random(1000 + seed)
        program = shuffled(word_program(draw.choice((one_f_one_b, zb_h1))(2, 4)), draw, 8)
        makespan = simulate(program).makespan
        moves = [move for move in every_move(program) if keeps_its_kind_in_order(program, move)]
        done = [simulate_move(program, move) for move in moves]
        if any(each is not None and each[1].makespan < makespan for each in done):
            helped += 1
            missed += "PD901" not in advice_on(program)
    assert helped > 10
    assert missed * 10 <= helped


@pytest.mark.parametrize("seed", range(40))
def test_a_peak_is_lowered_as_said(seed: int) -> None:
    draw = random.Random(seed)
    p = draw.randint(2, 3)
    words = draw.choice((gpipe, zb_h1, zb_h2))(p, 2 * p + draw.randint(0, 3))
    program = shuffled(word_program(words, cost=costs(p, *(draw.randint(1, 3) for _ in range(3)))), draw, 6)
    if seed % 2:  # messages take room too
        program = replace(program, memory=replace(program.memory, output=(Fraction(draw.randint(1, 3)),) * p))
    found = advice_on(program).get("PD902")
    if found is None:
        return
    pattern = r"moving (.*) (before|after) (.*) lowers the peak of rank (\d) from (\d+) to (\d+) and costs no time"
    match = re.fullmatch(pattern, found.message)
    assert match is not None
    rows = {program.label(row): row for row in range(len(program))}
    changed = moved(program, Move(rows[match[1]], rows[match[3]]))
    report, before = verify_program(changed), verify_program(program)
    assert report.verdict is Verdict.VERIFIED
    assert report.metrics is not None
    assert before.metrics is not None
    assert report.metrics.makespan <= before.metrics.makespan
    rank = int(match[4])
    assert (before.metrics.memory[rank], report.metrics.memory[rank]) == (int(match[5]), int(match[6]))
    assert all(new <= old for new, old in zip(report.metrics.memory, before.metrics.memory, strict=True))


def test_a_move_keeps_every_operation() -> None:
    program = word_program(zb_h1(2, 3))
    for move in every_move(program):
        after = moved(program, move)
        order = [program.label(row) for row in range(len(program))]
        order.insert(move.place, order.pop(move.row))
        assert [after.label(row) for row in range(len(after))] == order
        assert np.array_equal(after.offsets, program.offsets)


def test_no_move_breaks_a_cap() -> None:
    program = word_program([["F0", "B0", "F1", "B1"], ["F0", "B0", "F1", "B1"]])
    assert "PD901" in advice_on(program)
    capped = replace(program, memory=memory(2, 2, cap=1))
    assert "PD901" not in advice_on(capped)


@pytest.mark.parametrize("name", [name for name in closed() if name not in ("gpipe", "naive")])
def test_nothing_is_to_be_moved_in_the_good_schedules(name: str) -> None:
    result = verify(load(name), {"p": 4, "m": 16})
    assert advise(result, thorough=True) == ()


def test_few_microbatches() -> None:
    schedule = load("1f1b")
    (found,) = advise(verify(schedule, {"p": 4, "m": 8}))
    assert found.message == "8 microbatches on 4 ranks: 27.3 % of the time is bubble"
    assert found.help == "with 16 microbatches, 4 for every rank, it is 15.8 %"
    assert advise(verify(schedule, {"p": 4, "m": 16})) == ()
    assert advise(verify(schedule, {"p": 1, "m": 1})) == ()
    assert all(each.code != "PD904" for each in advise(verify(load("naive"), {"p": 4, "m": 8})))


def test_an_early_receive_is_told_how_long_it_holds_the_send_up() -> None:
    text = (
        "rank r where r == 0 { F[0] SEND_F[0] RECV_B[0] F[1] SEND_F[1] B[0] RECV_B[1] B[1] }\n"
        "rank r where r == 1 { RECV_F[0] F[0] B[0] SEND_B[0] RECV_F[1] F[1] B[1] SEND_B[1] }\n"
    )
    result = verify(parse_text(HEAD + text), {"p": 2, "m": 2})
    (found,) = [each for each in advise(result) if each.code == "PD903"]
    # F1 is sent at 2; the gradient that the receive before it waits for is there at 1 + 1 + 2 = 4.
    assert found.message.startswith("SEND_F stage 0 microbatch 1 stands 2 behind RECV_B stage 0 microbatch 0,")


def test_what_is_rejected_gets_no_advice() -> None:
    result = verify(parse_text(HEAD + "rank r { F * m B * m }\nmemory { cap(r) = 1 }"), {"p": 2, "m": 4})
    assert result.verdict is Verdict.REJECTED
    assert advise(result) == ()


def test_advice_changes_no_status_and_can_be_left_out() -> None:
    arguments = ["verify", "gpipe", "-D", "p=2", "-D", "m=4"]
    plain = CliRunner().invoke(cli, [*arguments, "--no-advice"])
    advised = CliRunner().invoke(cli, arguments)
    assert (plain.exit_code, advised.exit_code) == (0, 0)
    assert advised.output.startswith(plain.output)
    assert "advice[PD902]" in advised.output
    assert "advice" not in plain.output


def test_a_budget_is_kept() -> None:
    program = word_program(one_f_one_b(2, 4))
    budget = Budget(1200)
    taken = 0
    while budget.take(program):
        taken += 1
    assert taken == 2
    assert advice_on(word_program([["F0", "B0"] * 1]), thorough=False) == {}


def test_impossible_moves_are_known() -> None:
    program = word_program([["F0", "B0"]])
    assert simulate_move(program, Move(0, 1)) is None
    with pytest.raises(Stuck):
        simulate(moved(program, Move(0, 1)))
