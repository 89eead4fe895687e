"""REDUCE in programs: times, claims, calls, what is mended, shown and left open. `test_reductions_run.py` runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import networkx
import numpy as np
import pytest
from click.testing import CliRunner

from pipedsl.api import parse_text, verify, verify_program
from pipedsl.calls import CallKind, Calls
from pipedsl.calls_json import read_calls, write_calls
from pipedsl.cli.main import cli
from pipedsl.format import format_schedule
from pipedsl.lower import lower
from pipedsl.parametric import prove_for_all
from pipedsl.profile import apply_profile, read_profile
from pipedsl.program import Kind
from pipedsl.render.figure import draw
from pipedsl.render.timeline import legend_line, timeline_lines
from pipedsl.simulate import simulate
from tests.support import compiled
from tests.support.compiled import BY_HAND_REDUCE, CHIMERA_REDUCE, SPLIT_REDUCE, TWO_WAYS_REDUCE
from verify import Verdict, check_calls, dependency_graph, mend_calls, mend_program
from verify import verify as prove
from verify.deadlock import mirrored
from verify.lifetimes import check_correspondence
from verify.transports import BY_NAME

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "chimera_reduce.sched")


# ------------------------------------------------------------------ times


def test_those_who_meet_start_and_end_together() -> None:
    """Rank 1 is at the sum of stage 1 at 5, rank 0 at 6; both at that of stage 0 at 6 + 5 + 2."""
    text = TWO_WAYS_REDUCE + "cost s { REDUCE = 3 if s == 0 else 5 }"
    result = verify(parse_text(text), {"p": 2, "m": 1})
    assert result.program is not None
    assert result.timeline is not None
    assert result.metrics is not None
    rows = np.flatnonzero(result.program.kind == Kind.REDUCE)
    times = [(result.timeline.start_of(row), result.timeline.end_of(row)) for row in rows.tolist()]
    assert times == [(6, 11), (13, 16), (6, 11), (13, 16)]
    assert (result.metrics.makespan, result.metrics.span) == (16, 16)
    assert result.metrics.busy == (14, 14)
    assert (result.metrics.bubble, result.metrics.span_bubble) == (Fraction(1, 8), Fraction(1, 8))


APART = """schedule x(p, m)
stages 1
replica a { place s -> 0 }
replica b { place s -> 0 }
replica c { place s -> 1 }
rank r where r == 0 { F@a * m B@a * m REDUCE@a F@b * m B@b * m REDUCE@b }
rank r where r == 1 { F * m B * m REDUCE }
cost { F = 1  B = 2  REDUCE = 1 }
"""


def test_the_last_copy_of_a_rank_meets_the_others_and_who_waits_is_not_busy() -> None:
    """Rank 1 is at the sum at 3, rank 0 at 6, after both of its copies; its first REDUCE takes no time."""
    result = verify(parse_text(APART), {"p": 2, "m": 1})
    assert result.verdict is Verdict.VERIFIED
    assert result.program is not None
    assert result.timeline is not None
    assert result.metrics is not None
    rows = np.flatnonzero(result.program.kind == Kind.REDUCE).tolist()
    times = [(result.timeline.start_of(row), result.timeline.end_of(row)) for row in rows]
    assert times == [(3, 3), (6, 7), (6, 7)]
    assert (result.metrics.makespan, result.metrics.busy) == (7, (7, 4))
    assert result.metrics.bubble == 1 - Fraction(11, 14)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("makespan == 8 + 2 * REDUCE", Verdict.VERIFIED),
        ("makespan == 8 + REDUCE", Verdict.REJECTED),
        ("makespan == 4 * F + 2 * B + 2 * REDUCE", Verdict.VERIFIED),
        ("makespan <= 4 * F + 2 * B + REDUCE", Verdict.REJECTED),
        ("makespan >= 4 * F + 2 * B + REDUCE", Verdict.VERIFIED),
        ("bubble == 4 / 17", Verdict.VERIFIED),
    ],
)
def test_claims_about_its_cost(claim: str, verdict: Verdict) -> None:
    text = TWO_WAYS_REDUCE + f"cost {{ REDUCE = 0.25 }}\nexpect {{ {claim} }}"
    assert verify(parse_text(text), {"p": 2, "m": 1}).verdict is verdict


def test_a_profile_has_its_duration() -> None:
    _, program, _ = compiled.build(TWO_WAYS_REDUCE, p=2, m=1)
    profile = read_profile('{"format": "pipedsl-profile", "version": 1, "costs": {"REDUCE": ["1.5", 2]}}')
    measured = apply_profile(profile, program)
    assert measured.costs.reduce == (Fraction(3, 2), Fraction(2))
    assert measured.costs.forward == program.costs.forward
    result = verify_program(program, profile=profile)
    assert result.metrics is not None
    assert result.metrics.makespan == 8 + Fraction(7, 2)


def test_it_needs_no_memory() -> None:
    text = TWO_WAYS_REDUCE + "memory { weights(s) = 3  output(s) = 1 }"
    without = text.replace("REDUCE@up", "").replace("REDUCE@down", "")
    placed, bare = (verify(parse_text(each), {"p": 4, "m": 3}).metrics for each in (text, without))
    assert placed is not None
    assert bare is not None
    assert (placed.memory, placed.peak_activations) == (bare.memory, bare.peak_activations)


# ------------------------------------------------------------------ calls


@pytest.mark.parametrize(("text", "p", "m"), [(CHIMERA_REDUCE, 4, 2), (TWO_WAYS_REDUCE, 3, 2), (SPLIT_REDUCE, 3, 2)])
def test_all_of_a_sum_stand_at_one_place_of_the_global_order(text: str, p: int, m: int) -> None:
    *_, calls = compiled.build(text, p=p, m=m)
    assert mirrored(calls)
    assert calls.order is not None
    assert calls.reductions is not None
    rows = np.flatnonzero(calls.kind == CallKind.REDUCE)
    for group, ranks in enumerate(calls.reductions.ranks):
        own = rows[calls.reductions.group[rows] == group]
        assert tuple(calls.rank_of()[own].tolist()) == ranks
        assert len(set(calls.order[own].tolist())) == 1
    moved = calls.order.copy()
    moved[rows[0]] += 1
    assert not mirrored(replace(calls, order=moved)) or len(calls.reductions.ranks[0]) == 1


def test_calls_are_written_and_read_back() -> None:
    _, _, calls = compiled.build(TWO_WAYS_REDUCE, p=3, m=1)
    document = json.loads(json.dumps(write_calls(calls)))
    sums = [[call for call in rank if call[0] == "reduce"] for rank in document["ranks"]]
    # Rank 1 holds stage 1 twice: its first sum of that stage meets nobody, and the other stands for both.
    assert sums == [
        [["reduce", [0, 2], "stage 2"], ["reduce", [0, 2], "stage 0"]],
        [["reduce", [1], "stage 1 of down"], ["reduce", [1], "stage 1"]],
        [["reduce", [0, 2], "stage 2"], ["reduce", [0, 2], "stage 0"]],
    ]
    back = read_calls(document)
    assert write_calls(back) == document
    assert check_calls(back).verdict is Verdict.VERIFIED


def without_a_sum(calls: Calls) -> Calls:
    assert calls.reductions is not None
    gone = np.flatnonzero(calls.kind == CallKind.REDUCE)[0]
    kept = np.delete(np.arange(len(calls)), gone)
    columns = {name: getattr(calls, name)[kept] for name in ("kind", "peer", "tag", "request", "batch", "op", "order")}
    offsets = calls.offsets - (calls.offsets > gone)
    return replace(calls, offsets=offsets, reductions=calls.reductions.of_rows(kept), **columns)


def test_calls_of_a_program_have_all_of_its_sums() -> None:
    _, program, calls = compiled.build(TWO_WAYS_REDUCE, p=2, m=1)
    assert not check_correspondence(program, calls)
    assert check_correspondence(program, without_a_sum(calls))
    assert calls.reductions is not None
    renamed = replace(calls, reductions=replace(calls.reductions, names=calls.reductions.names[::-1]))
    assert check_correspondence(program, renamed)
    assert prove(program, renamed).verdict is Verdict.REJECTED


@pytest.mark.parametrize(
    ("ranks", "where"),
    [
        ([[["reduce", [0, 1], "a"]], [["reduce", [0, 1, 2], "a"]]], "rank 1, call 0: a reduce names ranks from 0 to 1"),
        ([[["reduce", [1], "a"]], []], "rank 0, call 0: a reduce names its own rank too"),
        ([[["reduce", [0, 0], "a"]]], "rank 0, call 0: a reduce names ranks from 0 to 0, in order"),
        ([[["reduce", [1, 0], "a"]], []], "rank 0, call 0: a reduce names ranks from 0 to 1, in order"),
        ([[["reduce", [True], "a"]], []], "rank 0, call 0: a reduce names ranks"),
        ([[["reduce", 0, "a"]]], "rank 0, call 0: expected"),
        ([[["reduce", [0]]]], "rank 0, call 0: expected"),
    ],
)
def test_what_is_no_reduce_is_said(ranks: list, where: str) -> None:
    from pipedsl.diagnostics import DiagnosticError

    with pytest.raises(DiagnosticError) as error:
        read_calls({"ranks": ranks})
    assert where in error.value.diagnostics[0].message


# ----------------------------------------------------------------- mended


def test_calls_around_a_sum_are_mended() -> None:
    """Rank 1 receives after the sum what rank 0 sends before it: one stream too many on NCCL."""
    both = ["reduce", [0, 1], "a"]
    document = {"ranks": [[["isend", 1, "x"], both, ["wait", 0]], [both, ["irecv", 0, "x"], ["wait", 0]]]}
    assert check_calls(read_calls(document)).verdict is Verdict.REJECTED
    mended = mend_calls(read_calls(document)).calls
    assert mended is not None
    assert set(check_calls(mended, tuple(BY_NAME)).transports.values()) == {"safe"}
    assert write_calls(mended)["ranks"][1] == [["irecv", 0, "x"], both, ["wait", 0]]


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([[["reduce", [0, 1], "a"]], []], "is with a rank that never comes to it"),
        ([[["reduce", [0, 1], name] for name in order] for order in ("ab", "ba")], "the ranks wait for each other"),
    ],
)
def test_what_cannot_be_mended(ranks: list, reason: str) -> None:
    mended = mend_calls(read_calls({"ranks": ranks}))
    assert mended.calls is None
    assert mended.reason is not None
    assert reason in mended.reason


def test_communication_by_hand_is_mended_around_sums() -> None:
    """As it was, but for the order of a receive and a send that gloo alone takes."""
    late = BY_HAND_REDUCE.replace("RECV_F@down SEND_F@up F@down", "SEND_F@up RECV_F@down F@down")
    program = verify(parse_text(late), {"p": 2, "m": 2}).program
    assert program is not None
    mended = mend_program(program).program
    assert mended is not None
    assert mended.explicit_communication
    assert prove(mended, transports=tuple(BY_NAME)).verdict is Verdict.VERIFIED
    sums = [int((each.kind == Kind.REDUCE).sum()) for each in (program, mended)]
    assert sums == [4, 4]


# ------------------------------------------------------------------ shown


def test_the_graph_of_dependencies() -> None:
    """What any copy's REDUCE needs, all of them need: not more, and without a circle."""
    _, program, _ = compiled.build(TWO_WAYS_REDUCE, p=2, m=2)
    graph = dependency_graph(program)
    assert networkx.is_directed_acyclic_graph(graph)
    for row in np.flatnonzero(program.kind == Kind.REDUCE).tolist():
        needs = [source for source, _, why in graph.in_edges(row, data="why") if why == "data"]
        kinds = {(graph.nodes[source]["kind"], graph.nodes[source]["stage"]) for source in needs}
        assert kinds == {("B", graph.nodes[row]["stage"])}
        assert {graph.nodes[source]["replica"] for source in needs} == {0, 1}
        assert graph.nodes[row]["microbatch"] is None


