"""`verify --for-all`, `--certificate`, `--fix` and CSV files, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipedsl.cli.main import cli

ROOT = Path(__file__).parents[2]
BROKEN = str(ROOT / "examples" / "broken.sched")
HANGS = {
    "ranks": [[["isend", 1, "a"], ["irecv", 1, "b"], ["wait", 1]], [["isend", 0, "b"], ["irecv", 0, "a"], ["wait", 1]]]
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    """The small checker, as a process without pipedsl."""
    command = [sys.executable, "-I", str(ROOT / "verify" / "checker.py"), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_for_all_m() -> None:
    done = run("verify", "zb_h1", "-D", "p=4", "--for-all", "m")
    assert done.exit_code == 0
    assert "zb_h1 (p=4): verified for every m" in done.output
    assert "every m >= " in done.output


def test_for_all_p_and_m_as_json() -> None:
    done = run("verify", "gpipe", "--for-all", "p=2..4,m", "--format", "json")
    document = json.loads(done.output)
    assert (done.exit_code, document["verdict"]) == (0, "verified")
    assert [proof["params"]["p"] for proof in document["proofs"]] == [2, 3, 4]
    for proof in document["proofs"]:
        assert proof["period"] == 1
        assert set(range(1, proof["from_m"])) <= set(proof["checked"])


def test_for_all_m_finds_the_smallest_that_fails(tmp_path: Path) -> None:
    trap = tmp_path / "trap.sched"
    trap.write_text(
        "schedule trap(p, m)\nstages p\nplace s -> s\n"
        "rank r { F * m  B * (if_trap(m)) }\nfn if_trap(m) = m - 1 if m == 37 else m\n"
    )
    done = run("verify", str(trap), "-D", "p=2", "--for-all", "m")
    assert done.exit_code == 1
    assert "PD206" in done.output
    assert "it fails at m = 37" in done.output


def test_for_all_m_of_what_it_cannot_analyse_is_unknown() -> None:
    assert run("verify", "--for-all", "m", "-D", "p=2", BROKEN).exit_code in (1, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--for-all", "n"),
        ("--for-all", "p=3..2,m"),
        ("--for-all", "m", "-D", "p=2", "-D", "m=4"),
        ("--for-all", "p=2..3,m", "-D", "p=2"),
        ("--for-all", "m", "-D", "p=2", "--fix"),
        ("--for-all", "m"),
        ("-o", "x", "-D", "p=2", "-D", "m=4"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run("verify", "1f1b", *arguments).exit_code == 2


def test_certificate_is_accepted_and_an_altered_one_refused(tmp_path: Path) -> None:
    paper, program = tmp_path / "c.json", tmp_path / "p.json"
    assert run("verify", "zb_h1", "-D", "p=4", "-D", "m=8", "--certificate", str(paper)).exit_code == 0
    program.write_text(run("expand", "zb_h1", "-D", "p=4", "-D", "m=8", "--format", "json").output)
    accepted = check(paper, program)
    assert (accepted.returncode, accepted.stderr) == (0, "")
    other = tmp_path / "other.json"
    other.write_text(run("expand", "zb_h1", "-D", "p=4", "-D", "m=9", "--format", "json").output)
    assert check(paper, other).returncode == 1


def test_no_certificate_of_what_is_rejected(tmp_path: Path) -> None:
    paper = tmp_path / "c.json"
    done = run("verify", BROKEN, "--certificate", str(paper))
    assert done.exit_code == 1
    assert "no certificate" in done.output
    assert not paper.exists()


def test_fix_writes_a_schedule_that_verifies(tmp_path: Path) -> None:
    copy = tmp_path / "broken.sched"
    text = Path(BROKEN).read_text()
    copy.write_text(text)
    assert run("verify", str(copy), "--fix").exit_code == 1
    assert copy.read_text() == text
    assert run("verify", str(tmp_path / "broken.mended.sched")).exit_code == 0


def test_fix_writes_calls_that_verify(tmp_path: Path) -> None:
    calls, mended = tmp_path / "calls.json", tmp_path / "new.json"
    calls.write_text(json.dumps(HANGS))
    done = run("verify", str(calls), "--fix", "-o", str(mended))
    assert (done.exit_code, "mended: written to" in done.output) == (1, True)
    assert run("verify", str(mended)).exit_code == 0


def test_fix_says_why_not(tmp_path: Path) -> None:
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps({"ranks": [[["irecv", 1, "a"], ["wait", 0]], []]}))
    done = run("verify", str(calls), "--fix")
    assert "not mended: " in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["calls.json"]


def test_what_is_written_to_standard_output_stands_there_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["verify", "-", "--fix", "-o", "-"], input=Path(BROKEN).read_text())
    assert done.exit_code == 1
    assert "PD301" in done.stderr
    assert done.stderr.endswith("written to standard output\n")
    assert CliRunner().invoke(cli, ["verify", "-"], input=done.stdout).exit_code == 0
    Path("calls.json").write_text(json.dumps(HANGS))
    Path("mended.json").write_text(run("verify", "calls.json", "--fix", "-o", "-").stdout)
    assert run("verify", "mended.json").exit_code == 0
    done = run("verify", "1f1b", "-D", "p=2", "-D", "m=4", "--advice", "--certificate", "-")
    assert "advice[PD904]" in done.stderr
    Path("proof.json").write_text(done.stdout)
    Path("program.json").write_text(run("expand", "1f1b", "-D", "p=2", "-D", "m=4", "--format", "json").stdout)
    assert check(tmp_path / "proof.json", tmp_path / "program.json").returncode == 0
    for wanted in (["-o", "-", "--format", "json"], ["-o", "-", "--certificate", "-"]):
        done = run("verify", BROKEN, "--fix", *wanted)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "both want standard output" in done.stderr
    done = run("search", "zero_bubble", "-D", "p=2", "-D", "m=2", "--no-cache", "--certificate", "-")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "several files" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"calls.json", "mended.json", "program.json", "proof.json"}


@pytest.mark.parametrize(
    "arguments",
    ["fmt {}", "fmt --check {}", "verify {} --for-all m", "expand {} --problem", "search {}"],
)
@pytest.mark.parametrize(("suffix", "form"), [(".json", "--calls --format json"), (".csv", "--format csv")])
def test_what_wants_a_text_takes_no_other_form(arguments: str, suffix: str, form: str, tmp_path: Path) -> None:
    file = tmp_path / f"x{suffix}"
    text = run("expand", "1f1b", "-D", "p=2", "-D", "m=2", *form.split()).stdout
    file.write_text(text)
    done = run(*arguments.format(file).split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"x{suffix} holds " in done.stderr
    assert "where a schedule's text is wanted" in done.stderr
    assert file.read_text() == text
    done = CliRunner().invoke(cli, ["verify", "-"], input=text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"that is read from a file named *{suffix}" in done.stderr


@pytest.mark.parametrize(("name", "other"), [("calls.json", "x.sched"), ("broken.sched", "x.json"), ("b.csv", "x.csv")])
def test_fix_writes_nothing_under_a_name_that_would_be_read_as_something_else(
    name: str, other: str, tmp_path: Path
) -> None:
    texts = {"calls.json": json.dumps(HANGS), "broken.sched": Path(BROKEN).read_text(), "b.csv": "0F0,0B0\n"}
    (tmp_path / name).write_text(texts[name])
    done = run("verify", str(tmp_path / name), "--fix", "-o", str(tmp_path / other))
    assert (done.exit_code, "would be read as something else" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_is_rejected_for_every_m_where_a_parameter_has_no_value() -> None:
    done = run("verify", "1f1b", "--for-all", "m")
    assert (done.exit_code, "`p` has no value" in done.output, "every m" in done.output) == (2, True, False)


def test_csv_goes_through_every_command(tmp_path: Path) -> None:
    table = tmp_path / "1f1b.csv"
    table.write_text(run("expand", "1f1b", "-D", "p=4", "-D", "m=8", "--format", "csv").output)
    assert table.read_text().startswith("0F0,0F1,0F2,0F3,0B0,")
    done = run("verify", str(table), "--format", "json")
    report = json.loads(done.output)
    assert (done.exit_code, report["metrics"]["makespan"]) == (0, 33)
    assert run("show", str(table)).exit_code == 0
    assert run("expand", str(table), "--format", "csv").output == table.read_text()
    output = tmp_path / "pipeline.py"
    assert run("compile", str(table), "-o", str(output)).exit_code == 0
    compile(output.read_text(), str(output), "exec")
    assert run("verify", str(table), "-D", "m=8").exit_code == 2


def test_csv_with_communication_is_verified(tmp_path: Path) -> None:
    table = tmp_path / "calls.csv"
    table.write_text(run("expand", "1f1b", "-D", "p=2", "-D", "m=3", "--calls", "--format", "csv").output)
    assert "0SEND_F0" in table.read_text()
    assert run("verify", str(table)).exit_code == 0


def test_calls_cannot_be_compiled(tmp_path: Path) -> None:
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps({"ranks": [[["isend", 1, "a"], ["wait", 0]], [["recv", 0, "a"]]]}))
    assert run("verify", str(calls)).exit_code == 0
    assert run("compile", str(calls), "-o", str(tmp_path / "x.py")).exit_code == 2
    assert not (tmp_path / "x.py").exists()


def test_the_limit_on_batches_is_settable(tmp_path: Path) -> None:
    calls = tmp_path / "calls.json"
    sides = ([["isend", 1, "a"], ["isend", 1, "b"]], [["irecv", 0, "a"], ["irecv", 0, "b"]])
    calls.write_text(json.dumps({"ranks": [[["batch", side], ["wait", 0]] for side in sides]}))
    assert run("verify", str(calls)).exit_code == 0
    done = run("verify", str(calls), "--batch-limit", "1")
    assert (done.exit_code, "PD304" in done.output) == (1, True)


def test_fix_keeps_what_is_expected_and_still_holds(tmp_path: Path) -> None:
    text = """
