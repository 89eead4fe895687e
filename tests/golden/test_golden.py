"""Broken schedules and what `pipedsl verify` says about them; or `pipedsl search`, of problems that have no answer.

The first line of `NAME.sched` has the arguments, after `# args: ` or `# search: ` (`NAME.json`, a file of Calls, and
`NAME.csv` need none), `NAME.expected` the whole output and the exit status. After a change of a message:
`pytest tests/golden --update-golden`, and read the difference.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipedsl.cli.main import cli
from pipedsl.codes import CODES

HERE = Path(__file__).resolve().parent
CASES = sorted(path.name for path in HERE.iterdir() if path.suffix in (".sched", ".json", ".csv"))


def arguments_of(path: Path) -> list[str]:
    if path.suffix != ".sched":
        return ["verify", path.name]
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    if first.startswith("# search: "):
        return ["search", path.name, "--no-cache", *shlex.split(first.removeprefix("# search: "))]
    assert first.startswith("# args: "), f"{path.name} must begin with `# args: `"
    return ["verify", path.name, *shlex.split(first.removeprefix("# args: "))]


def output_of(name: str) -> str:
    result = CliRunner().invoke(cli, arguments_of(HERE / name))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return f"{result.output}exit status: {result.exit_code}\n"


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    output = output_of(name)
    expected = (HERE / name).with_suffix(".expected")
    if update_golden:
        expected.write_text(output, encoding="utf-8")
    assert output == expected.read_text(encoding="utf-8")
    code = name.split("_")[0].upper()
    assert f"[{code}]" in output, f"{name} is to show {code}"


def test_every_expectation_belongs_to_a_case() -> None:
    assert {path.stem for path in HERE.glob("*.expected")} == {name.rpartition(".")[0] for name in CASES}


def test_every_code_is_hit() -> None:
    seen = set()
    for path in HERE.glob("*.expected"):
        seen.update(re.findall(r"\[(PD\d{3})\]", path.read_text(encoding="utf-8")))
    assert seen == set(CODES)
