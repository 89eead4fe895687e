"""REDUCE in a compiled schedule: a stage's gradients are summed there, on threads and on what behaves as NCCL."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipedsl.runtime import reductions
from pipedsl.runtime.position import Position
from tests.support import compiled
from tests.support.compiled import TWO_WAYS_REDUCE
from tests.support.nccl_like import LAZY, Fabric, run_ranks
from tests.support.on_threads import check, cut, data, errors, pipelines, reference_step, results
from tests.support.worker import alone, difference, gradients, load, mlp

NOWHERE = TWO_WAYS_REDUCE.replace("REDUCE@down", "").replace("REDUCE@up", "")


@pytest.mark.parametrize("text", [TWO_WAYS_REDUCE, NOWHERE])
def test_a_stage_is_summed_where_the_schedule_says(text: str, tmp_path: Path) -> None:
    """While a rank's first stage still runs, its last has the gradient of both copies already: not without REDUCE."""
    module = load(compiled.compile_to(tmp_path / "x.py", text, p=2, m=3))
    torch.manual_seed(9)
    reference = mlp(2)
    held = cut(module, reference)
    seen: dict[int, list[torch.Tensor | None]] = {}

    def body(pipe: Any, rank: int) -> None:
        first, last = held[rank][rank], held[rank][1 - rank]  # stages 0 and 1

        def look(gradient: torch.Tensor) -> None:
            seen[rank] = [None if x is None else x.clone() for x in gradients(last).values()]

        def watch(module: nn.Module, given: Any, output: torch.Tensor) -> None:
            output.register_hook(look)

        first.register_forward_hook(watch)
        pipe.step(*data(module))

    results(pipelines(module, held, body))
    reference_step(module, reference, *data(module))
    check(module, held, reference)
    for rank in range(2):
        pairs = zip(seen[rank], gradients(held[rank][1 - rank]).values(), strict=True)
        final = [a is not None and b is not None and torch.equal(a, b) for a, b in pairs]
        assert all(final) if text == TWO_WAYS_REDUCE else not any(final)


