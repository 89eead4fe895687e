"""Two copies of the stages, from the text to the verdict and the search. Chimera's figures are the paper's."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from brute import optimum
from click.testing import CliRunner

import pipedsl
from pipedsl.api import parse_text
from pipedsl.cli.main import cli
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand
from pipedsl.lower import lower
from pipedsl.program import Kind, Program
from pipedsl.runtime.plan import read_calls
from pipedsl.sched_text import program_text
from pipedsl.simulate import simulate
from tests.support.worker import load
from verify.layouts import first_receives
from verify.search import Budget, Infeasible, Objective, Problem, make_problem, solve, uniform_costs

CHIMERA = str(Path(__file__).parents[2] / "examples" / "chimera.sched")
OPEN = """schedule x(p, m)
stages p
replica down { place s -> s }
replica up { place s -> p - 1 - s }
rank r { F@down * m || B@down * m || F@up * m || B@up * m }
"""
HALVES = """schedule x(p, m)
stages 2 * p
replica one { place s -> s // 2 }
replica two { place s -> p - 1 - s // 2 }
rank r { (F@0 F@1 B@1 B@0 F@2 F@3 B@3 B@2) * m }
"""


def program(text: str, **params: int) -> Program:
    return expand(parse_text(text), params)


def test_chunks_are_counted_by_replica_and_then_by_stage() -> None:
    each = program(HALVES, p=2, m=1)
    assert each.placement.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert each.chunks(0) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert each.chunks(1) == [(0, 2), (0, 3), (1, 0), (1, 1)]
    rows = each.rows(1)
    own = slice(rows.start, rows.stop)
    assert each.replica[own].tolist() == [0] * 4 + [1] * 4
    assert each.stage[own].tolist() == [2, 3, 3, 2, 0, 1, 1, 0]


def test_a_name_and_a_number_are_the_same_chunk() -> None:
    named = (
        "rank r where r == 0 { (F@down F@up B@up B@down) * m } rank r where r == 1 { (F@up F@down B@down B@up) * m }"
    )
    numbered = named.replace("down", "0").replace("up", "1")
    head = OPEN[: OPEN.index("rank r")]
    one, other = program(head + named, p=2, m=3), program(head + numbered, p=2, m=3)
    for column in ("offsets", "kind", "stage", "microbatch", "replica"):
        assert np.array_equal(getattr(one, column), getattr(other, column))


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16, 64])
def test_chimera_is_the_papers(p: int) -> None:
    """Bubble (D - 2) / (3N/2 + D - 2) for N = D microbatches; D/2 + 1 to D activations of both copies on a rank."""
    result = pipedsl.verify(pipedsl.load(CHIMERA), {"p": p, "m": p // 2})
    assert result.verdict is pipedsl.Verdict.VERIFIED, [each.message for each in result.diagnostics]
    assert set(result.report.transports.values()) == {"safe"}
    assert result.claims == 3
    assert result.metrics is not None
    assert result.metrics.bubble == Fraction(2 * (p - 2), 3 * p + 2 * (p - 2))
    half = [p // 2 + 1 + rank for rank in range(p // 2)]
    assert list(result.metrics.peak_activations) == half + half[::-1]


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_chimera_of_fewer_microbatches(m: int) -> None:
    assert pipedsl.verify(pipedsl.load(CHIMERA), {"p": 8, "m": m}).verdict is pipedsl.Verdict.VERIFIED


def test_weights_are_there_once_for_each_copy() -> None:
    text = OPEN.replace("||", "") + "memory { weights(s) = 10 + s }\n"
    result = pipedsl.verify(parse_text(text), {"p": 2, "m": 1})
    assert result.verdict is pipedsl.Verdict.VERIFIED, [each.message for each in result.diagnostics]
    assert result.metrics is not None
    # Stages 0 and 1 of one copy or the other on either rank, with gradients as large as the weights; one activation.
    assert list(result.metrics.memory) == [43, 43]


def test_what_is_missing_names_the_copy() -> None:
    text = OPEN[: OPEN.index("rank r")] + "rank r { F@down * m B@down * m F@up B@up }"
    found = pipedsl.verify(parse_text(text), {"p": 2, "m": 2}).diagnostics
    assert found[0].message == "F of stages 0, 1 of replica up never runs for microbatch 1"


@pytest.mark.parametrize("text", [HALVES, (OPEN[: OPEN.index("rank r")] + "rank r { (F@0 B@0) * m (F@1 B@1) * m }")])
def test_the_text_of_a_program_expands_to_it(text: str) -> None:
    one = program(text, p=2, m=3)
    other = expand(parse_text(program_text(one)), {})
    for column in ("placement", "offsets", "kind", "stage", "microbatch", "replica"):
        assert np.array_equal(getattr(one, column), getattr(other, column))


def test_messages_of_both_copies_are_told_apart() -> None:
    each = expand(pipedsl.load(CHIMERA), {"p": 4, "m": 2})
    calls = lower(each, simulate(each))
    names = [str(calls.tags[int(tag)]) for tag in calls.tag if tag >= 0]
    assert {name.rsplit("/", 1)[1] for name in names} == {"0", "1"}
    # Both ends of: two copies, two microbatches, forward and backward, three boundaries.
    assert len(names) == 2 * 2 * 2 * 2 * 3


def test_each_copy_has_the_layouts_of_its_own_boundaries() -> None:
    """The first receive at a boundary waits for the F that the same copy runs before it."""
    each = expand(pipedsl.load(CHIMERA), {"p": 4, "m": 2})
    calls = lower(each, simulate(each))
    held = first_receives(each, calls)
    assert len(held) == 2 * 2 * 3  # copies, directions, boundaries
    for receive, maker in held.items():
        user, made = int(calls.op[receive]), int(calls.op[maker])
        assert each.kind[made] == Kind.F
        assert each.replica[made] == each.replica[user]
        assert each.stage[made] == each.stage[user] - (each.kind[user] == Kind.F)


def test_for_all_m_is_unknown() -> None:
    text = OPEN[: OPEN.index("rank r")] + (
        "rank r where r == 0 { (F@0 F@1 B@1 B@0) * m }\nrank r where r == 1 { (F@1 F@0 B@0 B@1) * m }\n"
    )
    found = pipedsl.prove_for_all(parse_text(text), {"p": 2})
    assert [each.code for each in found.diagnostics] == ["PD502"]
    assert "replicas" in found.diagnostics[0].message


def test_the_file_says_which_stage_is_whose(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    result = CliRunner().invoke(cli, ["compile", CHIMERA, "-D", "p=4", "-D", "m=2", "-o", str(path)])
    assert result.exit_code == 0, result.output
    module = load(path)
    assert module.PLACEMENT == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert [module.stages_of(rank) for rank in range(4)] == [[0, 3], [1, 2], [2, 1], [3, 0]]
    words = expand(pipedsl.load(CHIMERA), {"p": 4, "m": 2})
    for rank in range(4):
        ran = [call for call in read_calls(module.PLAN, rank) if call.kind in ("F", "B")]
        assert [f"{call.kind}{call.number}@{call.stage_name}" for call in ran] == [
            f"{Kind(words.kind[row]).name}{words.microbatch[row]}@{words.stage[row]}/{words.copies[words.replica[row]]}"
            for row in words.rows(rank)
        ]
        # Every microbatch of the step once: the copies divide the batch.
        assert sorted(call.microbatch for call in ran if call.kind == "F") == [0, 1, 2, 3]


# --------------------------------------------------------------------- search


@pytest.mark.parametrize(("p", "makespan"), [(2, 6), (4, 16), (8, 36)])
def test_search_finds_chimera(p: int, makespan: int) -> None:
    result = pipedsl.search(parse_text(OPEN), {"p": p, "m": p // 2}, budget=5)
    assert (result.value, result.optimal) == (makespan, True)
    assert result.verdict is pipedsl.Verdict.VERIFIED
    again = expand(parse_text(result.text), {})
    for column in ("placement", "offsets", "kind", "stage", "microbatch", "replica"):
        assert np.array_equal(getattr(again, column), getattr(result.program, column))


def random_problem(draw: random.Random) -> Problem:
    ranks, m = draw.choice([(1, 1), (2, 1), (1, 2), (2, 2)])
    depth = draw.choice([1, 2]) if ranks == 2 and m == 1 else draw.choice([1, ranks])
    split = draw.random() < 0.4 and ranks * m * depth < 4
    costs = uniform_costs(depth, draw.randint(1, 3), draw.randint(1, 3), draw.randint(0, 2), draw.randint(0, 1))
    return make_problem(
        placement=[draw.randrange(ranks) for _ in range(2 * depth)],
        ranks=ranks,
        replicas=2,
        microbatches=m,
        costs=costs.repeated(2),
        cap=[draw.choice([None, 1, 2, 3]) for _ in range(ranks)],
        held_by_w=Fraction(draw.randint(0, 2), 2),
        objective=draw.choice(list(Objective)),
        split=split,
    )  # fmt: skip


def test_the_optimum_is_that_of_brute_force() -> None:
    draw = random.Random(5)
    decided = 0
    for _ in range(40):
        problem = random_problem(draw)
        wanted = optimum(problem)
        try:
            found = solve(problem, budget=Budget(5))
        except Infeasible:
            assert wanted is None, problem
            continue
        assert found.value == wanted, problem
        assert found.proof is not None
        decided += 1
    assert decided > 20


def test_replicas_have_equally_many_stages() -> None:
    with pytest.raises(ValueError, match="every replica"):
        make_problem(placement=[0, 1, 0], microbatches=1, costs=uniform_costs(3, 1, 1, 1), replicas=2)


def test_kinds_are_split_in_one_copy_alone() -> None:
    text = OPEN.replace("B@up * m", "I@up * m || W@up * m")
    result = pipedsl.search(parse_text(text), {"p": 2, "m": 2}, budget=5)
    assert result.verdict is pipedsl.Verdict.VERIFIED
    assert set(result.program.kind[result.program.replica == 1].tolist()) == {Kind.F, Kind.I, Kind.W}


def test_an_open_placement_of_a_replica_is_refused() -> None:
    with pytest.raises(DiagnosticError) as error:
        pipedsl.search(parse_text(OPEN.replace("place s -> s }", "place ? }")), {"p": 2, "m": 1})
    assert [each.code for each in error.value.diagnostics] == ["PD113"]


def test_as_many_copies_as_one_likes() -> None:
    """More than a byte can count."""
    items = "".join(f"replica c{k} {{ place s -> s }}\n" for k in range(200))
    text = f"schedule x(p, m)\nstages p\n{items}rank r {{ for c in 0 .. 200 {{ F@c * m B@c * m }} }}\n"
    result = pipedsl.verify(parse_text(text), {"p": 2, "m": 1})
    assert result.verdict is pipedsl.Verdict.VERIFIED, [each.message for each in result.diagnostics]
    assert result.program is not None
    assert int(result.program.replica.max()) == 199


def test_nobody_is_advised_to_do_what_is_refused() -> None:
    few = pipedsl.verify(pipedsl.load(CHIMERA), {"p": 4, "m": 2})
    assert "PD904" not in {each.code for each in pipedsl.advise(few)}
    free = pipedsl.verify(pipedsl.load("1f1b"), {"p": 4, "m": 2})
    assert "PD904" in {each.code for each in pipedsl.advise(free)}


def test_a_bounded_m_is_verified_one_by_one() -> None:
    found = pipedsl.prove_for_all(pipedsl.load(CHIMERA), {"p": 4})
    assert (found.verdict, found.checked, found.from_m) == (pipedsl.Verdict.VERIFIED, (1, 2), None)


def test_messages_name_replicas() -> None:
    head = "schedule x(p, m)\nstages p\nreplica down { place s -> s }\nreplica up { place s -> %s }\n"
    good = head % "p - 1 - s"
    for text, said in (
        (
            head % "p - s" + "rank r { F@down * m B@down * m F@up * m B@up * m }",
            "stage 0 of replica up is placed on rank 2",
        ),
        (good + "rank r { F@down * m B@down * m F@up * (m + 1) B@up * m }", "there are 3 `F@up`"),
        (
            good + "rank r { F@down * m F@up * m B@down * m B@up * m } memory { cap(r) = 1 }",
            "microbatches 0 of down, 1 of down",
        ),
    ):
        found = pipedsl.verify(parse_text(text), {"p": 2, "m": 2}).diagnostics
        assert any(said in "\n".join((each.message, *each.notes)) for each in found), (said, found)
