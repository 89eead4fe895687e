"""Run compiled schedules and compare every gradient and loss with one process. Arguments: a JSON file of cases."""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
import torch.distributed as dist

from tests.support.worker import PATIENCE, Last, Nested, alone, difference, gradients, load, mlp, start


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.squeeze(1) - target).square().mean()


def copies(modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    """The gradients as they are now."""
    return [q.clone() for module in modules for q in gradients(module).values() if q is not None]


def main() -> None:
    rank = start()
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    for case in cases:
        for dtype in (torch.float32, torch.float64):
            began = time.perf_counter()
            compiled = load(case["file"])
            m = compiled.PLAN.microbatches
            torch.manual_seed(7)
            nested = case["name"].startswith("nested")
            loss_fn = mean_square if nested else torch.nn.functional.cross_entropy
            plain = [*(Nested() for _ in range(compiled.STAGES - 1)), Last()] if nested else mlp(compiled.STAGES)
            stages = [stage.to(dtype) for stage in plain]
            reference = copy.deepcopy(stages)
            mine = compiled.stages_of(rank)
            modules = [stages[s] for s in mine]
            pipe = compiled.Pipeline(modules, loss_fn, timeout=PATIENCE)
            places = compiled.PLAN.chunks(rank)
            first = any(map(compiled.PLAN.is_first, places))
            # The microbatches whose losses this rank has, of all copies that end here.
            own = [i for s in places if compiled.PLAN.is_last(s) for i in compiled.PLAN.own_microbatches(s)]
            last = bool(own)
            for step in range(2):  # gradients of two steps add up
                batch, targets = torch.randint(11, (2 * m,)), torch.randint(5, (2 * m,))
                if nested:
                    batch = torch.randn(2 * m, 4, dtype=dtype)
                losses = pipe.step(batch if first else None, targets if last else None)
                expected = alone(reference, loss_fn, batch.chunk(m), targets.chunk(m))
                if step == 0:
                    before = copies(modules)
                    evaluated = pipe.step(batch, targets, train=False)
                    after = copies(modules)
                    assert len(before) == len(after), "evaluation made gradients"
                    assert all(map(torch.equal, before, after)), "evaluation changed gradients"
                    if last:
                        assert torch.equal(evaluated, losses), (evaluated, losses)
                assert (losses is not None) == last
                if last:
                    assert losses.shape == (len(own),)
                    torch.testing.assert_close(
                        losses, expected[own], rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=0
                    )
            worst = 0.0
            for s in mine:
                ours, theirs = gradients(stages[s]), gradients(reference[s])
                for name, theirs_one in theirs.items():
                    worst = max(worst, difference(ours[name], theirs_one))
            bound = 1e-5 if dtype == torch.float32 else 1e-6
            print(f"{case['name']} {dtype} worst {worst:.1e} in {time.perf_counter() - began:.2f} s")
            assert worst <= (0.0 if case["exact"] and dtype == torch.float32 else bound), (case["name"], dtype, worst)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
