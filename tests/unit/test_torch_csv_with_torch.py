"""What PyTorch dumps pipedsl verifies, and what pipedsl writes PyTorch loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_opinion import Opinion, Question, opinions
from torch_schedules import SCHEDULES, dumped, loaded
from words import gpipe, interleaved, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.diagnostics import DiagnosticError, Source
from pipedsl.lower import lower
from pipedsl.program import Kind, Program
from pipedsl.simulate import simulate
from pipedsl.torch_csv import read_csv, write_csv
from verify import Verdict, verify

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

PROGRAMS = {
    "gpipe": word_program(gpipe(3, 4)),
    "1f1b": word_program(one_f_one_b(4, 8)),
    "zb_h1": word_program(zb_h1(4, 8)),
    "zb_h2": word_program(zb_h2(3, 7)),
    "interleaved": word_program(interleaved(2, 4, 2), [0, 1, 0, 1]),
}
# PyTorch 2.13 draws the last rank of its own 1F1B with microbatches 1 .. m.
DUMPS = [
    (name, p, p * multiple, communication)
    for name, (_, chunks, least) in SCHEDULES.items()
    if name != "1f1b"
    for p in (2, 4)
    for multiple in (least, least + 1, least + 2)
    for communication in (False, True)
    if not (communication and chunks == 1)
]


def expected_operations(name: str, p: int, m: int) -> int:
    """F and B, or F, I and W, of every stage and microbatch. The V schedules split some of their B's."""
    return {"gpipe": 2, "looped_bfs": 2, "interleaved_1f1b": 2, "interleaved_zero_bubble": 3, "zbv": 3}[name] * (
        p * m * SCHEDULES[name][1]
    )


@pytest.mark.parametrize(("name", "p", "m", "communication"), DUMPS)
def test_what_torch_dumps_is_verified(name: str, p: int, m: int, communication: bool, tmp_path: Path) -> None:
    text = dumped(name, p, m, communication, tmp_path)
    program = read_csv(Source(f"{name}.csv", text))
    assert program.params == {"p": p, "m": m}
    assert program.stages == p * SCHEDULES[name][1]
    assert program.explicit_communication is communication
    compute = int((program.kind <= Kind.W).sum())
    if name != "dualpipev":
        assert compute == expected_operations(name, p, m)
    report = verify(program)
    assert report.verdict is Verdict.VERIFIED
    # Nothing is lost: PyTorch's own tokens come back, but for what moves no data and the brackets of overlaps.
    tokens = text.replace("(", "").replace(")OVERLAP_F_B", "").replace(";", ",").split()
    left_out = ("", "UNSHARD", "RESHARD")
    kept = [[token for token in line.split(",") if token.lstrip("0123456789") not in left_out] for line in tokens]
    assert [line.split(",") for line in write_csv(program).split()] == kept


def test_the_last_rank_of_the_1f1b_that_torch_draws(tmp_path: Path) -> None:
    text = dumped("1f1b", 2, 4, False, tmp_path)
    if "1F4" not in text:
        assert verify(read_csv(Source("1f1b.csv", text))).verdict is Verdict.VERIFIED
        return
    with pytest.raises(DiagnosticError) as caught:
        read_csv(Source("1f1b.csv", text))
    (found,) = caught.value.diagnostics
    assert found.code == "PD205"
    assert found.span is not None
    assert (found.span.line, found.span.text) == (2, "1F4")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_torch_loads_what_is_written(program: Program, tmp_path: Path) -> None:
    size = (program.ranks, program.microbatches, program.stages)
    plain = write_csv(program)
    schedule = loaded(plain, *size, communication=False, folder=tmp_path)
    cells = [[str(action) for action in schedule.pipeline_order[rank]] for rank in range(program.ranks)]
    assert cells == [line.split(",") for line in plain.split()]
    lowered = write_csv(program, lower(program, simulate(program)))
    schedule = loaded(lowered, *size, communication=True, folder=tmp_path)
    schedule._simulate()  # raises where a receive comes before its send


def test_torch_loads_a_reduce(tmp_path: Path) -> None:
    words = [["F0", "F1", "B0", "B1", "REDUCE"], ["F0", "B0", "F1", "B1", "REDUCE"]]
    program = word_program(words)
    text = write_csv(program, lower(program, simulate(program)))
    schedule = loaded(text, 2, 2, 2, communication=True, folder=tmp_path)
    kinds = [[action.computation_type for action in schedule.pipeline_order_with_comms[rank]] for rank in range(2)]
    assert [row.count(schedules.REDUCE_GRAD) for row in kinds] == [1, 1]
    assert write_csv(read_csv(Source("x.csv", text))) == text


@pytest.fixture(scope="module")
def asked() -> dict[str, Opinion]:
    good = write_csv(PROGRAMS["1f1b"])
    lowered = write_csv(PROGRAMS["1f1b"], lower(PROGRAMS["1f1b"], simulate(PROGRAMS["1f1b"])))
    texts = {
        "good": good,
        "lowered": lowered,
        "forgotten": good.replace("2B3,", ""),
        "unreadable": good.replace("2B3", "2Q3"),
        "junk": good.replace("2B3", "2B3x"),
        "twice": good.replace("2B3", "2B3,2B3"),
        "never sent": lowered.replace("1SEND_F2,", ""),
        "crossed ranks": "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
        "no microbatch": "0F,0B0\n",
    }
    sizes = {"crossed ranks": (2, 2, 2), "no microbatch": (1, 1, 1)}
    questions = [Question(text, *sizes.get(name, (4, 4, 8))) for name, text in texts.items()]
    return dict(zip(texts, opinions(questions), strict=True))


def test_torch_opinion(asked: dict[str, Opinion]) -> None:
    assert asked["good"] == Opinion("accept", "accept", "accept", "accept")
    assert asked["lowered"] == Opinion("accept", "accept", "skipped", "accept")
    assert asked["forgotten"].validate == "reject"
    assert asked["unreadable"].read == "reject"
    assert asked["never sent"].simulate == "hang"
    assert asked["crossed ranks"].verdict == "hang"


def test_what_torch_takes_silently_is_a_finding(asked: dict[str, Opinion]) -> None:
    good = write_csv(PROGRAMS["1f1b"])
    assert asked["junk"].verdict == asked["twice"].verdict == "accept"
    assert verify(read_csv(Source("twice.csv", good.replace("2B3", "2B3,2B3")))).diagnostics[0].code == "PD207"
    with pytest.raises(DiagnosticError):
        read_csv(Source("junk.csv", good.replace("2B3", "2B3x")))


def test_torch_opinion_is_limited_in_time() -> None:
    many = write_csv(word_program(one_f_one_b(16, 256)))
    (found,) = opinions([Question(many, 16, 16, 256)], seconds=0.005)
    assert found.verdict == "time"
