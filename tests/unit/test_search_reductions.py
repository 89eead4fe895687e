"""REDUCE in a search: where it is put, what that costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from brute import interleavings
from brute_sums import smallest
from click.testing import CliRunner

from pipedsl import search_with_reduce
from pipedsl.api import parse_text, verify
from pipedsl.cli.main import cli
from pipedsl.diagnostics import DiagnosticError
from pipedsl.expand import expand
from pipedsl.program import Kind, Program
from pipedsl.search_answer import SearchResult, answer_of, carried, job_of, program_of
from pipedsl.search_problem import tasks
from pipedsl.search_reductions import in_order
from pipedsl.search_runs import effort_of
from pipedsl.search_sums import Rows, Sums, improve
from pipedsl.searching import search
from pipedsl.simulate import Stuck, simulate
from pipedsl.sweeping import sweep
from pipedsl.syntax import Schedule
from verify import Verdict

LOOPED = "stages 2 * p\nplace s -> s % p\n"
COPIES = "stages p\nreplica down { place s -> s }\nreplica up { place s -> p - 1 - s }\n"
BOTH_WAYS = "F@down * m || B@down * m || F@up * m || B@up * m"


def schedule(head: str, word: str, items: str = "") -> Schedule:
    return parse_text(f"schedule x(p, m, k = 1)\n{head}rank r {{ {word} }}\n{items}\n")


def found(asked: Schedule, p: int, m: int) -> SearchResult:
    """The answer, whose text is what it says."""
    result = search(asked, {"p": p, "m": m}, budget=2)
    text = parse_text(result.text)
    again, report = expand(text, {}), verify(text, {})
    assert np.array_equal(again.kind, result.program.kind)
    assert np.array_equal(again.stage, result.program.stage)
    assert (report.verdict, result.verdict) == (Verdict.VERIFIED, Verdict.VERIFIED)
    assert report.metrics is not None
    assert getattr(report.metrics, result.objective) == result.value >= result.bound
    return result


def names(program: Program, rank: int) -> list[str]:
    rows = program.rows(rank)
    return [f"{Kind(program.kind[row]).name}{program.stage[row]}" for row in rows]


def test_each_stands_once_after_what_it_sums() -> None:
    result = found(schedule(COPIES, f"({BOTH_WAYS}) REDUCE@down || REDUCE@up"), 2, 2)
    for rank in range(2):
        order = names(result.program, rank)
        assert sorted(each for each in order if each.startswith("REDUCE")) == ["REDUCE0", "REDUCE1"]
        for stage in "01":
            after = len(order) - order[::-1].index(f"B{stage}")
            assert order.index(f"REDUCE{stage}") >= after


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize("cost", ["F = 1", "F = 2 send = 1 REDUCE = 3"])
def test_the_bound_is_that_of_the_computations_and_what_follows(objective: str, cost: str) -> None:
    items = f"minimize {objective}\ncost {{ {cost} }}"
    result = found(schedule(COPIES, f"({BOTH_WAYS}) REDUCE@down || REDUCE@up", items), 2, 2)
    alone = search(schedule(COPIES, BOTH_WAYS, items), {"p": 2, "m": 2}, budget=2)
    assert (alone.proof is not None, result.bound >= alone.bound + (3 if "REDUCE" in cost else 0)) == (True, True)
    assert result.optimal == (result.value == result.bound)
    if "REDUCE" not in cost and objective == "makespan":
        assert result.value == alone.value, "at the ends, where they take no time, they make nothing longer"


def test_so_it_is_of_spans_where_a_sum_may_come_between() -> None:
    items = "minimize span\ncost { F = 1 send = 2 }"
    asked, alone = (schedule(LOOPED, f"F@0 * m || F@1 * m || B@0 * m || B@1 * m{more}", items) for more in
                    (" || REDUCE@0 || REDUCE@1", ""))  # fmt: skip
    result, without = found(asked, 2, 1), search(alone, {"p": 2, "m": 1}, budget=2)
    assert result.value == result.bound == without.bound == 24
    assert result.optimal


SHIFTED = "stages 2\nreplica down { place s -> s }\nreplica up { place s -> s + 1 }\n"
SAME = "stages p\nreplica down { place s -> s }\nreplica up { place s -> s }\n"
PLACES = {
    LOOPED: "F@0 * m || F@1 * m || B@0 * m || B@1 * m || REDUCE@0 || REDUCE@1",
    COPIES: f"{BOTH_WAYS} || REDUCE@down || REDUCE@up",
    SHIFTED: "if r < 2 { F@down * m B@down * m REDUCE@down } || if r > 0 { F@up * m B@up * m REDUCE@up }",
    SAME: f"{BOTH_WAYS} || REDUCE@down || REDUCE@up",
}


def drawn(program: Program, draw: Random) -> list[list[int]]:
    """Every rank's rows in an order at random in which each comes after what it needs, or sums."""
    left, orders = list(range(len(program))), [list[int]() for _ in range(program.ranks)]
    rank_of, done = program.rank_of(), set[tuple[int, int, str, int]]()

    def may(row: int) -> bool:
        copy, stage, i = int(program.replica[row]), int(program.stage[row]), int(program.microbatch[row])
        match Kind(program.kind[row]):
            case Kind.F:
                return stage == 0 or (copy, stage - 1, "F", i) in done
            case Kind.B:
                over = stage == program.stages - 1 or (copy, stage + 1, "B", i) in done
                return over and (copy, stage, "F", i) in done
            case _:
                return all((copy, stage, "B", i) in done for i in range(program.microbatches))

    while left:
        row = draw.choice([row for row in left if may(row)])
        left.remove(row)
        orders[int(rank_of[row])].append(row)
        copy, stage, i = int(program.replica[row]), int(program.stage[row]), int(program.microbatch[row])
        done.add((copy, stage, Kind(program.kind[row]).name, i))
    return orders


