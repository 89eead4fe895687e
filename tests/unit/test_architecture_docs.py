"""What docs/architecture.md says is where is there, and of the runtime it has everything."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    """The paths of each row of the table. A name without a folder is in that of the name before it."""
    found = []
    for row in re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE):
        folder, paths = "", []
        for name in re.findall(r"`([^`]+)`", row):
            if "/" in name:
                folder = name.rpartition("/")[0] + "/"
            paths.append(name if "/" in name else folder + name)
        found.append(paths)
    return found


def test_what_it_names_is_there() -> None:
    named = [path for paths in rows() for path in paths]
    assert len(named) > 100
    assert not [path for path in named if not list(ROOT.glob(path))]


def test_every_module_of_the_runtime_is_named_once() -> None:
    named = [path for paths in rows() for path in paths if path.startswith("pipedsl/runtime/") and path[-1] != "/"]
    there = [path for path in (ROOT / "pipedsl" / "runtime").glob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in there)
