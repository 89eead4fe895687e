"""`pipedsl search --certificate` and `expand --problem`: what is written is what the small checkers accept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import z3
from click.testing import CliRunner, Result

from pipedsl.cli.main import cli
from verify import bound_checker, checker
from verify.bound.reading import digest

ASKED = ("zero_bubble", "-D", "p=4", "-D", "m=8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == status, result.output
    return result


def written(name: str, *arguments: str) -> None:
    Path(name).write_text(run("expand", *arguments).stdout)


def accepted(*files: str) -> str:
    return bound_checker.check(*(bound_checker.read(file) for file in files))


def test_an_optimum_that_a_bound_proves() -> None:
    for earlier in ("c.smt2", "c.narrowed.smt2"):
        Path(earlier).write_text("of another search")
    run("search", *ASKED, "-D", "cap=4", "-o", "found.sched", "--certificate", "c.json")
    written("problem.json", *ASKED, "-D", "cap=4", "--problem")
    written("program.json", "found.sched", "--format", "json")
    assert checker.main(["c.json", "program.json"]) == 0
    assert bound_checker.main(["c.bound.json", "problem.json", "program.json"]) == 0
    said = accepted("c.bound.json", "problem.json", "program.json")
    assert said == "this order has a makespan of 27; no order has a makespan below 27, so it is the smallest"
    assert not Path("c.smt2").exists()
    assert not Path("c.narrowed.smt2").exists()


REDUCED = """schedule x(p, m)
stages p
replica down { place s -> s }
replica up { place s -> p - 1 - s }
rank r { (F@down * m || B@down * m || F@up * m || B@up * m) || REDUCE@down || REDUCE@up }
cost s { F = 1  B = 2  REDUCE = 1 + s }
minimize AIM
"""


@pytest.mark.parametrize("aim", ["makespan", "span"])
def test_a_program_is_judged_with_what_is_known_of_its_reductions(aim: str) -> None:
    """Last on its rank, of which it makes the end 3 later on rank 1."""
    Path("x.sched").write_text(REDUCED.replace("AIM", aim))
    asked = ("x.sched", "-D", "p=2", "-D", "m=2")
    run("search", *asked, "-o", "found.sched", "--certificate", "c.json")
    written("problem.json", *asked, "--problem")
    written("program.json", "found.sched", "--format", "json")
    assert checker.main(["c.json", "program.json"]) == 0
    said = accepted("c.bound.json", "problem.json", "program.json")
    assert said == f"this order has a {aim} of at least 15 with every REDUCE; no order has a {aim} below 15"
    program = json.loads(Path("program.json").read_text())
    for other in (["REDUCE"], ["REDUCE", 0], ["REDUCE", 0, 0], ["REDUCE", 0, None, 0, 0], "REDUCE", [None, 0, None]):
        program["ranks"][0][-1] = other
        Path("program.json").write_text(json.dumps(program))
        with pytest.raises(bound_checker.Refused, match="no operation of the problem"):
            accepted("c.bound.json", "problem.json", "program.json")


def test_an_optimum_that_a_solver_proves() -> None:
    run("search", *ASKED, "-D", "cap=2", "-o", "found.sched", "--certificate", "c.json")
    written("problem.json", *ASKED, "--problem", "--cap", "2", "-D", "cap=9")
    written("program.json", "found.sched", "--format", "json")
    said = accepted("c.bound.json", "problem.json", "program.json")
    text = Path("c.smt2").read_bytes()
    assert said.startswith(
        "this order has a makespan of 41; no order has a makespan below 41, so it is the smallest, if"
    )
    assert said.endswith(hashlib.sha256(text).hexdigest())
    for file in ("c.smt2", "c.narrowed.smt2"):
        solver = z3.Solver()
        solver.from_file(file)
        assert solver.check() == z3.unsat, file


def test_a_bound_below_the_value_is_shown_too() -> None:
    run("search", "zero_bubble", "-D", "p=8", "-D", "m=24", "-D", "cap=4", "--budget", "0.1", "--certificate", "c.json")
    written("problem.json", "zero_bubble", "-D", "p=8", "-D", "m=24", "-D", "cap=4", "--problem")
    assert accepted("c.bound.json", "problem.json").startswith("no order has a makespan below 1")


def test_one_placement_of_several() -> None:
    text = "schedule s(p, m)\nstages 2 * p\nplace ? in looped, v\nrank r { F@0 * m || F@1 * m || B@0 * m || B@1 * m }\n"
    Path("s.sched").write_text(text)
    run("search", "s.sched", "-D", "p=2", "-D", "m=2", "--certificate", "c.json", "-o", "found.sched")
    words = ("s.sched", "-D", "p=2", "-D", "m=2", "--problem")
    assert "--placement says which of looped, v" in run("expand", *words, status=2).output
    assert "leaves no placement 'w' open" in run("expand", *words, "--placement", "w", status=2).output
    problems = {}
    for name in ("looped", "v"):
        written(f"{name}.json", *words, "--placement", name)
        problems[name] = json.loads(Path(f"{name}.json").read_text())
    assert problems["looped"]["placement"] == [0, 1, 0, 1]
    assert problems["v"]["placement"] == [0, 1, 1, 0]
    about = json.loads(Path("c.bound.json").read_text())["problem"]
    assert about in {digest(problem) for problem in problems.values()}


def test_what_goes_not_together() -> None:
    assert "go with --problem" in run("expand", *ASKED, "--cap", "3", status=2).output
    assert "go with --problem" in run("expand", *ASKED, "--placement", "v", status=2).output
    assert "without --calls" in run("expand", *ASKED, "--problem", "--calls", status=2).output
    assert "nothing is left open" in run("expand", "1f1b", "-D", "p=2", "-D", "m=2", "--problem", status=1).output
    assert "leaves no placement" in run("expand", *ASKED, "--problem", "--placement", "v", status=2).output
    assert "not a size" in run("expand", *ASKED, "--problem", "--cap", "x", status=2).output


@pytest.mark.parametrize("engine", ["cpsat", "auto"])
def test_another_engine_finds_the_same_and_says_who_it_was(engine: str) -> None:
    said = run("search", *ASKED, "-D", "cap=2", "--engine", engine, "--certificate", "c.json").output
    assert "makespan 41" in said
    assert "CP-SAT refuted a smaller one" in said
    solver = z3.Solver()
    solver.from_file("c.smt2")
    assert solver.check() == z3.unsat


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"ortools", *(name for name in sys.modules if name.startswith("ortools."))}:
        monkeypatch.setitem(sys.modules, name, None)
    asked = ("search", *ASKED, "-D", "cap=2")
    assert "pip install 'pipedsl[cpsat]'" in run(*asked, "--engine", "cpsat", status=2).output
    assert "z3 refuted a smaller one" in run(*asked, "--engine", "auto").output


@pytest.mark.parametrize("command", [["verify", "zb_h1"], ["search", "zero_bubble", "--no-cache"]])
def test_evidence_is_written_though_nobody_reads_the_report(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    read, write = os.pipe()
    os.close(read)
    arguments = [*command, "-D", "p=2", "-D", "m=4", "--certificate", str(path)]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pipedsl", *arguments], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
        )
    finally:
        os.close(write)
    assert "Traceback" not in ended.stderr
    assert json.loads(path.read_text())["version"] == 1
