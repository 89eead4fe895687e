"""Memory by what it is for and over time, against a count that keeps every thing held by name."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from words import costs, gpipe, interleaved, memory, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.calls import CallKind, Calls
from pipedsl.cli.main import cli
from pipedsl.lower import lower
from pipedsl.moments import call_times
from pipedsl.occupancy import Part, memory_used, parts_at_peaks
from pipedsl.program import Kind, Program
from pipedsl.render.memory import BLOCKS, memory_lines, memory_over_time
from pipedsl.render.timeline import grid_of
from pipedsl.simulate import simulate

CONSTANT = (Part.WEIGHTS, Part.GRADIENTS, Part.OPTIMIZER)


def a_program(seed: int) -> Program:
    draw = random.Random(seed)
    p = draw.randint(2, 4)
    parts = [Fraction(draw.randint(0, 8), draw.randint(1, 4)) for _ in range(6)]
    sizes = memory(p, p, parts[0] + parts[1], parts[1], parts[2], parts[3])
    sizes = replace(sizes, optimizer=(parts[4],) * p, input=(parts[5],) * p)
    words = draw.choice((gpipe, one_f_one_b, zb_h1, zb_h2))(p, 3 * p)
    times = costs(p, *(draw.randint(1, 4) for _ in range(3)), send=draw.randint(0, 2))
    return word_program(words, sizes=sizes, cost=times)


def moments(program: Program, calls: Calls, rank: int) -> list[tuple[int, bool, dict[Part, Fraction]]]:
    """(row, at its end, what is held by part) of a rank, by a bag of things held."""
    sizes = program.memory
    held: dict[object, tuple[Part, Fraction]] = {}
    for _, stage in program.chunks(rank):
        for part, each in zip(CONSTANT, (sizes.weights, sizes.gradients, sizes.optimizer), strict=True):
            held[part, stage] = (part, each[stage])
    requests: dict[int, list[int]] = {}
    found = []

    def note(row: int, at_end: bool) -> None:
        total = dict.fromkeys(Part, Fraction(0))
        for part, size in held.values():
            total[part] += size
        found.append((row, at_end, {part: size for part, size in total.items() if size}))

    for row in calls.rows(rank):
        kind, op = CallKind(calls.kind[row]), int(calls.op[row])
        stage, microbatch = int(program.stage[op]), int(program.microbatch[op])
        if kind in (CallKind.ISEND, CallKind.IRECV):
            tag = calls.tags[int(calls.tag[row])]
            edge = int(tag.split("@")[1]) - (tag[0] == "F")  # the stage whose output, or its gradient, this is
            part = Part.SEND_BUFFERS if kind is CallKind.ISEND else Part.RECEIVE_BUFFERS
            held["message", row] = (part, sizes.output[edge])
            requests.setdefault(int(calls.request[row]), []).append(row)
        elif kind is CallKind.COMPUTE and program.kind[op] == Kind.F:
            held["activation", stage, microbatch] = (Part.ACTIVATIONS, sizes.activation[stage])
            held["input", stage, microbatch] = (Part.INPUTS, sizes.input[stage])
        note(row, False)
        if kind is CallKind.WAIT:
            for message in requests.pop(int(calls.request[row])):
                del held["message", message]
        elif kind is CallKind.COMPUTE and program.kind[op] in (Kind.B, Kind.I):
            del held["activation", stage, microbatch], held["input", stage, microbatch]
            if program.kind[op] == Kind.I:
                held["w", stage, microbatch] = (Part.HELD_BY_W, sizes.held_by_w[stage])
        elif kind is CallKind.COMPUTE and program.kind[op] == Kind.W:
            del held["w", stage, microbatch]
        note(row, True)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_every_part_at_every_moment(seed: int) -> None:
    program = a_program(seed)
    calls = lower(program, simulate(program))
    used = {part: memory_used(program, calls, (part,)) for part in Part}
    total = memory_used(program, calls)
    peaks = [total.peak(rank) for rank in range(program.ranks)]
    at_peaks = parts_at_peaks(program, calls, peaks)
    for rank in range(program.ranks):
        wanted = moments(program, calls, rank)
        for row, at_end, parts in wanted:
            for part, over_time in used.items():
                size = (over_time.after if at_end else over_time.during)[row]
                assert over_time.base[rank] + int(size) * over_time.unit == parts.get(part, 0), (part, row, at_end)
        most = max(sum(parts.values()) for _, _, parts in wanted)
        assert peaks[rank].size == most
        first = next(each for each in wanted if sum(each[2].values()) == most)
        assert (peaks[rank].row, peaks[rank].at_end, at_peaks[rank]) == first


def test_a_rank_that_never_holds_more_than_its_weights() -> None:
    program = word_program([["F0", "B0"]], sizes=memory(1, 1, 0, weights=5))
    used = memory_used(program)
    assert used.peak(0).size == 10
    assert parts_at_peaks(program, None, [used.peak(0)]) == [{Part.WEIGHTS: 5, Part.GRADIENTS: 5}]


def test_replicas_hold_their_weights_twice() -> None:
    program = word_program([["F0", "B0"], ["F0", "B0"]], sizes=memory(2, 2, 0, weights=3))
    both = replace(program, placement=np.array([[0, 1], [1, 0]], np.int32))
    assert memory_used(both).base == (12, 12)


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1, gpipe])
def test_calls_happen_in_order_and_computations_on_time(make) -> None:
    program = word_program(make(4, 8), cost=costs(4, 2, 3, 1, send=1))
    timeline = simulate(program)
    calls = lower(program, timeline)
    start, end = call_times(calls, timeline)
    assert (start <= end).all()
    computes = calls.kind == CallKind.COMPUTE
    assert (start[computes] == timeline.start[calls.op[computes]]).all()
    assert (end[computes] == timeline.end[calls.op[computes]]).all()
    for rank in range(4):
        rows = slice(int(calls.offsets[rank]), int(calls.offsets[rank + 1]))
        assert (start[rows][1:] >= end[rows][:-1]).all()


# ------------------------------------------------------------------ drawn


def heights(program: Program, columns: int | None = None) -> list[str]:
    timeline = simulate(program)
    held = memory_over_time(program, timeline, lower(program, timeline))
    lines = memory_lines(program, timeline, held, grid_of(program, timeline, columns))
    return [each.text for each in lines]


DRAWN = {
    "gpipe": word_program(gpipe(3, 8)),
    "1f1b": word_program(one_f_one_b(3, 8)),
    "zb_h1": word_program(zb_h1(3, 8)),
    "interleaved": word_program(interleaved(2, 4, 2), placement=[0, 1, 0, 1]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_columns_show_the_most_held_in_them(name: str) -> None:
    """Whole durations, no buffers: what a column shows is what is held from its left edge on."""
    program = DRAWN[name]
    timeline = simulate(program)
    top = int(max(memory_used(program).peaks()))
    for rank, drawn in enumerate(heights(program)[1:]):
        picture = drawn.split("|")[1]
        for time, glyph in enumerate(picture):
            rows = [row for row in program.rows(rank) if timeline.start[row] <= time]
            held = sum(program.kind[row] == Kind.F for row in rows)
            held -= sum(program.kind[row] in (Kind.B, Kind.W) and timeline.end[row] <= time for row in rows)
            assert glyph == BLOCKS[-(-held * 8 // top)], (rank, time)


def test_memory_over_the_cap_is_marked() -> None:
    program = word_program(gpipe(2, 4), sizes=memory(2, 2, cap=3))
    head, first, _ = heights(program)
    assert head == "memory; a full column is 4, ! is over the cap"
    assert first == "rank 0 |▂▄▆!!!!!!▆▆▄▄▂▂| peak 4 at time 3, cap 3"


def test_show_memory_fits_the_width_and_says_what_the_terminal_can() -> None:
    arguments = ["show", "zb_h1", "-D", "p=4", "-D", "m=30", "--memory", "--width", "80"]
    shown = CliRunner().invoke(cli, arguments).output.split("\n")
    rows = [text for text in shown if text.startswith("rank ")]
    assert len(rows) == 8
    assert all(len(text) <= 80 for text in rows)
    assert {text.rindex("|") for text in rows} == {rows[0].rindex("|")}
    assert all(" peak 4 at time " in text for text in rows[4:])
    plain = CliRunner(charset="ascii").invoke(cli, arguments).output
    assert plain.isascii()
    assert "\\u" not in plain
    assert "@@@" in plain


def test_show_memory_as_a_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.svg"
    for extra in ((), ("--memory",)):
        done = CliRunner().invoke(cli, ["show", "zb_h1", "-D", "p=4", "-D", "m=8", *extra, "-o", str(path)])
        assert done.exit_code == 0
        assert ("memory; a full row is 4" in path.read_text()) is bool(extra)


def test_json_says_what_the_peak_is_made_of(tmp_path) -> None:
    path = tmp_path / "x.sched"
    path.write_text(
        "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m I * m W * m }\n"
        "memory { activation(s) = 3 held_by_w(s) = 1 weights(s) = 5 optimizer(s) = 1/2 }\n"
    )
    done = CliRunner().invoke(cli, ["verify", str(path), "-D", "p=1", "-D", "m=4", "--format", "json"])
    found = json.loads(done.output)["metrics"]
    assert found["memory"] == [22.5]
    assert found["memory_at_peak"] == [{"weights": 5, "gradients": 5, "optimizer": 0.5, "activations": 12}]
    assert found["exact"]["memory_at_peak"][0]["optimizer"] == "1/2"