@pytest.mark.parametrize("head", PLACES, ids=["looped", "copies", "shifted", "same"])
def test_no_rank_begins_later_or_ends_sooner_for_it(head: str) -> None:
    """Why the bound of a span holds: whichever the order, and also where ranks hold some of the copies alone."""
    draw, ran = Random(0), 0
    for k in range(60):
        costs = f"cost s {{ F = 1 + s  B = 3 - s / 2  send = {k % 4} / 2  REDUCE = {k % 3} }}"
        [task] = tasks(schedule(head, PLACES[head], costs), {"p": 3 if head == SHIFTED else 2, "m": 1 + k % 2})
        program = task.program
        orders = drawn(program, draw)
        whole = in_order(program, orders)
        computed = [[row for row in order if program.kind[row] != Kind.REDUCE] for order in orders]
        alone = in_order(replace(program, offsets=np.cumsum([0, *map(len, computed)])), computed)
        try:
            timeline = simulate(whole)
        except Stuck:  # two ranks come to their sums in different orders
            continue
        ran += 1
        before = simulate(alone)
        for rank in range(program.ranks):
            own, bare = whole.rows(rank), alone.rows(rank)
            assert timeline.start[own.start] * timeline.unit == before.start[bare.start] * before.unit
            assert timeline.end[own.stop - 1] * timeline.unit >= before.end[bare.stop - 1] * before.unit
    assert ran >= 10


def lowest(asked: Schedule, p: int, m: int) -> Fraction:
    """The smallest makespan of all orders of one chunk with B, REDUCE last: by what each waits for."""
    [task] = tasks(asked, {"p": p, "m": m})
    cost, best = task.program.costs, []
    for orders in product(*(interleavings(strands, task.problem.depth) for strands in task.problem.strands)):
        done: dict[tuple[str, int, int], Fraction] = {}
        at, clock = [0] * p, [Fraction(0)] * p
        while True:
            ran = False
            for rank, order in enumerate(orders):
                if at[rank] == len(order):
                    continue
                kind, stage, i = order[at[rank]]
                needs = [("F", stage - 1, i)] if kind == Kind.F and stage else []
                needs += [("F", stage, i)] if kind == Kind.B else []
                needs += [("B", stage + 1, i)] if kind == Kind.B and stage + 1 < p else []
                if not all(need in done for need in needs):
                    continue
                begin = max([clock[rank], *(done[need] + (cost.send[need[1]] if need[1] != stage else 0)
                                            for need in needs)])  # fmt: skip
                clock[rank] = begin + cost.of(Kind(kind))[stage]
                done[Kind(kind).name, stage, i] = clock[rank]
                at[rank], ran = at[rank] + 1, True
            if not ran:
                break
        if all(a == len(order) for a, order in zip(at, orders, strict=True)):
            best.append(max(end + cost.reduce[rank] for rank, end in enumerate(clock)))
    return min(best)