schedule hangs(p, m, v = 3)
stages p
replica down { place s -> s }
replica up { place s -> p - 1 - s }
fn most(x) = x + least(v)
fn least(x) = x - 3
fn unused(x) = x
rank r {
    for i in 0 .. m {
        if r == 0 { F@down SEND_F@down RECV_F@up F@up } else { F@up SEND_F@up RECV_F@down F@down }
    }
    for i in 0 .. m {
        if r == 0 { B@up SEND_B@up RECV_B@down B@down } else { B@down SEND_B@down RECV_B@up B@up }
    }
}
expect {
    peak(r) <= most(2 * m)
    peak(r) == 2 * m when v == 3
    makespan == 1
}
"""
    (tmp_path / "hangs.sched").write_text(text)
    done = run("verify", str(tmp_path / "hangs.sched"), "-D", "p=2", "-D", "m=2", "--fix")
    assert "without what does not hold of it: makespan == 1" in done.output
    mended = (tmp_path / "hangs.mended.sched").read_text()
    for line in ("schedule hangs(p = 2, m = 2, v = 3)", "fn most(x) = x + least(v)", "fn least(x) = x - 3",
                 "    peak(r) <= most(2 * m)", "    peak(r) == 2 * m when v == 3",
                 "replica down { place s -> s }", "replica up { place s -> p - 1 - s }"):  # fmt: skip
        assert line in mended.splitlines(), mended
    assert "unused" not in mended
    assert run("verify", str(tmp_path / "hangs.mended.sched")).exit_code == 0
