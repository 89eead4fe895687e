"""`pipedsl search`: its outputs, files and exit statuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipedsl import search_answer, search_runs, searching, smallest_cap, sweeping
from pipedsl.cli import search as cli_search
from pipedsl.cli.main import cli
from pipedsl.render.search import progress_text
from pipedsl.searching import NothingFound
from verify import checker

ASKED = ("zero_bubble", "-D", "p=3", "-D", "m=6")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["search", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.output
    return result


def test_the_answer_is_written_and_verifies(folder: Path) -> None:
    text = run(*ASKED, "-o", "out.sched").output
    assert text.startswith("zero_bubble (p=3, m=6, cap=3): found, the smallest, verified\n")
    assert "objective         makespan 20" in text
    assert "this is the smallest" in text
    verified = CliRunner().invoke(cli, ["verify", "out.sched"])
    assert verified.exit_code == 0
    assert "makespan          20" in verified.output
    sched = (folder / "out.sched").read_text()
    assert sched.startswith("# Found by `pipedsl search` from zero_bubble")
    assert "# makespan 20, the smallest there is" in sched
    assert CliRunner().invoke(cli, ["fmt", "--check", "out.sched"]).exit_code == 0


def test_standard_output_holds_the_answer_alone() -> None:
    result = run(*ASKED, "-o", "-")
    assert result.stdout.startswith("# Found by")
    assert "found, the smallest" in result.stderr


def test_json(folder: Path) -> None:
    document = json.loads(run(*ASKED, "--format", "json", "--no-cache").output)
    assert (document["value"], document["bound"], document["optimal"], document["cached"]) == (20, 20, True, False)
    assert document["report"]["verdict"] == "verified"
    (folder / "again.sched").write_text(document["sched"])
    assert CliRunner().invoke(cli, ["verify", "again.sched"]).exit_code == 0
    assert not (folder / "cache").exists()


def test_answers_are_kept_unless_not_wanted(folder: Path) -> None:
    assert "from the cache" not in run(*ASKED).output
    assert "from the cache" in run(*ASKED).output
    assert "from the cache" not in run(*ASKED, "--no-cache").output
    assert len(list((folder / "cache" / "pipedsl").iterdir())) == 1


def test_caps() -> None:
    assert "makespan 20" in run(*ASKED, "--cap", "7/2").output
    assert "PD602" in run(*ASKED, "--cap", "0.5", status=1).output
    document = json.loads(run(*ASKED, "--cap", "0", "--format", "json", status=1).output)
    assert (document["found"], document["diagnostics"][0]["code"]) == (False, "PD602")


def test_json_of_files_with_errors(folder: Path) -> None:
    for text, code in (("schedule a(p, m)\nrank r { F@ }\n", "PD1"), ("", "PD1")):
        (folder / "wrong.sched").write_text(text)
        found = CliRunner().invoke(cli, ["search", "wrong.sched", "-D", "p=2", "-D", "m=2", "--format", "json"])
        assert found.exit_code == 1
        document = json.loads(found.stdout)
        assert (document["found"], document["schedule"]) == (False, "wrong.sched")
        assert document["diagnostics"][0]["code"].startswith(code)
        assert document["diagnostics"][0]["line"]
    found = CliRunner().invoke(cli, ["search", "1f1b", "-D", "p=2", "-D", "m=2", "--format", "json"])
    document = json.loads(found.stdout)
    assert (found.exit_code, document["schedule"], document["diagnostics"][0]["code"]) == (1, "one_f_one_b", "PD601")


@pytest.mark.parametrize("name", ["x.svg", "x.PNG"])
def test_only_a_sweep_draws(name: str, folder: Path) -> None:
    assert "a search writes a .sched" in run(*ASKED, "-o", name, status=2).output
    assert not (folder / name).exists()


@pytest.mark.parametrize("cap", ["x", "-1", "1/0", "1//2", "", "nan", "1e9"])
def test_caps_that_are_none(cap: str) -> None:
    assert "is not a size" in run(*ASKED, "--cap", cap, status=2).output


@pytest.mark.parametrize(
    ("memory", "values", "told", "least", "cap"),
    [
        ("cap(r) = k", "k=0..2", "the smallest is 1", 1, 1),
        ("cap(r) = k / 2", "k=1..2", "the smallest cap is 1", None, 1),
        ("cap(r) = k * k weights(s) = 3", "k=0..1", "the smallest cap is 7", None, 7),
        ("activation(s) = 4 GiB cap(r) = k * 1 GiB", "k=3..4", "the smallest cap is 4 GiB", None, 2**32),
    ],
)
def test_the_smallest_value_of_a_sweep_is_said_where_it_is_the_cap(
    memory: str, values: str, told: str, least: int | None, cap: int, folder: Path
) -> None:
    text = f"schedule x(p, m, k = 1)\nstages p\nplace s -> s\nrank r {{ F * m || B * m }}\nmemory {{ {memory} }}\n"
    (folder / "x.sched").write_text(text)
    asked = ("x.sched", "-D", "p=2", "-D", "m=2", "--sweep", values)
    status = 1 if "weights" in memory else 0
    assert run(*asked, status=status).output.splitlines()[1].endswith(f"no order keeps to it, {told}")
    point = json.loads(run(*asked, "--format", "json", status=status).output)["points"][0]
    assert (point["smallest"], point["smallest_cap"]) == (least, cap)


@pytest.mark.parametrize("cap", ["1.14978GiB", "1234567889", "1KiB"])
def test_the_cap_that_is_said_to_do_does(cap: str, folder: Path) -> None:
    """1234567890 bytes are a little more than 1.14978 GiB, and are not said as less than they are."""
    text = "schedule x(p, m)\nstages p\nplace s -> s\nrank r { F * m || B * m }\n"
    (folder / "x.sched").write_text(f"{text}memory {{ activation(s) = 1234567890 + 0 MiB }}\n")
    refused = run("x.sched", "-D", "p=2", "-D", "m=2", "--cap", cap, status=1).output
    told = re.search(r"the smallest that one keeps to is ([\d.]+) GiB", refused)
    assert told is not None
    assert f"the cap of {told[1]} " not in refused
    run("x.sched", "-D", "p=2", "-D", "m=2", "--cap", f"{told[1]}GiB")


@pytest.mark.parametrize("values", ["cap", "cap=3", "cap=5..2", "cap=1..100000", "cap=1..4 step 0", "cap=a..b"])
def test_sweeps_that_are_none(values: str) -> None:
    assert "cap" in run(*ASKED, "--sweep", values, status=2).output


def test_a_sweep(folder: Path) -> None:
    lines = run(*ASKED, "--sweep", "cap=0..4", "-o", "curve.svg").output.splitlines()
    curve = [["0", "-"], ["1", "42"], ["2", "25"], ["3", "20"], ["4", "20"]]
    assert [line.split()[:2] for line in lines[1:6]] == curve
    assert "no order keeps to it, the smallest is 1" in lines[1]
    assert "the smallest that one keeps to is 1" in lines[6]
    assert "F[0] of stage" in lines[7]
    assert (folder / "curve.svg").read_text().count("<svg") == 1
    before = (folder / "curve.svg").read_bytes()
    run(*ASKED, "--sweep", "cap=0..4", "-o", "curve.svg")
    assert (folder / "curve.svg").read_bytes() == before
    document = json.loads(run(*ASKED, "--sweep", "cap=0..2", "--format", "json").output)
    assert [point["found"] for point in document["points"]] == [False, True, True]
    assert (document["points"][0]["infeasible"], document["points"][0]["smallest"]) == (True, 1)
    assert document["points"][0]["diagnostics"][0]["code"] == "PD602"
    assert document["points"][2]["peak_activations"] == [2, 2, 2]
    run(*ASKED, "--sweep", "cap=0..0", status=1)
    assert "must end in" in run(*ASKED, "--sweep", "cap=0..0", "-o", "x.sched", status=2).output


def test_a_certificate_is_accepted(folder: Path) -> None:
    run(*ASKED, "--certificate", "c.json", "-o", "out.sched")
    (folder / "p.json").write_text(CliRunner().invoke(cli, ["expand", "out.sched", "--format", "json"]).output)
    assert checker.main(["c.json", "p.json"]) == 0
    assert not (folder / "c.smt2").exists(), "the lower bound proves it"


def test_what_z3_refuted_is_written(folder: Path) -> None:
    z3 = pytest.importorskip("z3")
    run("zero_bubble", "-D", "p=4", "-D", "m=8", "-D", "cap=2", "--certificate", "c.json")
    solver = z3.Solver()
    solver.from_file("c.smt2")
    assert solver.check() == z3.unsat


def test_a_budget_may_be_as_large_as_a_number() -> None:
    assert "objective         makespan 25" in run(*ASKED, "-D", "cap=2", "--budget", "1e308").output


def test_what_goes_not_together() -> None:
    assert "--format json" in run(*ASKED, "-o", "-", "--format", "json", status=2).output
    assert "a sweep goes without" in run(*ASKED, "--sweep", "cap=1..2", "--cap", "3", status=2).output
    for option in ("--timeout", "--budget"):
        for value in ("nan", "inf", "-1", "0"):
            run(*ASKED, option, value, status=2)
    assert "nothing is left open" in run("1f1b", "-D", "p=2", "-D", "m=2", status=1).output
    assert "no value" in run("zero_bubble", "-D", "p=2", status=2).output
    assert "no such file" in run("none.sched", status=2).output
    assert "there is no folder none" in run(*ASKED, "-o", "none/x.sched", status=2).output
    Path("link").symlink_to("nowhere/x.sched")
    output = " ".join(run(*ASKED, "-o", "link", status=2).output.split())
    assert f"there is no folder {Path.cwd() / 'nowhere'} to write x.sched to, where link leads" in output
    assert "has no parameter `x`" in run(*ASKED, "--sweep", "x=1..2", status=2).output


@pytest.mark.parametrize("outputs", [
    ("-o", "none/x.sched"), ("-o", "."), ("-o", "file/x.sched"), ("--certificate", "none/c.json"),
    ("--certificate", "."), ("--certificate", "c.json"), ("--certificate", "d.json"),
    ("--sweep", "cap=1..2", "-o", "x.svg"),
    ("-o", "e.smt2", "--certificate", "e.json"), ("-o", "file", "--certificate", "./file"),
])  # fmt: skip
def test_outputs_are_tried_before_the_search(
    outputs: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object, **__: object) -> object:
        raise AssertionError("it searches for what it cannot write")

    for name in ("search", "sweep"):
        monkeypatch.setattr(cli_search, name, searched)
    (folder / "file").touch()
    for name in ("c.smt2", "d.bound.json", "x.svg"):
        (folder / name).mkdir()
    output = run(*ASKED, *outputs, status=2).output
    assert any(said in output for said in ("there is no folder", "Is a directory", "the same file"))


def test_an_answer_that_cannot_be_written_is_told_elsewhere(folder: Path) -> None:
    run(*ASKED, "-o", "x.sched")
    sched = (folder / "x.sched").read_text()
    full = run(*ASKED, "-o", "/dev/full", status=2)
    assert full.stdout == sched
    said = "error: /dev/full: No space left on device; the answer is "
    assert full.stderr.startswith(f"{said}on standard output\n")
    assert "found, the smallest" in full.stderr
    full = run(*ASKED, "-o", "/dev/full", "--format", "json", status=2)
    assert json.loads(full.stdout)["sched"] == sched
    assert full.stderr == f"{said}in the JSON\n"
    full = run(*ASKED, "--certificate", "/dev/full", status=2)
    assert "found, the smallest" in full.stdout
    assert "/dev/full: No space left on device" in full.stderr
    (folder / "full.svg").symlink_to("/dev/full")
    full = run(*ASKED, "--sweep", "cap=3..3", "-o", "full.svg", status=2)
    assert full.stderr == "error: full.svg: No space left on device; what it would have shown follows\n"
    assert full.stdout.splitlines()[1].split()[:2] == ["3", "20"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "objective         makespan 20"),
        (("-o", "-"), "# Found by `pipedsl search` from zero_bubble"),
        (("--format", "json"), '"value": 20'),
        (("--sweep", "cap=3..3"), "cap  value  bound"),
    ],
)
def test_a_full_standard_output_leaves_standard_error(more: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "pipedsl", "search", *ASKED, *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write the output: No space left on device; it follows here\n")
    assert told in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("more", [(), ("-o", "-"), ("--format", "json"), ("--sweep", "cap=3..3")])
def test_a_closed_standard_output_leaves_standard_error(more: tuple[str, ...]) -> None:
    told = run(*ASKED, *more).stdout.splitlines()[0]
    command = shlex.join([sys.executable, "-m", "pipedsl", "search", *ASKED, *more])
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    said, _, rest = done.stderr.partition("\n")
    assert said == "error: cannot write the output: standard output is closed; it follows here"
    assert told in rest.splitlines()


def test_the_answer_says_what_it_was_searched_with(folder: Path) -> None:
    asked = ("zero_bubble", "-D", "p=3", "-D", "m=6")
    given = "(p=3, m=6, cap=3, --cap 3/2)"
    assert run(*asked, "--cap", "1.5", "--seed", "4", "--budget", "30", "-o", "x.sched").output.startswith(
        f"zero_bubble {given}: "
    )
    text = (folder / "x.sched").read_text()
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert f"with {given[1:-1]}." in comment
    assert "with --budget 30 --seed 4." in comment
    again = re.findall(r"--\w+ [\w./]+\b", comment)
    run(*asked, *" ".join(again).split(), "-o", "y.sched", "--no-cache")
    program = re.compile(r"^schedule.*", re.MULTILINE | re.DOTALL)
    assert program.findall((folder / "y.sched").read_text()) == program.findall(text)
    (folder / "free.sched").write_text("schedule free(p, m)\nstages p\nplace s -> s\nrank r { F * m || B * m }\n")
    curve = run("free.sched", "-D", "p=2", "-D", "m=3", "--sweep", "cap=1..2", "--format", "json").output
    assert ["--cap 1" in p["sched"] for p in json.loads(curve)["points"]] == [True, False]
    (folder / "profile.json").write_text('{"format": "pipedsl-profile", "version": 1, "costs": {"F": 2}}')
    assert "--profile profile.json)" in run(*asked, "--profile", "profile.json").output


def test_progress_says_how_long_the_command_has_run() -> None:
    news = search_runs.News("habits", Fraction(469), Fraction(412), 0.4, "cap=3")
    assert progress_text(news, 0.4) == "cap=3: 469, bound 412, gap 13.83 %, 0 s"
    assert progress_text(replace(news, value=None, label=""), 3) == "nothing yet, bound 412, 3 s"
    assert progress_text(replace(news, said="no order keeps to the caps"), 71.6).endswith("caps, 72 s")


def test_ctrl_c_says_what_it_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    def run_where(module: object, name: str, *more: str, status: int) -> Result:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, pressed)
            return run(*ASKED, *more, status=status)

    before = "nothing found: interrupted before there was an answer\n"
    assert run_where(cli_search, "load", status=3).output == before
    assert run_where(searching, "tasks", status=3).output == before
    assert run_where(sweeping, "tasks", "--sweep", "cap=1..2", status=3).output == before
    lost = "interrupted while the answer was verified: makespan 20 was found, and is lost"
    kept = f"nothing found: {lost}; the same command finds it again at once\n"
    assert run_where(search_answer, "judged", "--no-cache", status=3).output == f"nothing found: {lost}\n"
    assert run_where(search_answer, "judged", "-o", "x.sched", status=3).output == kept
    assert not (folder / "x.sched").exists()
    assert "from the cache" in run(*ASKED).output
    assert lost in run_where(search_answer, "judged", "--sweep", "cap=3..3", status=3).output
    written = "interrupted while the answer was written: makespan 20 was found"
    assert written in run_where(cli_search, "write_atomically", "-o", "x.sched", status=130).stderr
    assert "PD602" in run_where(smallest_cap, "smallest", "--cap", "0", status=1).output
    every = run_where(cli_search, "every_m", "--for-all", "m", "-o", "x.sched", status=0)
    assert "not proved for other m" in every.stderr
    assert (folder / "x.sched").exists()


def test_ctrl_c_while_the_program_loads_shows_no_traceback() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

where, sys.argv = sys.argv[1], ["pipedsl", "search", "zero_bubble", "-D", "p=2", "-D", "m=2"]

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == where:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
from pipedsl.__main__ import main
main()
"""
    for module in ("pipedsl.cli.main", "click", "pipedsl.cli.search", "numpy"):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), module


