"""The commands, in this process."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipedsl.calls_json import read_calls
from pipedsl.cli import fmt, verify
from pipedsl.cli.main import COMMANDS, cli
from pipedsl.codes import CODES
from pipedsl.diagnostics import Limits
from pipedsl.library import shipped

TIMELINE = """\
rank 0 |0123......aa4bb5cc6dd7ee.ff.gg.hh|
rank 1 |.012....aa3bb4cc5dd6ee7ff.gg.hh..|
rank 2 |..01..aa2bb3cc4dd5ee6ff7gg.hh....|
rank 3 |...0aa1bb2cc3dd4ee5ff6gg7hh......|
"""
GPIPE = "schedule x(p, m)\n\nstages p\nplace s -> s\n\nrank r {\n    F * m\n    B * m\n}\n"
HANG = """\
schedule hang(p, m)

require p == 2
stages p
place s -> s

rank r where r == 0 {
    (F SEND_F) * m
    (RECV_B B) * m
}
rank r where r == 1 {
    (RECV_F F B SEND_B) * m
}
"""
PARAMS = ("-D", "p=4", "-D", "m=8")


def run(*arguments: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(arguments), input=stdin)
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpipe.sched").write_text(GPIPE)
    (tmp_path / "hang.sched").write_text(HANG)
    (tmp_path / "bad.sched").write_text(GPIPE.replace("}", ""))
    return tmp_path


# ------------------------------------------------------------------ verify


def test_verify() -> None:
    assert run("verify", "1f1b", *PARAMS, "--no-advice").output == (
        "one_f_one_b (p=4, m=8): verified\n"
        "  safe on           buffered, gloo, nccl-lazy, nccl-eager, nccl-lazy-warm, nccl-eager-warm\n"
        "  makespan          33\n"
        "  bubble            3/11 = 27.3 %\n"
        "  peak activations  4 3 2 1\n"
        "  claims            all 3 hold\n"
    )


def test_verify_json() -> None:
    document = json.loads(run("verify", "1f1b", *PARAMS, "--no-advice", "--format", "json").output)
    assert document["version"] == 1
    assert document["verdict"] == "verified"
    assert document["params"] == {"p": 4, "m": 8}
    assert document["diagnostics"] == []
    metrics = document["metrics"]
    assert (metrics["makespan"], metrics["bubble"]) == (33, pytest.approx(3 / 11))
    assert metrics["exact"]["bubble"] == "3/11"
    assert metrics["peak_activations"] == [4, 3, 2, 1]
    assert metrics["exact"].keys() == metrics.keys() - {"exact"}
    assert set(document["transports"].values()) == {"safe"}
    assert len(document["transports"]) == 6


@pytest.mark.usefixtures("folder")
def test_verify_json_of_what_does_not_parse() -> None:
    document = json.loads(run("verify", "bad.sched", *PARAMS, "--format", "json", status=1).output)
    assert document["verdict"] == "rejected"
    assert document["metrics"] is None
    assert document["transports"] == {}
    (found,) = document["diagnostics"]
    assert (found["code"], found["file"], found["line"]) == ("PD103", "bad.sched", 6)


@pytest.mark.usefixtures("folder")
def test_verify_asks_only_for_the_given_transports() -> None:
    assert "PD301" in run("verify", "hang.sched", "-D", "p=2", "-D", "m=3", status=1).output
    shown = run("verify", "hang.sched", "-D", "p=2", "-D", "m=3", "--transport", "gloo").output
    assert "safe on           gloo\n" in shown


@pytest.mark.usefixtures("folder")
def test_verify_reads_standard_input() -> None:
    assert "verified" in run("verify", "-", *PARAMS, stdin=GPIPE).output
    assert "--> <stdin>:1:1" in run("verify", "-", *PARAMS, stdin=b"\xff", status=1).output


def test_verify_reads_calls(folder: Path) -> None:
    (folder / "calls.json").write_text(run("expand", "1f1b", *PARAMS, "--calls", "--format", "json").output)
    assert "calls.json: verified" in run("verify", "calls.json").output
    (folder / "deep.json").write_text("[" * 100_000)
    assert "PD104" in run("verify", "deep.json", status=1).output
    (folder / "long.json").write_text("9" * 10_000)
    assert "PD104" in run("verify", "long.json", status=1).output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify",), "Missing argument 'FILE'"),
        (("verify", "none.sched"), "no such file: none.sched"),
        (("verify", "."), "directory"),
        (("verify", "1f1b", "-D", "p"), "not of the form name=value"),
        (("verify", "1f1b", "-D", "=4"), "not of the form name=value"),
        (("verify", "1f1b", "-D", "p=four"), "must be an integer"),
        (("verify", "1f1b", "-D", "p=" + "9" * 5000), "must be an integer"),
        (("verify", "1f1b", "-D", "p=1", "-D", "p=2"), "given twice"),
        (("verify", "1f1b", "-D", "p=4"), "PD111"),
        (("verify", "1f1b", *PARAMS, "-D", "x=1"), "PD111"),
        (("verify", "1f1b", "-D", "p=0", "-D", "m=1"), "PD111"),
        (("verify", "1f1b", *PARAMS, "--transport", "mpi"), "'mpi' is not one of buffered, gloo"),
        (("verify", "1f1b", *PARAMS, "--format", "xml"), "'xml' is not one of"),
        (("verify", "1f1b", *PARAMS, "--limit-operations", "0"), "--limit-operations"),
        (("verify", "1f1b", *PARAMS, "--limit-nesting", "100000"), "--limit-nesting"),
        (("show", "1f1b", *PARAMS, "-o", "x.gif"), "must end in .svg, .png or .pdf"),
        (("show", "1f1b", *PARAMS, "-o", "none/x.svg"), "none"),
        (("compile", "1f1b", *PARAMS), "Missing option '-o'"),
        (("compile", "1f1b", *PARAMS, "-o", "none/x.py"), "none"),
        (("expand", "1f1b"), "PD111"),
        (("explain", "PD3001"), "there is no code PD3001; did you mean PD301"),
        (("verfy",), "Did you mean `verify`?"),
        (("quite_different",), "No such command"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments, status=2).output


def test_an_unknown_answer_has_its_own_status(folder: Path) -> None:
    (folder / "x.sched").write_text(GPIPE + "expect { makespan >= max(F, B) * m }\n")
    assert "unknown" in run("verify", "x.sched", *PARAMS, status=3).output


@pytest.mark.usefixtures("folder")
def test_limits_are_options() -> None:
    assert "PD104" in run("verify", "1f1b", *PARAMS, "--limit-operations", "10", status=1).output
    assert "PD101" in run("verify", "1f1b", *PARAMS, "--limit-source-bytes", "10", status=1).output


# -------------------------------------------------------------------- show


def test_show() -> None:
    output = run("show", "1f1b", *PARAMS).output
    assert output.startswith(TIMELINE)
    for fact in ("makespan          33\n", "3/11 = 27.3 %", "4 3 2 1", "verified"):
        assert fact in output


def test_show_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert " ... " in run("show", "1f1b", *PARAMS, "--width", "30").output
    monkeypatch.setenv("COLUMNS", "36")
    lines = run("show", "1f1b", *PARAMS).output.splitlines()
    assert [len(row) for row in lines[:4]] == [36] * 4
    assert run("show", "1f1b", *PARAMS, "--width", "0").output.startswith(TIMELINE)


def test_show_in_colour() -> None:
    import re

    coloured = run("show", "zb_h1", *PARAMS, "--color", "always").output
    assert len(set(re.findall(r"\x1b\[[0-9;]*m", coloured))) >= 5
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == run("show", "zb_h1", *PARAMS).output


@pytest.mark.usefixtures("folder")
def test_show_of_what_is_rejected() -> None:
    hang = run("show", "hang.sched", "-D", "p=2", "-D", "m=3", status=1).output
    assert hang.startswith("rank 0 |")
    assert "PD301" in hang
    assert run("show", "bad.sched", *PARAMS, status=1).output.startswith("error[PD103]")


def test_show_as_a_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    output = run("show", "1f1b", *PARAMS, "-o", "x.svg").output
    assert output == run("verify", "1f1b", *PARAMS, "--no-advice").output
    picture = (folder / "x.svg").read_text()
    for text in (
        "one_f_one_b (p=4, m=8)",
        "makespan 33",
        "bubble 3/11 = 27.3 %",
        "peak activations 4 3 2 1",
        "verified",
    ):
        assert text in picture
    run("show", "bad.sched", *PARAMS, "-o", "y.svg", status=1)
    assert not (folder / "y.svg").exists()


# ----------------------------------------------------------------- compile


def test_compile(folder: Path) -> None:
    output = run("compile", "1f1b", *PARAMS, "-o", "pipeline.py").output
    assert output.startswith("one_f_one_b (p=4, m=8): verified")
    text = (folder / "pipeline.py").read_text()
    compile(text, "pipeline.py", "exec")
    assert "import pipedsl" not in text
    assert "from pipedsl" not in text
    result = run("compile", "1f1b", *PARAMS, "-o", "-")
    assert result.stdout == text
    assert "verified" in result.stderr


def test_compile_refuses_what_is_not_verified(folder: Path) -> None:
    (folder / "out.py").write_text("old")
    arguments = ("compile", "hang.sched", "-D", "p=2", "-D", "m=3", "-o", "out.py")
    assert "PD301" in run(*arguments, status=1).output
    assert (folder / "out.py").read_text() == "old"
    run(*arguments, "--transport", "gloo")
    assert "class Pipeline" in (folder / "out.py").read_text()


# ------------------------------------------------------------------ expand


@pytest.mark.usefixtures("folder")
def test_expand() -> None:
    assert run("expand", "gpipe.sched", "-D", "p=2", "-D", "m=2").output == (
        "rank 0: F[0] F[1] B[0] B[1]\nrank 1: F[0] F[1] B[0] B[1]\n"
    )
    document = json.loads(run("expand", "gpipe.sched", "-D", "p=2", "-D", "m=2", "--format", "json").output)
    word = [["F", 0], ["F", 1], ["B", 0], ["B", 1]]
    assert document.pop("memory")["activation"] == [1, 1]
    assert document == {
        "schedule": "x",
        "params": {"p": 2, "m": 2},
        "stages": 2,
        "placement": [0, 1],
        "ranks": [[[kind, stage, index] for kind, index in word] for stage in range(2)],
    }


def test_expanded_text_is_a_word_of_the_language(folder: Path) -> None:
    """What `expand` writes, put into a schedule, expands to the same."""
    arguments = ("-D", "p=2", "-D", "m=4")
    shown = run("expand", "interleaved_1f1b", *arguments).output
    blocks = []
    for text in shown.splitlines():
        rank, _, word = text.removeprefix("rank ").partition(": ")
        blocks.append(f"rank r where r == {rank} {{ {word} }}\n")
    (folder / "again.sched").write_text("schedule again(p, m)\nstages 4\nplace s -> s % 2\n" + "".join(blocks))
    assert run("expand", "again.sched", *arguments).output == shown


def test_expand_calls() -> None:
    document = json.loads(run("expand", "zb_h1", *PARAMS, "--calls", "--format", "json").output)
    calls = read_calls(document)
    assert calls.ranks == 4
    flat = [call for rank in document["ranks"] for call in rank]
    assert sum(call[0] == "isend" for call in flat) == sum(call[0] == "irecv" for call in flat) == 2 * 3 * 8
    assert sum(call[0] == "wait" for call in flat) == 4 * 3 * 8
    text = run("expand", "zb_h1", *PARAMS, "--calls").output
    assert text.startswith("rank 0\n    F stage 0 microbatch 0\n    isend F0@1 to rank 1\n")


def test_expand_of_what_cannot_be_lowered(folder: Path) -> None:
    (folder / "x.sched").write_text(GPIPE.replace("B * m", "B * (m - 1)"))
    assert "PD206" in run("expand", "x.sched", *PARAMS, "--calls", status=1).output
    run("expand", "x.sched", *PARAMS)


# --------------------------------------------------------------------- fmt

UGLY = "schedule x(p,m)\nstages p\nplace s->s\n\n\n\nrank r{F*m   B*m} # both\n"


def test_fmt_writes_what_is_canonical(folder: Path) -> None:
    path = folder / "ugly.sched"
    path.write_text(UGLY)
    path.chmod(0o600)
    run("fmt", "ugly.sched")
    text = path.read_text()
    assert "rank r { F * m B * m }  # both\n" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_mtime_ns
    assert run("fmt", "ugly.sched").output == ""
    assert path.stat().st_mtime_ns == before
    assert run("fmt", "-", stdin=UGLY).output == text
    assert run("fmt", "-", stdin=UGLY.replace("\n", "\r\n")).output == text


def test_fmt_check_and_diff_write_nothing(folder: Path) -> None:
    path = folder / "ugly.sched"
    path.write_text(UGLY)
    assert run("fmt", "--check", "gpipe.sched", "ugly.sched", status=1).output == "would format ugly.sched\n"
    difference = run("fmt", "--diff", "gpipe.sched", "ugly.sched", status=1).output
    assert "-place s->s\n+place s -> s\n" in difference
    assert path.read_text() == UGLY
    run("fmt", "--check", "gpipe.sched")
    assert run("fmt", "--diff", "gpipe.sched").output == ""


def test_fmt_leaves_what_it_cannot_read(folder: Path) -> None:
    (folder / "ugly.sched").write_text(UGLY)
    before = (folder / "bad.sched").read_bytes()
    assert "PD103" in run("fmt", "bad.sched", "ugly.sched", status=1).output
    assert (folder / "bad.sched").read_bytes() == before
    assert (folder / "ugly.sched").read_text() != UGLY, "the others are still formatted"
    assert "no such file" in run("fmt", "none.sched", "gpipe.sched", status=2).output
    assert "shipped" in run("fmt", "zb_h1", status=2).output


def test_shipped_schedules_are_formatted() -> None:
    root = Path(__file__).resolve().parents[2] / "schedules"
    run("fmt", "--check", *(str(root / f"{name}.sched") for name in shipped()))


# ------------------------------------------------------------ list, explain


def test_list() -> None:
    lines = run("list").output.splitlines()
    assert [text.split()[0] for text in lines] == shipped()
    document = json.loads(run("list", "--format", "json").output)
    assert [entry["name"] for entry in document["schedules"]] == shipped()
    assert document["schedules"][2]["parameters"] == ["p", "m", "v = 2"]
    assert [entry["name"] for entry in document["schedules"] if entry["search"]] == ["zero_bubble"]


@pytest.mark.parametrize("code", CODES)
def test_explain(code: str) -> None:
    output = run("explain", code.lower()).output
    assert output.startswith(f"{code}: {CODES[code]}\n")
    assert "```" not in output


def test_explain_lists_all() -> None:
    assert [text.split()[0] for text in run("explain").output.splitlines()] == list(CODES)


# ---------------------------------------------------------------- the whole


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str) -> None:
    assert "Usage:" in run(*command.split(), "--help").output
    assert len(COMMANDS) == 9


def test_internal_errors_are_named_and_traced_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("something\nodd")

    monkeypatch.setattr(verify, "check_file", fail)
    result = run("verify", "1f1b", *PARAMS, status=2)
    assert result.output.startswith("error: internal error: RuntimeError: something\nThis is a fault of pipedsl")
    assert "Traceback" not in result.output
    assert isinstance(CliRunner().invoke(cli, ["--debug", "verify", "1f1b", *PARAMS]).exception, RuntimeError)


@pytest.mark.parametrize(
    ("error", "status", "output"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 2, "error: out of memory; a smaller p or m, or a lower --limit-operations, needs less\n"),
        (OSError(28, "No space left on device"), 2, "error: cannot write the output: No space left on device\n"),
    ],
)
def test_other_ends(monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, output: str) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(fmt, "find_text", fail)
    if isinstance(error, OSError):
        assert "No space left" in run("fmt", "x", status=2).output
    else:
        assert run("fmt", "x", status=status).output == output


def test_every_limit_has_an_option() -> None:
    import dataclasses

    shown = run("verify", "--help").output
    for field in dataclasses.fields(Limits):
        assert f"--limit-{field.name.replace('_', '-')}" in shown
