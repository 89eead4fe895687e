"""What is compiled for a transport that matches by order is safe with the executor's own waits, too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from pipedsl.cli.main import cli
from pipedsl.diagnostics import DiagnosticError, Source
from pipedsl.emit import emit
from pipedsl.expand import expand
from pipedsl.lower import lower
from pipedsl.parser import parse
from pipedsl.simulate import simulate
from tests.support import compiled
from tests.support.nccl_like import EAGER, LAZY, Fabric, run_ranks
from tests.support.worker import load, mlp
from verify import TRANSPORTS, check_calls, check_structure
from verify.layouts import HELD, check_layouts

# Every rank first receives what is made last: the calls alone run (each pair of ranks has few), the hosts do not.
EARLY = """schedule early(p = 3, m = 1)
stages 4
place s -> 1 if s == 0 or s == 3 else (0 if s == 1 else 2)
rank r where r == 1 {
    RECV_F@1 F@0 SEND_F@0 F@1 B@1 SEND_B@1 RECV_B@0 B@0
}
rank r where r == 0 { RECV_F F SEND_F RECV_B B SEND_B }
rank r where r == 2 { RECV_F F SEND_F RECV_B B SEND_B }
"""
# The receive of a gradient before the rank's own first F, whose output has its layout.
OWN_LAYOUT = """schedule own_layout(p = 2, m = 1)
stages 2
place s -> s
rank r where r == 0 { RECV_B F SEND_F B }
rank r where r == 1 { RECV_F F B SEND_B }
"""


def compile_file(path: Path, *options: str) -> Any:
    arguments = ["compile", str(path), "-o", str(path.with_suffix(".py")), "--color", "never", *options]
    return CliRunner().invoke(cli, arguments)


def test_compile_refuses_where_first_receives_hold_each_other(tmp_path: Path) -> None:
    path = tmp_path / "early.sched"
    path.write_text(EARLY)
    result = compile_file(path, "--transport", "nccl-lazy-warm")
    assert result.exit_code == 1
    assert "error[PD301]: deadlock in the compiled executor on nccl-lazy-warm: rank 1 stands at `irecv F0@3" in (
        result.stderr
    )
    assert "until rank 2 has run F stage 2 microbatch 0" in result.stderr
    assert "early.sched:5:5" in result.stderr
    assert "help: place each of these receives after all that the F needs" in result.stderr
    assert not path.with_suffix(".py").exists()


def test_the_file_says_where_it_must_not_run(tmp_path: Path) -> None:
    path = tmp_path / "early.sched"
    path.write_text(EARLY)
    assert compile_file(path, "--transport", "gloo").exit_code == 0
    module = load(path.with_suffix(".py"))
    assert set(module.TRANSPORTS) == set(TRANSPORTS)
    assert module.TRANSPORTS["gloo"] == "safe"
    assert module.TRANSPORTS["nccl-lazy-warm"] == HELD
    assert f"nccl-lazy-warm ({HELD})" in module.__doc__

    def body(wire: Any) -> None:
        mine = [stage for stage, owner in enumerate(module.PLACEMENT) if owner == wire.rank]
        module.Pipeline([torch.nn.Identity() for _ in mine], process_group=wire, timeout=20)

    for rank in run_ranks(Fabric(3, LAZY), body):
        assert "the process group's transport is nccl-lazy-warm, where this schedule is not safe" in str(rank.error)
        assert "it is safe on buffered, gloo" in str(rank.error)


def test_emit_does_not_take_the_calls_verdict_for_its_own() -> None:
    source, program, calls = compiled.build(EARLY, p=3, m=1)
    assert check_calls(calls, ["nccl-lazy-warm"], remedies=0).transports == {"nccl-lazy-warm": "safe"}
    with pytest.raises(DiagnosticError, match="first receive"):
        emit(program, calls, source=source, transports={"nccl-lazy-warm": "safe"})


def test_gradients_wait_for_the_ranks_own_layout() -> None:
    _, program, calls = compiled.build(OWN_LAYOUT, p=2, m=1)
    states, findings = check_layouts(program, calls, dict.fromkeys(TRANSPORTS, "safe"))
    assert states["gloo"] == "safe"
    assert states["nccl-eager"] == HELD
    assert "rank 0 stands at `irecv B0@0 from rank 1`" in findings["nccl-lazy"].message
    assert "until rank 0 has run F stage 0" in findings["nccl-lazy"].message


@pytest.mark.parametrize("text", [compiled.ONE_F_ONE_B, compiled.V_SHAPE, compiled.LAST_FIRST])
def test_what_is_placed_by_the_safe_recipe_is_safe_in_general_too(text: str) -> None:
    """`mirrored` answers for it; the event graph must agree."""
    for p, m in ((2, 3), (3, 4)):
        _, program, calls = compiled.build(text, p=p, m=m)
        object.__setattr__(calls, "order", None)
        safe = dict.fromkeys(TRANSPORTS, "safe")
        assert check_layouts(program, calls, safe) == (safe, {})


def explicit(seed: int) -> str:
    """A random program of two microbatches over four stages that receives early, now and then much too early."""
    choose = random.Random(seed)
    place = choose.choice(["1 if s == 0 or s == 3 else (0 if s == 1 else 2)", "s % 3", "2 - s % 3", "s * 2 % 3"])
    ranks = [eval(place, {"s": s}) for s in range(4)]
    blocks = []
    for rank in range(3):
        mine = [s for s in range(4) if ranks[s] == rank]
        words: list[str] = []
        for i in range(2):
            for chunk, s in enumerate(mine):
                suffix = f"@{chunk}[{i}]" if len(mine) > 1 else f"[{i}]"
                words += [f"RECV_F{suffix}"] if s > 0 else []
                words += [f"F{suffix}", *([f"SEND_F{suffix}"] if s < 3 else [])]
        for i in range(2):
            for chunk, s in reversed(list(enumerate(mine))):
                suffix = f"@{chunk}[{i}]" if len(mine) > 1 else f"[{i}]"
                words += [f"RECV_B{suffix}"] if s < 3 else []
                words += [f"B{suffix}", *([f"SEND_B{suffix}"] if s > 0 else [])]
        for _ in range(choose.randrange(3)):
            at = choose.choice([k for k, word in enumerate(words) if word.startswith("RECV")])
            words.insert(max(0, at - choose.randrange(1, 5)), words.pop(at))
        blocks.append(f"rank r where r == {rank} {{ {' '.join(words)} }}")
    return "\n".join(["schedule random(p = 3, m = 2)", "stages 4", f"place s -> {place}", *blocks])


def outcomes(seeds: range, folder: Path) -> dict[tuple[int, str], tuple[bool, bool]]:
    """For each seed and mode whose calls alone are safe: is the executor said to be safe, and did it end?"""
    found = {}
    for seed in seeds:
        source = Source("test.sched", explicit(seed))
        program = expand(parse(source), {"p": 3, "m": 2})
        problems, timeline = check_structure(program)
        if problems or timeline is None:
            continue
        calls = lower(program, simulate(program))
        alone = check_calls(calls, remedies=0).transports
        states, _ = check_layouts(program, calls, alone)
        for mode in (LAZY, EAGER):
            name = f"nccl-{mode}-warm"
            if alone[name] != "safe":
                continue
            path = folder / f"x{seed}.py"
            path.write_text(emit(program, calls, source=source, transports=states))
            module = load(path)
            module.TRANSPORTS[name] = "safe"  # let it run all the same
            stages = mlp(4)

            timeout = 60 if states[name] == "safe" else 1.5  # what is said to hang needs no patience

            def body(wire: Any, module: Any = module, stages: Any = stages, timeout: float = timeout) -> Any:
                mine = [stages[s] for s, owner in enumerate(module.PLACEMENT) if owner == wire.rank]
                pipe = module.Pipeline(mine, functional.cross_entropy, process_group=wire, timeout=timeout)
                return [pipe.step(torch.zeros(4).long(), torch.zeros(4).long(), train=train) for train in (True, False)]

            ranks = run_ranks(Fabric(3, mode), body)
            found[seed, mode] = states[name] == "safe", all(rank.error is None and not rank.hung for rank in ranks)
    return found


def test_the_executor_hangs_exactly_where_it_is_said_to(tmp_path: Path) -> None:
    found = outcomes(range(60), tmp_path)
    assert {key: value for key, value in found.items() if value[0] != value[1]} == {}
    said = [safe for safe, _ in found.values()]
    assert said.count(True) >= 10
    assert 2 <= said.count(False) <= 10, said