def test_pictures_of_it() -> None:
    program = verify(parse_text(TWO_WAYS_REDUCE + "cost { REDUCE = 2 }"), {"p": 2, "m": 1}).program
    assert program is not None
    timeline = simulate(program)
    lines = [line.text for line in timeline_lines(program, timeline)]
    assert lines == ["rank 0 |0..1bb++aa++|", "rank 1 |.01aa.++bb++|"]
    assert "+ REDUCE" in legend_line(program).text
    pytest.importorskip("matplotlib")
    assert b"REDUCE" in draw(program, timeline, "x", [], "svg")


def test_texts_of_it() -> None:
    sizes = ["-D", "p=2", "-D", "m=1"]
    said = CliRunner().invoke(cli, ["expand", EXAMPLE, *sizes]).output
    assert said.splitlines()[0] == "rank 0: F@0[0] F@1[0] B@1[0] REDUCE@1 B@0[0] REDUCE@0"
    said = CliRunner().invoke(cli, ["expand", EXAMPLE, *sizes, "--calls"]).output
    assert said.count("    reduce stage 1 with rank ") == said.count("    reduce stage 0 with rank ") == 2
    document = json.loads(CliRunner().invoke(cli, ["expand", EXAMPLE, *sizes, "--format", "json"]).output)
    sums = [each for each in document["ranks"][0] if each[0] == "REDUCE"]
    assert sums == [["REDUCE", 1, None, 1], ["REDUCE", 0, None, 0]]
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F*m B*m REDUCE@( 0 ) }\ncost s { REDUCE=s }\n"
    formatted = format_schedule(parse_text(text))
    assert "REDUCE@0" in formatted
    assert format_schedule(parse_text(formatted)) == formatted