@pytest.mark.parametrize("reduce", ["1", "3 - s", "5 * s"])
def test_held_to_all_orders(reduce: str) -> None:
    """Where a rank has one chunk its REDUCE can only be last, and meets nobody: what it takes is known."""
    costs = f"cost s {{ F = 1 + s  B = 3 - s  send = 1 / 2  REDUCE = {reduce} }}"
    asked = schedule("stages p\nplace s -> s\n", "(F * m || B * m) REDUCE", costs)
    result, best = found(asked, 2, 3), lowest(asked, 2, 3)
    assert (result.value, result.bound, result.optimal) == (best, best, True)


@pytest.mark.parametrize(
    ("word", "value", "last"),
    [
        ("F@0 * m || F@1 * m || B@0 * m REDUCE@0 || B@1 * m REDUCE@1", 13, ["B0", "REDUCE0"]),
        ("F@0 * m || F@1 * m || B@0 * m || B@1 * m || REDUCE@1 || REDUCE@0", 13, ["B0", "REDUCE0"]),
        ("(F@0 * m || F@1 * m || B@0 * m || B@1 * m) REDUCE@1 REDUCE@0", 14, ["REDUCE2", "REDUCE0"]),
        ("(F@0 * m || F@1 * m || B@0 * m || B@1 * m) REDUCE@0 || REDUCE@1", 13, ["B0", "REDUCE0"]),
    ],
)
def test_it_comes_as_soon_as_may_be_where_that_is_better(word: str, value: int, last: list[str]) -> None:
    """Rank 0 waits for stage 1 before its last backward: time for the sum of stage 2, where the text allows it."""
    result = found(schedule(LOOPED, word, "cost { REDUCE = 1 }"), 2, 1)
    assert (result.value, result.bound) == (value, value)
    assert names(result.program, 0)[-2:] == last


