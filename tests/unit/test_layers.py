"""Imports point one way, and heavy modules are loaded only where they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LANGUAGE = ("syntax", "parser", "format", "check", "evaluate", "expand", "claims", "library")
LANGUAGE_MODULES = {f"pipedsl.{name}" for name in LANGUAGE}
ABOVE = {"pipedsl.api", "pipedsl.emit", "pipedsl.render", "pipedsl.cli"}

# Modules (with all below them), and what none of them may reach, however indirectly.
FORBIDDEN = {
    "pipedsl.diagnostics": {"pipedsl", "verify"},
    "pipedsl.syntax": {"pipedsl.program", "pipedsl.parser", "verify"} | ABOVE,
    "pipedsl.parser": {"pipedsl.program", "pipedsl.expand", "pipedsl.check", "verify"} | ABOVE,
    "pipedsl.format": {"pipedsl.program", "pipedsl.expand", "pipedsl.check", "verify"} | ABOVE,
    "pipedsl.program": LANGUAGE_MODULES | {"verify"} | ABOVE,
    "pipedsl.calls": LANGUAGE_MODULES | {"verify"} | ABOVE,
    "pipedsl.simulate": LANGUAGE_MODULES | {"verify"} | ABOVE,
    "pipedsl.lower": LANGUAGE_MODULES | {"verify"} | ABOVE,
    "pipedsl.expand": {"pipedsl.parser", "pipedsl.format", "verify"} | ABOVE,
    "verify": LANGUAGE_MODULES | ABOVE,
    "pipedsl.claims": {"verify"} | ABOVE,
    "pipedsl.emit": {"pipedsl.render", "pipedsl.cli", "pipedsl.api", "pipedsl.parser"},
    "pipedsl.api": {"pipedsl.render", "pipedsl.cli", "pipedsl.emit"},
    "pipedsl.render": {"pipedsl.cli", "pipedsl.parser", "pipedsl.expand"},
    "pipedsl.runtime": {"pipedsl", "verify"},
}

# What may import them; everything else of pipedsl may not.
HOMES = {
    "lark": {"pipedsl.grammar", "pipedsl.parser", "pipedsl.tokens", "pipedsl.treebuilder", "pipedsl.syntax_errors"},
    "networkx": {"verify"},
    "torch": {"pipedsl.runtime"},
    "matplotlib": {"pipedsl.render.figure", "pipedsl.render.memory_figure", "pipedsl.render.search_figure"},
    "z3": {"verify.search"},
    "ortools": {"verify.search.cpsat"},
    "click": {"pipedsl.cli"},
}
# Those that even their homes import inside functions, so that reading a schedule does not load them.
LAZY = {"networkx", "matplotlib", "z3", "ortools", "rich"}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package in ("pipedsl", "verify"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node: ast.AST, lazily: bool) -> Iterator[ast.stmt]:
    """The statements under `node`; those in functions only where `lazily`, those for type checkers never."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not lazily:
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from statements(child, lazily)


@cache
def imports(module: str, lazily: bool) -> frozenset[str]:
    """The modules that `module` imports, its own parents left out."""
    names: set[str] = set()
    for node in statements(ast.parse(modules()[module].read_text(encoding="utf-8")), lazily):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            origin = node.module or ""
            inner = {f"{origin}.{alias.name}" for alias in node.names}
            names.update(inner & modules().keys() or {origin})
    return frozenset(names)


@cache
def reached(module: str) -> frozenset[str]:
    """Everything of pipedsl that importing `module` loads."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imports(waiting.pop(), lazily=False):
            if name in modules() and name not in seen:
                seen.add(name)
                waiting.append(name)
    return frozenset(seen)


def test_there_are_modules() -> None:
    assert {"pipedsl", "pipedsl.cli.main", "verify"} <= modules().keys()
    assert "pipedsl.program" in reached("verify")


def test_no_cycles() -> None:
    graph = {module: imports(module, lazily=False) & modules().keys() for module in modules()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_imports_point_one_way(layer: str) -> None:
    for module in modules():
        if not within(module, layer):
            continue
        wrong = {
            other
            for other in reached(module)
            if other != "pipedsl"
            and not within(other, layer)
            and any(within(other, forbidden) for forbidden in FORBIDDEN[layer])
        }
        assert not wrong, f"{module} must not reach {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("heavy", HOMES)
def test_heavy_modules_have_homes(heavy: str) -> None:
    users = {module for module in modules() if any(within(name, heavy) for name in imports(module, lazily=True))}
    strangers = {user for user in users if not any(within(user, home) for home in HOMES[heavy])}
    assert not strangers


@pytest.mark.parametrize("heavy", sorted(LAZY))
def test_some_are_never_imported_at_the_top(heavy: str) -> None:
    assert not {module for module in modules() if any(within(name, heavy) for name in imports(module, lazily=False))}


def test_the_runtime_needs_torch_and_the_standard_library_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"torch"}
    for module in modules():
        if within(module, "pipedsl.runtime"):
            foreign = {
                name
                for name in imports(module, lazily=True)
                if name.split(".")[0] not in allowed and not within(name, "pipedsl.runtime")
            }
            assert not foreign, module


def test_verifying_loads_nothing_heavy() -> None:
    script = """
import sys
from pipedsl.cli.main import cli
try:
    cli(["verify", "1f1b", "-D", "p=4", "-D", "m=8"])
except SystemExit as stop:
    assert stop.code == 0, stop.code
for name in ("torch", "z3", "networkx", "rich", "matplotlib"):
    assert name not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_name_that_users_get_is_a_module() -> None:
    """Importing `pipedsl.x` would put the module in the place of what `pipedsl.x` is to be."""
    import pipedsl

    assert not {f"pipedsl.{name}" for name in pipedsl.__all__} & modules().keys()
