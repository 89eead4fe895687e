import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from words import costs, gpipe, interleaved, memory, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.lower import lower
from pipedsl.program import COMPUTE, Costs, Kind, Program
from pipedsl.simulate import Metrics, Stuck, measure, simulate

PAPER = json.loads((Path(__file__).parents[1] / "cases" / "zb_paper.json").read_text())["rows"]


def metrics(words: list[list[str]], **more: object) -> Metrics:
    program = word_program(words, **more)
    return measure(program, simulate(program))


def naive_times(program: Program) -> dict[int, tuple[Fraction, Fraction]]:
    """Start and end of every computation by sweeping over the ranks until nothing changes."""
    names = {
        (Kind(program.kind[row]), int(program.stage[row]), int(program.microbatch[row])): row
        for row in range(len(program))
    }
    rank_of = program.rank_of()
    times: dict[int, tuple[Fraction, Fraction]] = {}

    def needed(row: int) -> list[tuple[int, Fraction]]:
        kind, stage, i = Kind(program.kind[row]), int(program.stage[row]), int(program.microbatch[row])
        if kind == Kind.F:
            wanted = [(kinds, stage - 1) for kinds in (Kind.F,)]
        elif kind == Kind.W:
            wanted = [(Kind.I, stage)]
        else:
            wanted = [(Kind.F, stage), (Kind.B, stage + 1), (Kind.I, stage + 1)]
        found = []
        for other_kind, other in wanted:
            source = names.get((other_kind, other, i))
            if source is not None:
                away = rank_of[source] != rank_of[row]
                found.append((source, program.costs.send[other] if away else Fraction(0)))
        return found

    changed = True
    while changed:
        changed = False
        for rank in range(program.ranks):
            clock = Fraction(0)
            for row in program.rows(rank):
                if row not in times:
                    if any(source not in times for source, _ in needed(row)):
                        break
                    start = max([clock, *(times[source][1] + delay for source, delay in needed(row))])
                    times[row] = (start, start + program.costs.of(Kind(program.kind[row]))[program.stage[row]])
                    changed = True
                clock = times[row][1]
    return times


@pytest.mark.parametrize(("words", "peaks"), [(gpipe(4, 8), [8] * 4), (one_f_one_b(4, 8), [4, 3, 2, 1])])
def test_known_schedules(words: list[list[str]], peaks: list[int]) -> None:
    found = metrics(words)
    assert (found.makespan, found.bubble, list(found.peak_activations)) == (33, Fraction(3, 11), peaks)
    assert list(found.memory) == peaks


@pytest.mark.parametrize(("m", "percent"), [(4, 42.9), (8, 27.3), (16, 15.8), (32, 8.6)])
def test_bubble_of_1f1b(m: int, percent: float) -> None:
    assert round(float(metrics(one_f_one_b(4, m)).bubble) * 100, 1) == percent


def test_zero_bubble() -> None:
    h1, h2 = metrics(zb_h1(4, 8)), metrics(zb_h2(4, 8))
    assert (h1.makespan, h1.peak_activations) == (27, (4,) * 4)
    assert (h2.span, h2.span_bubble, h2.peak_activations) == (24, 0, (7,) * 4)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved_bubble(v: int) -> None:
    found = metrics(interleaved(4, 8, v), placement=[stage % 4 for stage in range(4 * v)])
    assert found.bubble == Fraction(3, v * 8 + 3)


@pytest.mark.parametrize("row", PAPER, ids=lambda row: f"{row['model']}-{row['m']}")
@pytest.mark.parametrize(("name", "words"), [("1f1b", one_f_one_b), ("zb_h1", zb_h1), ("zb_h2", zb_h2)])
def test_published_span_bubbles(row: dict, name: str, words: object) -> None:
    ms, p = row["cost_ms"], row["p"]
    cost = costs(p, ms["F"], ms["I"], ms["W"], send=ms["send"])
    found = metrics(words(p, row["m"]), cost=cost, sizes=memory(p, p, 1, "0.5"))
    assert round(float(found.span_bubble), 4) == row["span_bubble"][name]