def test_the_parameters_of_a_loss_are_the_last_stages(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", TWO_WAYS_REDUCE, p=2, m=2))

    class Loss(nn.Linear):
        def forward(self, x: Any, targets: Any = None) -> Any:
            return functional.cross_entropy(super().forward(x), targets)

    torch.manual_seed(10)
    reference, loss = mlp(2), Loss(5, 5)
    held, losses = cut(module, reference), [copy.deepcopy(loss) for _ in range(2)]

    def work(wire: Any) -> Any:
        pipe = module.Pipeline(held[wire.rank], losses[wire.rank], process_group=wire, timeout=20)
        return pipe.step(*data(module))

    results(run_ranks(Fabric(2, LAZY), work))
    batch, targets = data(module)
    alone(reference, loss, list(batch.chunk(4)), list(targets.chunk(4)))
    check(module, held, reference)
    for each in losses:
        assert difference(each.weight.grad, loss.weight.grad) <= 1e-5


def test_a_failure_names_the_reduction_and_its_line(tmp_path: Path) -> None:
    """A rank that fails elsewhere ends the other, which waits for it at a REDUCE."""
    module = load(compiled.compile_to(tmp_path / "x.py", TWO_WAYS_REDUCE, p=2, m=1))
    held = cut(module, mlp(2))
    pipes: dict[int, Any] = {}
    waits = "REDUCE of stage 0/down (test.sched:8): "

    def fail(gradient: torch.Tensor) -> None:
        end = time.monotonic() + 15
        while time.monotonic() < end and not pipes[0]._watch.position.report()["where"].startswith(waits):
            time.sleep(0.001)
        raise ArithmeticError("no gradient")

    def body(pipe: Any, rank: int) -> None:
        pipes[rank] = pipe
        pipe.step(*data(module))

    for parameter in held[1][1].parameters():  # the copy of stage 0 on rank 1
        parameter.register_hook(fail)
    found = errors(pipelines(module, held, body, post_mortem=tmp_path / "states"))
    (state,) = (json.loads(path.read_text()) for path in (tmp_path / "states").glob("*.rank0.json"))
    assert state["at"]["call"].startswith(waits)
    assert (state["at"]["line"], state["at"]["waits_for"]) == (8, 1)
    assert all("rank 1 failed at B of stage 0/up, microbatch 0 (test.sched:8): Arithm" in error for error in found)
    assert f"rank 0 was at {waits}comparing which gradients there are of `0.weight` of stage 0" in found[0]


def test_whom_a_sum_over_replicas_is_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these alone one can be lost there: in the REDUCE of stage 0, and at the end of a step for stage 1."""
    plan: Any = SimpleNamespace(stages=2, source="x.sched")
    call: Any = SimpleNamespace(kind="REDUCE", stage=0, describe=lambda source: f"REDUCE of stage 0 ({source}:1)")
    watch: Any = SimpleNamespace(position=Position(plan.source), stop_if_failed=Mock())
    stood: list[tuple[str, list[int]]] = []

    def stand(*_: Any) -> None:
        report = watch.position.report()
        stood.append((report["where"], report["among"]))

    copies, tied = Mock(), Mock()
    sums = reductions.Reductions(plan, {}, [], [call], copies, tied, watch)
    first, second = parts = [Mock(process_group=[0, 4]), Mock(process_group=[1, 5])]
    sums.parts, sums._alone = list(parts), {first: 0, second: 1}
    sums._reduced = {0: [Mock(replicas=[0, 4, 8], reduce=stand)]}
    monkeypatch.setattr(reductions.dist, "get_process_group_ranks", lambda group: group)
    monkeypatch.setattr(reductions, "reduce_gradients", stand)
    sums.reduce(call)
    sums.finish()
    does = "reducing gradients over replicas"
    here = f"REDUCE of stage 0 (x.sched:1): {does}"
    assert stood == [(here, [0, 4, 8]), (here, [0, 4]), (does, [1, 5])]
    assert watch.stop_if_failed.call_count == len(stood)


def test_the_replicas_of_a_stage_are_known_where_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wraps a module may exchange something with these by itself."""

    class Sharded:
        replicas, reduced = (1, 5), False

    monkeypatch.setattr(reductions, "ShardedChunk", Sharded)
    monkeypatch.setattr(reductions, "replicated_parts", lambda modules: [m for m in modules if m.process_group])
    monkeypatch.setattr(reductions.dist, "get_process_group_ranks", lambda group: group)
    plan: Any = SimpleNamespace(stages=4, source="x.sched")
    watch: Any = SimpleNamespace(position=Position(plan.source))
    modules: Any = {0: Mock(process_group=[0, 4]), 2: Mock(process_group=[]), 3: Mock(process_group=[])}
    sums = reductions.Reductions(plan, modules, [], [], Mock(), Mock(), watch)
    sums.learn({0: Mock(), 2: Sharded(), 3: Mock()})  # type: ignore[dict-item]
    for stage, replicas in {0: [0, 4], 2: [1, 5], 3: []}.items():
        watch.position.at = SimpleNamespace(kind="F", stage=stage, peer=-1, describe=lambda source: "F")
        assert watch.position.report()["replicas"] == replicas


def test_labels_and_words(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", TWO_WAYS_REDUCE, p=2, m=1))
    sums = [call for call in module.read_calls(module.PLAN, 0) if call.kind == "REDUCE"]
    assert [call.label for call in sums] == ["REDUCE s1/up", "REDUCE s0/down"]
    assert [call.describe("x.sched") for call in sums] == [
        "REDUCE of stage 1/up (x.sched:8)",
        "REDUCE of stage 0/down (x.sched:8)",
    ]
    assert not any(call.kind == "REDUCE" for call in module.forward_only(module.read_calls(module.PLAN, 0)))


def test_it_has_a_name_in_torchs_profiler(tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", compiled.SPLIT_REDUCE, p=1, m=1))
    (stage,) = mlp(1)

    def work(wire: Any) -> list[str]:
        pipe = module.Pipeline(stage, functional.cross_entropy, process_group=wire, timeout=20)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            pipe.step(*data(module))
            pipe.step(*data(module), train=False)
        return [event.name for event in profile.events()]

    (names,) = results(run_ranks(Fabric(1, LAZY), work))
    assert names.count("REDUCE s0") == 1
    assert names.count("F s0 mb0") == 2
