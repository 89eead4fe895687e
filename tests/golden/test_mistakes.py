"""Real mistakes: the first finding on each names the line to change.

In `mistakes/NAME.sched` the first line has the arguments, the second which line is to be changed, the third what is
wrong with it; `NAME.expected` has the whole output and the exit status. After a change of a message:
`pytest tests/golden --update-golden`, and read the difference.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipedsl.cli.main import cli

HERE = Path(__file__).resolve().parent / "mistakes"
CASES = sorted(path.stem for path in HERE.glob("*.sched"))


def value_of(line: str, name: str) -> str:
    assert line.startswith(f"# {name}: "), f"a line `# {name}: ` is missing"
    return line.removeprefix(f"# {name}: ")


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding_is_at_the_line_to_change(
    name: str, update_golden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    first, second, third, *_ = (HERE / f"{name}.sched").read_text(encoding="utf-8").splitlines()
    assert third.startswith("# ")
    result = CliRunner().invoke(cli, ["verify", f"{name}.sched", *shlex.split(value_of(first, "args"))])
    output = f"{result.output}exit status: {result.exit_code}\n"
    if update_golden:
        (HERE / f"{name}.expected").write_text(output, encoding="utf-8")
    assert output == (HERE / f"{name}.expected").read_text(encoding="utf-8")
    place = re.search(rf"^ +--> {name}\.sched:(\d+):\d+$", output, re.MULTILINE)
    assert place, "the first finding is at no place"
    assert int(place[1]) == int(value_of(second, "line"))
    assert result.exit_code == 1


def test_there_are_thirty_and_nothing_is_left_over() -> None:
    assert len(CASES) >= 30
    assert {path.stem for path in HERE.glob("*.expected")} == set(CASES)