def test_half_an_activation_is_held_for_w() -> None:
    found = metrics([["F0", "I0", "F1", "I1", "W0", "W1"]], sizes=memory(1, 1, 4, 2))
    assert (found.peak_activations, found.memory) == ((Fraction(3, 2),), (6,))


def random_costs(draw: random.Random, stages: int) -> Costs:
    def some() -> tuple[Fraction, ...]:
        return tuple(Fraction(draw.randint(0, 9), draw.randint(1, 6)) for _ in range(stages))

    return Costs(some(), some(), some(), some(), some())


@pytest.mark.parametrize("seed", range(20))
def test_times_against_a_naive_simulation(seed: int) -> None:
    draw = random.Random(seed)
    p = draw.randint(1, 4)
    m = draw.randint(1, 6) + 2 * p
    words = draw.choice((gpipe, one_f_one_b, zb_h1, zb_h2))(p, m)
    program = word_program(words, cost=random_costs(draw, p))
    timeline = simulate(program)
    assert {row: (timeline.start_of(row), timeline.end_of(row)) for row in range(len(program))} == naive_times(program)
    assert sorted(timeline.sequence.tolist()) == list(range(len(program)))
    assert timeline.makespan == max(end for _, end in naive_times(program).values())


@pytest.mark.parametrize("seed", range(10))
def test_memory_against_a_naive_count(seed: int) -> None:
    draw = random.Random(seed)
    p = draw.randint(2, 4)
    whole, held, weight, output = (Fraction(draw.randint(0, 8), draw.randint(1, 4)) for _ in range(4))
    words = draw.choice((one_f_one_b, zb_h1, zb_h2))(p, 3 * p)
    program = word_program(words, sizes=memory(p, p, whole, held, weight, output))
    timeline = simulate(program)
    calls = lower(program, timeline)
    for rank in range(p):
        now = most = 2 * weight
        for row in calls.rows(rank):
            label = calls.label(row)
            if label.startswith(("isend", "irecv")):
                now += output
            elif label == "compute" and program.kind[calls.op[row]] == Kind.F:
                now += whole
            most = max(most, now)
            if label.startswith("wait"):
                now -= output
            elif label == "compute":
                now -= {Kind.F: 0, Kind.B: whole, Kind.I: whole - held, Kind.W: held}[Kind(program.kind[calls.op[row]])]
            most = max(most, now)
        assert measure(program, timeline, calls).memory[rank] == most


def test_times_beyond_64_bits_stay_exact() -> None:
    huge = 2**200
    program = word_program(one_f_one_b(2, 3), cost=costs(2, huge, huge, huge))
    found = measure(program, simulate(program))
    assert found.makespan == 12 * huge
    assert found.bubble == Fraction(1, 4)


def test_no_time_at_all() -> None:
    found = metrics(one_f_one_b(2, 2), cost=costs(2, 0, 0, 0))
    assert (found.makespan, found.bubble, found.span_bubble) == (0, 0, 0)


@pytest.mark.parametrize(
    ("words", "stuck"),
    [
        ([["B0", "F0"], ["F0", "B0"]], (0, 2)),
        ([["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]], (1, 4)),
        ([["F0"], ["F0", "F1"]], (0, 1)),
    ],
)
def test_stuck(words: list[list[str]], stuck: tuple[int, ...]) -> None:
    with pytest.raises(Stuck) as error:
        simulate(word_program(words))
    assert error.value.rows == stuck


def test_explicit_messages_take_no_time_of_their_own() -> None:
    words = [["F0", "SEND_F0", "F1", "SEND_F1", "RECV_B0", "B0", "RECV_B1", "B1"]]
    words.append(["RECV_F0", "F0", "B0", "SEND_B0", "RECV_F1", "F1", "B1", "SEND_B1"])
    explicit, implicit = (
        word_program(rows, cost=costs(2, send=3))
        for rows in (words, [[op for op in word if "_" not in op] for word in words])
    )
    times = []
    for program in (explicit, implicit):
        timeline = simulate(program)
        rows = [row for row in range(len(program)) if Kind(program.kind[row]) in COMPUTE]
        times.append([timeline.start_of(row) for row in rows])
    assert times[0] == times[1]
