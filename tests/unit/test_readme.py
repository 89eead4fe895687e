"""The README tells the truth: its commands print what it shows, its schedule is the shipped one.

After a change, `python tests/unit/test_readme.py` writes the outputs anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CONSOLE = re.compile(r"```console\n\$ (?P<command>pipedsl .*)\n(?P<output>(?:(?!```).*\n)*)```\n")


def output_of(command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def consoles(text: str) -> list[re.Match[str]]:
    return list(CONSOLE.finditer(text))


@pytest.mark.parametrize("number", range(3))
def test_commands_print_what_is_shown(number: int) -> None:
    console = consoles(README.read_text())[number]
    assert console["output"] == output_of(console["command"])


def test_every_console_block_is_checked() -> None:
    assert len(consoles(README.read_text())) == 3 == README.read_text().count("```console")


def test_the_schedule_is_the_shipped_one() -> None:
    shown = README.read_text().split("```sched\n")[1].split("```")[0]
    shipped = (ROOT / "schedules" / "1f1b.sched").read_text()
    assert shown == shipped[shipped.index("schedule ") :]


def test_the_files_and_targets_that_it_names_exist() -> None:
    text = README.read_text()
    for name in re.findall(r"`((?:pipedsl|verify|docs|examples|schedules)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_the_job_is_short_and_is_python() -> None:
    job = README.read_text().split("```python\n")[1].split("```")[0]
    compile(job, "README.md", "exec")
    assert len(job.splitlines()) <= 15


if __name__ == "__main__":
    README.write_text(
        CONSOLE.sub(lambda m: f"```console\n$ {m['command']}\n{output_of(m['command'])}```\n", README.read_text())
    )