def test_nothing_found_is_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> object:
        raise NothingFound("no time")

    monkeypatch.setattr(search_runs, "solve", nothing)
    assert "nothing found" in run(*ASKED, status=3).output
    run(*ASKED, "--sweep", "cap=1..2", status=3)


def test_a_timeout_ends_it_with_the_best_so_far() -> None:
    started = time.monotonic()
    text = run("zero_bubble", "-D", "p=16", "-D", "m=64", "-D", "cap=9", "--timeout", "2").output
    assert time.monotonic() - started < 30
    assert "found" in text


def test_ctrl_c_ends_it_with_the_best_so_far(folder: Path) -> None:
    command = [sys.executable, "-m", "pipedsl", "search", "zero_bubble", "-D", "p=16", "-D", "m=64", "-D", "cap=9"]
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*command, "--budget", "1000", "-o", "best.sched"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # Where the tests run in the background, their shell has them ignore the signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        time.sleep(6)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "interrupted" in output
    assert "Traceback" not in errors
    assert (folder / "best.sched").read_text().startswith("# Found by")


def test_ctrl_c_reaches_the_search_while_z3_reasons() -> None:
    """z3 would take the signal for itself, and only end its check."""
    pytest.importorskip("z3")
    code = """
import os, signal, threading, z3
from verify.search import make_problem, model_of, uniform_costs
from verify.search.exact import decide

signal.signal(signal.SIGINT, signal.default_int_handler)
check = z3.Solver.check

def checked(solver):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return check(solver)

z3.Solver.check = checked
costs = uniform_costs(8, 1, 1, 1)
model = model_of(make_problem(placement=range(8), microbatches=32, costs=costs, cap=5))
try:
    print(decide(model, 124, work=1000))
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "stopped\n", done.stderr


def test_an_answer_for_every_m_is_proved(folder: Path) -> None:
    text = run(*ASKED, "--for-all", "m", "-o", "every.sched").output
    document = json.loads(run(*ASKED, "--for-all", "m", "--format", "json").output)
    every = document["every_m"]
    assert f"from {every['from']} on" in text
    assert every["from"] <= 6
    assert every["value"] == document["value"] * (1 + every["loss"])
    proof = CliRunner().invoke(cli, ["verify", "every.sched", "--for-all", "m"])
    assert proof.exit_code == 0, proof.output
    sched = (folder / "every.sched").read_text()
    assert "# Proved for every m >= " in sched
    assert document["sched"].splitlines()[5:] == sched.splitlines()[5:]
    assert "every_m" not in run(*ASKED, "--sweep", "cap=3..3", "--format", "json").output


def test_where_nothing_repeats_it_is_said(folder: Path) -> None:
    (folder / "x.sched").write_text("schedule x(p, m)\nstages p\nplace s -> s\nrank r { F[1] F[0] || B[1] B[0] }\n")
    result = run("x.sched", "-D", "p=2", "-D", "m=2", "--for-all", "m", "-o", "y.sched")
    assert "not proved for other m" in result.stderr
    assert "require p == 2 and m == 2" in (folder / "y.sched").read_text()