@pytest.mark.parametrize(
    "word",
    [
        "(REDUCE@0 || F@0 * m) F@1 * m || B@1 * m || B@0 * m",
        "(F@1 * m || B@1 * m REDUCE@1) B@0 * m REDUCE@0 || F@0 * m",
        "REDUCE@0 F@0 * m || B@0 * m || F@1 * m || B@1 * m",
    ],
)
def test_nothing_else_comes_after_one(word: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        search(schedule(LOOPED, word), {"p": 2, "m": 1}, budget=1)
    [said] = caught.value.diagnostics
    assert (said.code, "nothing else can come after" in said.message) == ("PD601", True)
    assert "to the end of its word" in str(said.help)


def test_it_may_wait_for_the_ends_of_several_words() -> None:
    word = " || ".join(f"{kind}@{k} * m" for k in range(3) for kind in "FIW")
    result = found(schedule("stages 3 * p\nplace s -> s % p\n", f"({word}) REDUCE@2 REDUCE@1 REDUCE@0"), 2, 1)
    assert names(result.program, 0)[-3:] == ["REDUCE4", "REDUCE2", "REDUCE0"]


def test_orders_of_the_text_that_hang_are_said() -> None:
    """Rank 0 comes to stage 0 first, rank 1 to stage 1."""
    with pytest.raises(DiagnosticError) as caught:
        search(schedule(COPIES, f"({BOTH_WAYS}) REDUCE@down REDUCE@up"), {"p": 2, "m": 1}, budget=1)
    assert caught.value.diagnostics[0].code == "PD301"
    small = schedule(COPIES, f"({BOTH_WAYS}) REDUCE@down REDUCE@up", "memory { cap(r) = 0 }")
    with pytest.raises(DiagnosticError) as caught:  # and no cap that would do
        search(small, {"p": 2, "m": 1}, budget=1)
    assert [each.code for each in caught.value.diagnostics] == ["PD301"]
    turns = "if r == 0 { REDUCE@down REDUCE@up } else { REDUCE@up REDUCE@down }"
    assert found(schedule(COPIES, f"({BOTH_WAYS}) {turns}"), 2, 1).value == 6


@pytest.mark.parametrize("fixed", ["REDUCE@down REDUCE@up", "REDUCE@up REDUCE@down"])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_open_on_a_rank_follows_what_others_have(fixed: str, rank: int) -> None:
    """So that no rank has to put one sooner, in the midst of its computations, for all to come to an end."""
    closed = f"rank r where r == {rank} {{ ({BOTH_WAYS}) {fixed} }}\n"
    text = f"schedule x(p, m)\n{COPIES}rank r where r != {rank} {{ {BOTH_WAYS} || REDUCE@down || REDUCE@up }}\n{closed}"
    result = found(parse_text(text), 2, 1)
    assert (result.value, result.optimal) == (6, True)


def test_what_it_takes_makes_a_difference_to_a_sweep() -> None:
    asked = schedule("stages p\nplace s -> s\n", "(F * m || B * m) REDUCE", "cost { REDUCE = k }")
    points = sweep(asked, {"p": 2, "m": 2}, "k", range(1, 4), budget=1)
    values = [point.result.value for point in points if point.result is not None]
    assert values == [values[0], values[0] + 1, values[0] + 2]


def test_an_answer_with_it_is_carried_to_a_larger_cap() -> None:
    memory = "memory { activation(s) = 2 output(s) = 1 cap(r) = 5 + k }"
    asked = schedule("stages p\nplace s -> s\n", "(F * m || B * m) REDUCE", memory)
    effort = effort_of(1, None, 0, 1, None, None)
    results = []
    for k in (1, 3):
        [task] = tasks(asked, {"p": 2, "m": 3, "k": k})
        [outcome] = effort.run([job_of(task, effort.budget, 0)])
        results.append((task, outcome, answer_of(asked, task, outcome, effort, None)))
    before, (task, outcome, _) = results[0][2], results[1]
    moved = carried(asked, task, outcome, effort, before, None)
    assert moved is not None
    assert np.array_equal(moved.program.kind, before.program.kind)
    assert (moved.value, moved.caps) == (before.value, (8, 8))


LATE = "cost s { F = 1  B = 1 + s  REDUCE = s }\n"
MEETING = schedule(COPIES, f"{BOTH_WAYS} || REDUCE@down || REDUCE@up", f"{LATE}memory {{ cap(r) = 1 }}")


def test_moves_make_the_whole_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither all REDUCEs last nor each as soon as may be is best."""
    best = smallest(MEETING, {"p": 3, "m": 1})
    assert best is not None
    with_moves = found(MEETING, 3, 1)
    monkeypatch.setattr(search_with_reduce, "improve", lambda *_: 0)
    without = found(MEETING, 3, 1)
    assert (with_moves.value, with_moves.optimal) == (best.makespan, True)
    assert without.value > with_moves.value


@pytest.mark.parametrize("moved", [0, 200])
def test_ctrl_c_amid_moves_keeps_the_best_so_far(moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer all the same, which says that it was interrupted."""

    def pressed(sums: Sums, rows: Rows, goal: int, _moves: int, *rest: Any) -> int:
        improve(sums, rows, goal, moved, *rest)
        raise KeyboardInterrupt

    whole = found(MEETING, 3, 1)
    monkeypatch.setattr(search_with_reduce, "improve", pressed)
    result = found(MEETING, 3, 1)
    assert (whole.interrupted, result.interrupted) == (False, True)
    assert result.value >= whole.value


def test_what_does_not_fit_is_no_answer() -> None:
    """Better orders are those alone that have room for all buffers, which the caller says."""
    [task] = tasks(MEETING, {"p": 3, "m": 1})
    effort = effort_of(2, None, 0, 1, None, None)
    job = job_of(task, effort.budget, 0)
    [outcome] = effort.run([job])
    assert outcome.solution is not None
    program = program_of(task, outcome.solution.orders, task.caps)
    seen: list[list[list[int]]] = []

    def fits(rows: list[list[int]]) -> bool:
        seen.append(rows)
        return len(seen) > 3

    better = search_with_reduce.with_reduce(task, program, outcome.solution.bound, job, effort, fits)
    assert better is not None
    assert better.rows in seen[3:]
    assert search_with_reduce.with_reduce(task, program, outcome.solution.bound, job, effort, lambda _: False) is None


@pytest.mark.parametrize(
    ("head", "word", "why"),
    [
        ("stages p\nplace s -> s\n", "(F * m || B * m) REDUCE", "`REDUCE`"),
        (COPIES, BOTH_WAYS, "replicas"),
    ],
)
def test_for_every_m_it_is_said_why_not(head: str, word: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sched"
    path.write_text(f"schedule x(p, m)\n{head}rank r {{ {word} }}\n")
    asked = ["search", str(path), "-D", "p=2", "-D", "m=2", "--budget", "1", "--for-all", "m", "--no-cache", "-o", "-"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    assert (
        f"not proved for other m, as nothing is with {why}: what is written holds for this one alone" in result.stderr
    )
    assert "require p == 2 and m == 2" in result.stdout
