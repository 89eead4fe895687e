"""Findings in the forms that other programs read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from pipedsl.cli.main import cli
from pipedsl.codes import CODES
from pipedsl.diagnostics import Diagnostic, Severity, Source, Span
from pipedsl.render.annotations import concise_lines, github_lines
from pipedsl.render.sarif import sarif_document

BROKEN = """\
schedule broken(p, m)
stages p
place s -> s
rank r where r == 0 { F * m B * m B[0] }
rank r where r == 1 { F * m I * m W * (m - 1) }
"""
FINE = "schedule fine(p, m)\nstages p\nplace s -> s\nrank r { F * m B * m }\n"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.sched").write_text(BROKEN.replace("B * m B[0]", "for k in 0 .. m { B[k] } B[0]"))
    (tmp_path / "fine.sched").write_text(FINE)
    return tmp_path


def output(form: str, file: str = "a b.sched", *, status: int = 1, m: int = 4) -> str:
    done = CliRunner().invoke(cli, ["verify", file, "-D", "p=2", "-D", f"m={m}", "--format", form])
    assert done.exit_code == status, done.output
    return done.output


# ------------------------------------------------------------------ concise


@pytest.mark.usefixtures("folder")
def test_concise() -> None:
    assert output("concise") == (
        "a b.sched:4:54: PD207 B stage 0 microbatch 0 runs a second time\n"
        "a b.sched:5:40: PD206 W of stage 1 never runs for microbatch 3\n"
    )
    assert output("concise", "fine.sched", status=0, m=40).startswith("fine.sched:4:10: PD902 ")


def test_concise_keeps_to_one_line_and_hides_nothing() -> None:
    found = Diagnostic("PD301", "one\n  two\u202e", None)
    assert list(concise_lines([found], "x\n.json")) == ["x\\x0a.json: PD301 one two\\u202e\n"]


# ------------------------------------------------------------------ github


@pytest.mark.usefixtures("folder")
def test_github() -> None:
    assert output("github") == (
        "::error file=a b.sched,line=4,col=54,endLine=4,endColumn=57,title=PD207 operation twice::"
        "B stage 0 microbatch 0 runs a second time\n"
        "::error file=a b.sched,line=5,col=40,endLine=5,endColumn=44,title=PD206 operation missing::"
        "W of stage 1 never runs for microbatch 3\n"
    )
    assert output("github", "fine.sched", status=0, m=40).startswith("::notice file=fine.sched,line=4,")


def test_github_escapes() -> None:
    source = Source("a,b:c%.sched", "schedule\nx")
    found = Diagnostic("PD103", "100 %: a,\nb", Span(source, 0, 10), notes=("n1\r",), help="h::1")
    (line,) = github_lines([found], "ignored")
    head, body = re.fullmatch(r"::error (.*?)::(.*)\n", line).groups()  # type: ignore[union-attr]
    given = dict(each.split("=", 1) for each in head.split(","))
    assert given == {
        "file": "a%2Cb%3Ac%25.sched",
        "line": "1",
        "col": "1",
        "endLine": "2",
        "title": "PD103 syntax error",
    }
    assert unquote(body) == "100 %: a,\nb\nn1\\x0d\nhelp: h::1"
    assert "\n" not in line[:-1]


def test_github_without_a_place_names_the_file() -> None:
    warning = Diagnostic("PD303", "left over", severity=Severity.WARNING)
    assert list(github_lines([warning], "calls.json")) == [
        "::warning file=calls.json,title=PD303 send or receive left over::left over\n"
    ]


# ------------------------------------------------------------------ sarif


def check_sarif(log: Any) -> Any:
    """What SARIF 2.1.0 asks of the properties that are used here (its sections 3.13 to 3.50)."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    assert len(log["runs"]) == 1
    (run,) = log["runs"]
    assert run.keys() == {"tool", "columnKind", "invocations", "results"}
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() == {"id", "shortDescription", "fullDescription", "help", "defaultConfiguration"}
        assert rule["shortDescription"]["text"] == CODES[rule["id"]]
        assert all(isinstance(rule[key]["text"], str) and rule[key]["text"] for key in ("fullDescription", "help"))
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        assert isinstance(invocation["exitCode"], int)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        related = result.get("relatedLocations", [])
        assert len({location["id"] for location in related}) == len(related)
        assert all(location["message"]["text"] for location in related)
        for location in (*result["locations"], *related):
            physical = location["physicalLocation"]
            assert re.fullmatch(r"[A-Za-z0-9._~/%:-]+", physical["artifactLocation"]["uri"])
            region = physical.get("region")
            if region is not None:
                assert 1 <= region["startLine"] <= region["endLine"]
                assert region["startColumn"] >= 1
                assert region["startLine"] < region["endLine"] or region["endColumn"] >= region["startColumn"]
    return run


@pytest.mark.usefixtures("folder")
def test_sarif() -> None:
    run = check_sarif(json.loads(output("sarif")))
    assert [result["ruleId"] for result in run["results"]] == ["PD207", "PD206"]
    assert run["invocations"][0]["exitCode"] == 1
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20b.sched"},
        "region": {"startLine": 4, "startColumn": 54, "endLine": 4, "endColumn": 58},
    }
    advised = check_sarif(json.loads(output("sarif", "fine.sched", status=0, m=40)))
    assert {result["level"] for result in advised["results"]} == {"note"}


def arguments(path: Path) -> list[str] | None:
    """Those of a golden case; None where it is of `search` or of every m, which have no SARIF."""
    first = path.read_bytes().split(b"\n", 1)[0].decode("utf-8", "replace")
    return None if first.startswith("# search: ") or "--for-all" in first else first.removeprefix("# args: ").split()


CASES = [path for path in sorted(GOLDEN.glob("*.sched")) if arguments(path) is not None]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_every_golden_case_is_valid_sarif(path: Path) -> None:
    done = CliRunner().invoke(cli, ["verify", str(path), *(arguments(path) or ()), "--format", "sarif"])
    run = check_sarif(json.loads(done.output))
    assert run["results"], path.name


def test_sarif_without_a_place() -> None:
    run = check_sarif(sarif_document([Diagnostic("PD303", "x")], "/tmp/ü<1>.json", 1))
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"] == {"artifactLocation": {"uri": "file:///tmp/%C3%BC%3C1%3E.json"}}


# ------------------------------------------------------------------ json


@pytest.mark.usefixtures("folder")
def test_json_holds_the_advice_and_can_do_without() -> None:
    document = json.loads(output("json", "fine.sched", status=0, m=40))
    assert {each["severity"] for each in document["diagnostics"]} == {"advice"}
    assert document["verdict"] == "verified"
