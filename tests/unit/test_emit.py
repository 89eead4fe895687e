"""The generated file: complete in itself, always the same, and what its calls say."""

from __future__ import annotations

import ast
import py_compile
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipedsl import emit as emitting
from pipedsl.calls import CallKind
from pipedsl.diagnostics import DiagnosticError, Source
from pipedsl.emit import RUNTIME_MODULES, emit
from pipedsl.program import Kind
from tests.support import compiled
from verify import TRANSPORTS

RUNTIME = Path(__file__).resolve().parents[2] / "pipedsl" / "runtime"


def test_the_same_input_gives_the_same_text() -> None:
    assert compiled.emitted(compiled.SPLIT, p=3, m=4) == compiled.emitted(compiled.SPLIT, p=3, m=4)


def test_it_needs_torch_alone(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x_pipeline.py", compiled.ONE_F_ONE_B, p=2, m=3)
    py_compile.compile(str(path), doraise=True)
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"torch"}
    code = (
        "import sys; import x_pipeline as x; assert not [m for m in sys.modules if m.startswith(('pipedsl', 'verify'))]"
        "; print(x.PARAMS, x.STAGES, x.PLACEMENT, x.TRANSPORTS, x.Pipeline.step.__name__)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout == f"{{'p': 2, 'm': 3}} 2 [0, 1] {dict.fromkeys(TRANSPORTS, 'safe')} step\n"


def test_it_says_where_it_comes_from_and_where_it_is_safe() -> None:
    source, program, calls = compiled.build(compiled.ONE_F_ONE_B, p=2, m=3)
    text = emit(program, calls, source=source, transports={"gloo": "safe", "nccl-lazy": "deadlock"})
    head = ast.get_docstring(ast.parse(text))
    assert head is not None
    assert "one_f_one_b(p=2, m=3)" in head
    assert "test.sched" in head
    assert "Verified free of deadlock on: gloo." in head
    assert "NOT on: nccl-lazy (deadlock)." in head


@pytest.mark.parametrize("name", ['a"""b.sched', "a\\N{b}.sched", "ü\n.sched", "x'.sched"])
def test_no_name_breaks_the_file(name: str) -> None:
    source, program, calls = compiled.build(compiled.ONE_F_ONE_B, p=2, m=3)
    text = emit(program, calls, source=Source(name, source.text), transports={})
    compile(text, "x.py", "exec")


def test_the_fingerprint_changes_with_text_params_and_calls() -> None:
    source, program, calls = compiled.build(compiled.ONE_F_ONE_B, p=2, m=3)

    def fingerprint(text: str) -> str:
        return next(line for line in text.splitlines() if line.startswith("FINGERPRINT"))

    plain = emit(program, calls, source=source, transports={})
    assert fingerprint(plain) == fingerprint(emit(program, calls, source=source, transports={"gloo": "safe"}))
    other_text = emit(program, calls, source=Source(source.name, source.text + "# more\n"), transports={})
    other_params = compiled.emitted(compiled.ONE_F_ONE_B, p=2, m=4)
    assert len({fingerprint(each) for each in (plain, other_text, other_params)}) == 3


def test_the_fingerprint_changes_with_the_code_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of two versions do not run together, as their ranks might send each other other things."""

    def fingerprint() -> str:
        text = compiled.emitted(compiled.ONE_F_ONE_B, p=2, m=3)
        return next(line for line in text.splitlines() if line.startswith("FINGERPRINT"))

    found = [fingerprint()]
    with monkeypatch.context() as patch:
        patch.setattr(emitting, "__version__", "0.0.0-other")
        found.append(fingerprint())
    imports, bodies = emitting._runtime()
    for changed in ((imports + "\nimport this", bodies), (imports, [*bodies[:-1], bodies[-1] + "\n# more\n"])):
        with monkeypatch.context() as patch:
            patch.setattr(emitting, "_runtime", lambda changed=changed: changed)
            found.append(fingerprint())
    assert len(set(found)) == 4


@pytest.mark.parametrize("schedule", [compiled.ONE_F_ONE_B, compiled.SPLIT, compiled.V_SHAPE])
def test_the_calls_read_back_are_the_calls(schedule: str, tmp_path: Path) -> None:
    from pipedsl.runtime.plan import read_calls
    from tests.support.worker import load

    source, program, calls = compiled.build(schedule, p=3, m=4)
    plan = load(compiled.compile_to(tmp_path / "x.py", schedule, p=3, m=4)).PLAN
    for rank in range(3):
        read = read_calls(plan, rank)
        assert len(read) == len(calls.rows(rank))
        for call, row in zip(read, calls.rows(rank), strict=True):
            kind = CallKind(calls.kind[row])
            op = int(calls.op[row])
            assert call.line == program.span_of(op).line
            if kind is CallKind.COMPUTE:
                assert call.kind == Kind(program.kind[op]).name
                assert (call.stage, call.microbatch) == (program.stage[op], program.microbatch[op])
                continue
            assert call.kind == kind.name.lower()
            assert call.request == calls.request[row]
            if kind is not CallKind.WAIT:
                assert call.message == calls.tags[int(calls.tag[row])]
                assert call.peer == calls.peer[row]
        assert f"({source.name}:" in read[0].describe(plan.source)


def test_what_the_executor_cannot_run_is_refused() -> None:
    source, program, calls = compiled.build(compiled.ONE_F_ONE_B, p=2, m=3)
    calls.batch[3] = 0
    with pytest.raises(DiagnosticError) as caught:
        emit(program, calls, source=source, transports={})
    assert caught.value.diagnostics[0].code == "PD113"


def test_runtime_modules_define_every_name_once() -> None:
    """They share one namespace in the generated file."""
    names: Counter[str] = Counter()
    for module in RUNTIME_MODULES:
        for node in ast.parse((RUNTIME / f"{module}.py").read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names[node.target.id] += 1
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert {path.stem for path in RUNTIME.glob("*.py")} == {*RUNTIME_MODULES, "__init__"}
