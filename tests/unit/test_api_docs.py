"""The examples of docs/api.md run as they stand, and its table names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipedsl
from pipedsl.api import Result
from pipedsl.diagnostics import Diagnostic
from pipedsl.simulate import Metrics
from verify import Report

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_run_and_print_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert len(EXAMPLES) >= 5
    namespace: dict[str, object] = {}
    for number, example in enumerate(EXAMPLES):
        exec(compile(example, f"docs/api.md, example {number + 1}", "exec"), namespace)
    assert capsys.readouterr() == ("", "")


def test_every_name_is_there() -> None:
    for line in re.findall(r"^\| (`.*?) \| ", TEXT, re.MULTILINE):
        for name in re.findall(r"`(\w+)", line):
            assert hasattr(pipedsl, name), name
    for kind in (Result, Report, Metrics, Diagnostic):
        (row,) = re.findall(rf"^\| `{kind.__name__}` \| (.*) \|$", TEXT, re.MULTILINE)
        fields = {name for name in (*getattr(kind, "__dataclass_fields__", ()), *vars(kind)) if name[0] != "_"}
        assert set(re.findall(r"`(\w+)`", row)) <= fields
        assert fields <= set(re.findall(r"`(\w+)`", row)), kind