# ----------------------------------------------------------------- open


def test_every_m_at_once_is_left_open() -> None:
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m B * m REDUCE }\n"
    proof = prove_for_all(parse_text(text), {"p": 2})
    assert proof.verdict is Verdict.UNKNOWN
    (found,) = [each for each in proof.diagnostics if each.code == "PD502"]
    assert "`REDUCE` is not analysed for all m" in "\n".join((found.message, *found.notes))
    few = prove_for_all(parse_text(text.replace("stages", "require m <= 3\nstages")), {"p": 2})
    assert few.verdict is Verdict.VERIFIED


def test_a_bound_for_every_m_is_left_open_too() -> None:
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m B * m REDUCE }\nexpect { peak(r) <= m }"
    assert prove_for_all(parse_text(text), {"p": 2}).verdict is Verdict.UNKNOWN


def test_lowered_from_a_torch_csv_it_is_compiled() -> None:
    from pipedsl.diagnostics import Source
    from pipedsl.emit import emit
    from pipedsl.torch_csv import read_csv

    source = Source("x.csv", "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1REDUCE_GRAD\n")
    program = read_csv(source)
    text = emit(program, lower(program, simulate(program)), source=source, transports={"gloo": "safe"})
    assert "\nREDUCE 0 1\n" in text
    assert "\nREDUCE 1 2\n" in text
