"""Search through the whole line: text, problem, answer, and what is said of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from brute import optimum

import pipedsl
from pipedsl import search_runs
from pipedsl.api import load, parse_text
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.expand import expand
from pipedsl.render.search import search_document, search_lines
from pipedsl.render.style import paint
from pipedsl.search_answer import program_of
from pipedsl.search_cache import user_folder
from pipedsl.search_problem import tasks
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import sweep
from pipedsl.syntax import Schedule
from tests.support.searched import OPEN, SOME_PLACES, SOME_PLACES_TEXT, WORK, found, problem
from verify import Verdict
from verify.search.solve import Solution


@pytest.mark.parametrize(("cap", "makespan"), [(2, 41), (3, 31), (4, 27)])
def test_known_optima(cap: int, makespan: int) -> None:
    result = found(load("zero_bubble"), p=4, m=8, cap=cap)
    assert (result.value, result.optimal, result.gap) == (makespan, True, 0)
    assert result.report.metrics is not None
    assert max(result.report.metrics.peak_activations) <= cap


def test_cap_stands_in_place_of_the_files() -> None:
    assert found(load("zero_bubble"), cap=3, p=4, m=8).value == 31


def test_the_same_again_is_the_same_answer() -> None:
    one, other = (search(load("zero_bubble"), {"p": 4, "m": 8, "cap": 3}, budget=WORK) for _ in range(2))
    assert (one.program.kind == other.program.kind).all()
    assert (one.value, one.bound, one.work) == (other.value, other.bound, other.work)


def test_a_sketch_keeps_its_order() -> None:
    word = "(F * min(p - 1 - r, m) (F I) * (m - min(p - 1 - r, m)) I * min(p - 1 - r, m)) || W * m"
    result = found(problem(word), p=3, m=5)
    kinds = [kind for kind in result.program.kind[: result.program.offsets[1]].tolist() if kind != 3]
    assert kinds == [0, 0, 0, 2, 0, 2, 0, 2, 2, 2]


def test_an_order_may_be_open_on_some_ranks_alone() -> None:
    result = found(problem("if r == 0 { F * m || B * m } else { (F B) * m }"), p=2, m=4)
    # Rank 0 may run ahead, and 1F1B is no better: 4 microbatches of 3 units, one forward before and one backward after.
    assert result.value == 15


def test_a_placement_that_the_words_cannot_run_with_is_left_out() -> None:
    asked = {"p": 2, "m": 2, "k": 1}
    result = search(SOME_PLACES, asked, budget=WORK)
    known = search(parse_text(SOME_PLACES_TEXT.replace("place ?", "place s -> s // 2")), asked, budget=WORK)
    assert (result.placement, result.value, result.optimal) == ("linear", known.value, True)
    assert search_document(result)["left_out"] == ["looped", "v"]
    assert "linear; the words cannot run with looped, v" in paint(search_lines(result), colour=False)
    with pytest.raises(DiagnosticError) as caught:
        search(parse_text(SOME_PLACES_TEXT.replace("place ?", "place ? in v, looped")), asked, budget=WORK)
    assert [(each.code, each.notes[-1]) for each in caught.value.diagnostics] == [("PD209", "with the placement v")]


@pytest.mark.parametrize(("extra", "code"), [("memory { cap(r) = 1 / 0 }", "PD109"), ("cost { F = 0 - 1 }", "PD114")])
def test_what_is_wrong_with_all_placements_is_said(extra: str, code: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        search(parse_text(f"{SOME_PLACES_TEXT}{extra}\n"), {"p": 2, "m": 2, "k": 0}, budget=WORK)
    assert {each.code for each in caught.value.diagnostics} == {code}


def test_a_limit_that_a_later_placement_meets_is_said() -> None:
    """It is no reason to leave that placement out."""
    asked, limits = {"p": 2, "m": 2, "k": 0}, Limits(steps=200)
    assert tasks(parse_text(SOME_PLACES_TEXT.replace("place ?", "place ? in v")), asked, limits=limits)
    with pytest.raises(DiagnosticError) as caught:
        tasks(SOME_PLACES, asked, limits=limits)
    assert [each.code for each in caught.value.diagnostics] == ["PD104"]


def test_minimize_span() -> None:
    schedule = problem(OPEN, "memory { cap(r) = cap }\nminimize span")
    result = found(schedule, p=3, m=6, cap=5)
    assert (result.objective, result.value, result.optimal) == ("span", 18, True)


@pytest.mark.parametrize(
    ("items", "caps"),
    [
        ("subject to peak(r) <= 3", [3, 3]),
        ("subject to 3 >= peak(r) and memory(1) <= 2", [3, 2]),
        ("subject to peak(r) <= r + 2", [2, 3]),
        ("memory { cap(r) = 3 }\nsubject to peak(0) <= p", [2, 3]),
        ("memory { activation(s) = 2 weights(s) = 5 }\nsubject to peak(r) <= 3", [16, 16]),
        ("memory { activation(s) = 2 weights(s) = 5 cap(r) = 20 }", [20, 20]),
    ],
)
def test_caps_and_conditions(items: str, caps: list[int]) -> None:
    (task,) = tasks(problem(OPEN, items), {"p": 2, "m": 3})
    assert list(task.caps) == caps


def test_what_is_there_all_the_time_leaves_less_for_activations() -> None:
    items = "memory { activation(s) = 2 input(s) = 1 held_by_w(s) = 1 weights(s) = 5 optimizer(s) = 1 cap(r) = 20 }"
    (task,) = tasks(problem(OPEN, items), {"p": 2, "m": 3})
    assert task.problem.cap == (9, 9)  # 20 less weights, gradients and optimizer
    assert (task.problem.activation, task.problem.held_by_w) == ((3, 3), (1, 1))
    found(problem(OPEN, items), p=2, m=4)


def test_buffers_of_messages_have_room_too() -> None:
    items = "memory { output(s) = 1 cap(r) = 6 }"
    result = found(problem(OPEN, items), p=3, m=5)
    assert result.report.metrics is not None
    assert max(result.report.metrics.memory) <= 6
    free = search(problem(OPEN, "memory { cap(r) = 6 }"), {"p": 3, "m": 5}, budget=WORK)
    assert result.bound == free.bound


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("subject to bubble <= 1", "cannot hold to this"),
        ("subject to peak(r) < 3", "cannot hold to this"),
        ("subject to peak(r) <= memory(r)", "cannot hold to this"),
        ("subject to peak(5) <= 3", "not one of the ranks"),
        ("memory { input(s) = 1 }\nsubject to peak(r) <= 3", "inputs are kept here"),
        ("memory { activation(s) = 0 }\nsubject to peak(r) <= 3", "activations of this rank take none"),
    ],
)
def test_conditions_that_are_refused(items: str, message: str) -> None:
    with pytest.raises(DiagnosticError, match=message) as caught:
        tasks(problem(OPEN, items), {"p": 2, "m": 3})
    assert [each.code for each in caught.value.diagnostics] == ["PD601"]


def test_peaks_of_stages_that_differ_are_refused() -> None:
    word = "F@0 * m || F@1 * m || B@0 * m || B@1 * m"
    items = "memory { activation(s) = 1 + s }\nsubject to peak(r) <= 3"
    with pytest.raises(DiagnosticError, match="stages differ"):
        tasks(problem(word, items, "2 * p", "s -> s % p"), {"p": 2, "m": 3})


def test_nothing_open_is_nothing_to_search_for() -> None:
    with pytest.raises(DiagnosticError, match="nothing is left open"):
        search(load("1f1b"), {"p": 2, "m": 2})


def test_claims_are_judged() -> None:
    result = search(problem(OPEN, "expect { peak(r) <= 100  makespan <= 1 }"), {"p": 2, "m": 2}, budget=WORK)
    assert [each.code for each in result.report.diagnostics] == ["PD501"]


def test_placements_are_compared() -> None:
    word = "F@0 * m || F@1 * m || B@0 * m || B@1 * m"
    schedule = problem(word, stages="2 * p", place="? in linear, v")
    result = found(schedule, p=2, m=3)
    each = {
        name: search(problem(word, stages="2 * p", place=f"? in {name}"), {"p": 2, "m": 3}, budget=WORK)
        for name in ("linear", "v")
    }
    assert result.placement in each
    assert result.value == min(one.value for one in each.values())
    assert result.bound == min(one.bound for one in each.values())


@pytest.mark.parametrize(
    ("schedule", "least"),
    [
        (problem(OPEN, "memory { cap(r) = 1 / 2 }"), "cap of 1/2; the smallest that one keeps to is 1"),
        (problem(OPEN, "memory { cap(r) = 3 weights(s) = 5 }"), "cap of 3; the smallest that one keeps to is 11"),
        (problem(f"{OPEN}", "memory { activation(s) = 3 cap(r) = r + 1 }"), "2 more on every rank"),
        (problem("F * 3 B * 3 || B * 0", "memory { cap(r) = 1 }"), "the smallest that one keeps to is 3"),
    ],
)
def test_caps_that_nothing_keeps_to(schedule: Schedule, least: str) -> None:
    with pytest.raises(DiagnosticError, match=least) as caught:
        search(schedule, {"p": 2, "m": 3}, budget=WORK)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "PD602"
    assert "at its peak" in diagnostic.notes[0]
    assert "F[0]" in diagnostic.notes[0]
    assert ("holds 10 all the time, and" in diagnostic.notes[0]) == (least[-2:] == "11")  # weights and their gradients


# ------------------------------------------------------- caching, stopping


def test_answers_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    asked = {"p": 3, "m": 5, "cap": 2}
    first = search(load("zero_bubble"), asked, budget=WORK, cache=folder)
    assert not first.cached
    assert len(list(folder.iterdir())) == 1

    def never(*_: object, **__: object) -> Solution:
        raise AssertionError("searched again")

    monkeypatch.setattr(search_runs, "solve", never)
    again = search(load("zero_bubble"), asked, budget=WORK, cache=folder)
    assert again.cached
    assert (again.value, again.bound, again.proof) == (first.value, first.bound, first.proof)
    assert (again.program.kind == first.program.kind).all()
    for other in ({**asked, "cap": 3}, {**asked, "m": 6}):
        with pytest.raises(AssertionError, match="searched again"):
            search(load("zero_bubble"), other, budget=WORK, cache=folder)
    with pytest.raises(AssertionError, match="searched again"):
        search(load("zero_bubble"), asked, budget=WORK, seed=1, cache=folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"bound": "', '"bound": "9'),
        lambda text: text.replace("0, 0", "0, 7", 1),
        lambda text: json.dumps({**json.loads(text), "sha256": None}),
    ],
)
def test_a_spoilt_cache_is_passed_over(spoil: object, tmp_path: Path) -> None:
    asked = {"p": 2, "m": 4, "cap": 2}
    first = search(load("zero_bubble"), asked, budget=WORK, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(spoil(path.read_text()))  # type: ignore[operator]
    again = search(load("zero_bubble"), asked, budget=WORK, cache=tmp_path)
    assert not again.cached
    assert (again.value, again.bound) == (first.value, first.bound)


def test_a_folder_that_cannot_be_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert search(load("zero_bubble"), {"p": 2, "m": 2}, budget=WORK, cache=tmp_path / "file").value == 7


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_folder() == Path("/somewhere/pipedsl")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_folder() == Path("~/.cache/pipedsl").expanduser()


@pytest.mark.parametrize("budget", [0.01, 1e-9])
def test_something_is_tried_however_small_the_budget(budget: float) -> None:
    result = search(load("zero_bubble"), {"p": 4, "m": 8}, budget=budget)
    assert (result.value, result.optimal) == (27, True)
    points = sweep(load("zero_bubble"), {"p": 3, "m": 4}, "cap", range(1, 4), budget=budget)
    assert all(point.result is not None for point in points)
    chunks = problem("F@0 * m || F@1 * m || B@0 * m || B@1 * m", stages="2 * p", place="?")
    assert search(chunks, {"p": 2, "m": 2}, budget=budget).placement is not None


def test_nothing_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> Solution:
        raise NothingFound("no time")

    monkeypatch.setattr(search_runs, "solve", nothing)
    with pytest.raises(NothingFound):
        search(load("zero_bubble"), {"p": 2, "m": 2})


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    pressed: list[search_runs.News] = []

    def interrupt(news: search_runs.News) -> None:
        if news.value is not None and not pressed:
            pressed.append(news)
            raise KeyboardInterrupt

    result = search(load("zero_bubble"), {"p": 8, "m": 16, "cap": 5}, budget=WORK, progress=interrupt, cache=tmp_path)
    assert result.interrupted
    assert result.verdict is Verdict.VERIFIED
    assert not list(tmp_path.iterdir()), "what was cut short is not kept"


def test_ctrl_c_before_anything_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> Solution:
        raise KeyboardInterrupt

    monkeypatch.setattr(search_runs, "solve", stopped)
    with pytest.raises(NothingFound):
        search(load("zero_bubble"), {"p": 2, "m": 2})


def test_processes_find_what_one_does() -> None:
    asked = {"p": 3, "m": 6, "cap": 2}
    alone = search(load("zero_bubble"), asked, budget=WORK)
    together = search(load("zero_bubble"), asked, budget=WORK, jobs=2)
    assert together.value == alone.value
    assert together.bound == alone.bound


def test_progress_is_told() -> None:
    told: list[search_runs.News] = []
    search(load("zero_bubble"), {"p": 4, "m": 8, "cap": 2}, budget=WORK, progress=told.append)
    assert told[-1].value == 41
    assert all(one.bound <= 41 for one in told)


def test_a_profile_stands_in_place_of_costs_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        json.dumps(
            {
                "format": "pipedsl-profile",
                "version": 1,
                "costs": {"F": 2, "I": 3, "W": 1},
                "memory": {"activation": 10, "cap": 25},
            }
        )
    )
    profile = pipedsl.load_profile(str(tmp_path / "p.json"))
    schedule = problem(OPEN, "memory { cap(r) = 1 }\nexpect { makespan <= 19 }")
    result = search(schedule, {"p": 2, "m": 4}, budget=WORK, profile=profile)
    assert result.program.costs.backward_input == (3, 3)
    assert result.report.metrics is not None
    assert max(result.report.metrics.memory) <= 25
    assert result.value == result.report.metrics.makespan
    assert result.verdict is Verdict.VERIFIED, "claims in plain numbers are about the file's own durations"


def test_without_z3_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object, **__: object) -> Solution:
        raise ModuleNotFoundError("No module named 'z3'", name="z3")

    monkeypatch.setattr(search_runs, "solve", without)
    with pytest.raises(pipedsl.UsageError, match="needs z3"):
        search(load("zero_bubble"), {"p": 2, "m": 2})


# One strand, so that what is found does not depend on the search.
ZB_H1 = "F * (p - 1 - r) (F I) * r (F I W) * (m - p + 1) (I W) * (p - 1 - r) W * r || W * 0"


@pytest.mark.parametrize(
    ("word", "p", "m", "least"),
    [(ZB_H1, 3, 8, 2), (ZB_H1, 4, 9, 3), ("(F F I W I W) * (m // 2) || W * 0", 3, 10, 2)],
)
def test_an_answer_for_every_m(word: str, p: int, m: int, least: int) -> None:
    result = search(problem(word), {"p": p, "m": m}, budget=WORK)
    assert result.every_m is not None
    assert result.every_m.loss == 0
    schedule = parse_text(result.every_m.text)
    assert (expand(schedule, {}).kind == result.program.kind).all()
    verdicts = {k: pipedsl.verify(schedule, {"m": k}) for k in range(1, 40)}
    admitted = {k for k, each in verdicts.items() if [d.code for d in each.diagnostics] != ["PD112"]}
    assert m in admitted
    assert min(admitted) == least
    assert max(admitted) > m + 10
    assert all(verdicts[k].verdict is Verdict.VERIFIED for k in admitted)


@pytest.mark.parametrize(("p", "m", "cap"), [(3, 6, 3), (4, 8, 2), (4, 8, 6)])
def test_what_repeats_is_found_where_the_answer_does_not(p: int, m: int, cap: int) -> None:
    result = search(load("zero_bubble"), {"p": p, "m": m, "cap": cap}, budget=WORK)
    # All F, then all I, then all W: that has no middle.
    gpipe = tuple(tuple(op for strand in strands for op in strand) for strands in result.problem.strands)
    program = program_of(result.task, gpipe, result.caps)
    every = replace(result, program=program).every_m
    assert every is not None
    assert every.shortest <= m
    assert every.loss == (every.value - result.value) / result.value >= 0
    schedule = parse_text(every.text)
    for k in range(every.shortest, every.shortest + 8 * every.period, every.period):
        verified = pipedsl.verify(schedule, {"m": k})
        assert verified.verdict is Verdict.VERIFIED
        assert verified.metrics is not None
        assert max(verified.metrics.peak_activations) <= cap
        assert k != m or verified.metrics.makespan == every.value


@pytest.mark.parametrize(
    ("p", "m", "cost", "cap"),
    [
        (2, 8, "F = 2 I = 3 W = 1 send = 0.5", "2"),
        (2, 5, "F = 1 I = 4 W = 2 send = 1", "1"),
        (3, 10, "F = 4 I = 4 W = 5", "5 / 2"),
    ],
)
def test_the_text_for_every_m_is_the_best_for_each(p: int, m: int, cost: str, cap: str) -> None:
    """Held to brute force where that is possible, to what is proved for the one m elsewhere. Two ranks begin alike for
    few microbatches and many."""
    schedule = problem(OPEN, f"cost {{ {cost} }}\nmemory {{ cap(r) = {cap} }}")
    result = search(schedule, {"p": p, "m": m}, budget=WORK)
    every = result.every_m
    assert every is not None
    assert (every.value, every.loss) == (result.value, 0)
    text, by_force = parse_text(every.text), 0
    for k in range(every.shortest if p == 2 else m, m + 2 * every.period + 1, every.period):
        verified = pipedsl.verify(text, {"m": k})
        assert verified.verdict is Verdict.VERIFIED
        assert verified.metrics is not None
        if p == 2 and k <= 3:
            best, by_force = optimum(tasks(schedule, {"p": p, "m": k})[0].problem), by_force + 1
        else:
            alone = search(schedule, {"p": p, "m": k}, budget=WORK)
            best = alone.value if alone.optimal else None
        assert verified.metrics.makespan == best, k
    assert by_force >= (p == 2)


def test_a_text_without_a_middle_is_for_no_other_m() -> None:
    word = "if r == 0 { F[1] F[0] F[2] B B B } else { F[1] F[0] F[2] || B * m }"
    assert search(problem(word), {"p": 2, "m": 3}, budget=WORK).every_m is None


def test_buffers_that_have_no_room_are_told_with_a_cap_that_does() -> None:
    memory = "memory { activation(s) = 3 MiB held_by_w(s) = 1 MiB output(s) = 1 MiB weights(s) = 2 MiB cap(r) = 9 MiB }"
    schedule = problem(OPEN, memory)
    with pytest.raises(DiagnosticError, match=r"the cap of 6 MiB; .*, received messages and gradients apart, is 8 MiB"):
        search(schedule, {"p": 3, "m": 4}, cap=6 << 20, budget=WORK)
    with pytest.raises(NothingFound, match=r"one was found for a cap of \d+ MiB") as error:
        search(schedule, {"p": 3, "m": 4}, cap=8 << 20, budget=WORK)
    enough = int(re.findall(r"cap of (\d+) MiB", str(error.value))[0])
    found = search(schedule, {"p": 3, "m": 4}, cap=enough << 20, budget=WORK)
    assert found.verdict is Verdict.VERIFIED


def test_peaks_say_nothing_of_messages() -> None:
    schedule = problem(OPEN, "memory { output(s) = 1 }\nsubject to peak(r) <= 2")
    with pytest.raises(DiagnosticError, match=r"PD601: .*in which messages count"):
        search(schedule, {"p": 2, "m": 2}, budget=WORK)


@pytest.mark.parametrize(
    "cost",
    [
        "F = 1.000000001 I = 1 / 998244353 W = 1 send = 1 / 7",
        "F = 1000000000000000000 I = 1 W = 1 send = 1 / 7",
        "F = 21.13436424411241 I = 20.98651123046875 W = 19.61350440979004 send = 0.29990673065185547",
    ],
)
def test_costs_as_exact_as_they_are_given(cost: str) -> None:
    """Their common unit is far below 2^-60 of what the whole takes."""
    result = search(problem(OPEN, f"cost {{ {cost} }}"), {"p": 2, "m": 3}, budget=WORK)
    assert result.verdict is Verdict.VERIFIED
    assert result.value >= result.bound > 0


def test_a_rank_without_stages() -> None:
    text = "schedule x(p, m)\nstages 3\nplace s -> s if s == 0 else s + 1\n"
    text += "rank r where r != 1 { F * m || I * m || W * m }\nrank r where r == 1 { }\n"
    text += "cost { F = 1 I = 2 W = 1 send = 1 }\nmemory { cap(r) = 3 }\n"
    result = search(parse_text(text), {"p": 4, "m": 6}, budget=WORK)
    assert result.verdict is Verdict.VERIFIED
