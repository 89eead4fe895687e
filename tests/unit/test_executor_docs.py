"""What docs/executor.md tells people to write exists."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from pipedsl.emit import RUNTIME_MODULES
from pipedsl.runtime.executor import Executor
from pipedsl.runtime.timeline import Timeline

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "executor.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
INLINE = re.findall(r"`([^`\n]+)`", TEXT)


def expressions() -> list[ast.AST]:
    """What is to be read as Python, parsed: blocks, and inline code that calls a pipeline."""
    calls = [text.replace("...", "stage") for text in INLINE if re.match(r"(pipe\.\w+|Pipeline)\(", text)]
    return [ast.parse(text) for text in [*CODE, *calls]]


def test_the_examples_are_python() -> None:
    assert len(CODE) >= 4
    assert len(expressions()) > len(CODE) + 4


def test_they_call_what_there_is() -> None:
    called = set()
    for tree in expressions():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case ast.Attribute(value=ast.Name("pipe"), attr=name):
                    wanted, function = name, getattr(Executor, name)
                case ast.Name("Pipeline"):
                    wanted, function = "Pipeline", Executor.__init__
                case ast.Attribute(value=ast.Name("timeline"), attr=name):
                    wanted, function = name, getattr(Timeline, name)
                case _:
                    continue
            called.add(wanted)
            keywords = {keyword.arg for keyword in node.keywords}
            assert keywords <= inspect.signature(function).parameters.keys(), (wanted, keywords)
    public = {name for name, _ in inspect.getmembers(Executor, inspect.isfunction) if not name.startswith("_")}
    assert called == public | {"Pipeline", "save_trace", "save_profile"}


def test_its_table_has_every_module() -> None:
    table = TEXT[TEXT.index("## Where to look") :]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(RUNTIME_MODULES)


def test_the_files_it_names_are_there() -> None:
    for name in INLINE:
        if re.fullmatch(r"[\w/]+/[\w.]+\.(py|md)", name):
            assert (ROOT / name).exists(), name
