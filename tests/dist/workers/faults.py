"""Train until something goes wrong, again and again. Arguments: a generated file, then `fault:rank it befalls` ..."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.worker import load, mlp, start

PATIENT = 90.0  # seconds, where it is not time that runs out
# In sums of the gradients of copies, and what does these; or in what all ranks do together.
SUMS = {"kill in the sum": "finish", "kill in a reduction": "reduce", "kill with a child": "finish"}
LEAVING_A_CHILD = ("kill with a child", "kill at clipping with a child")
TIMED = ("late", "stop", "hang")


class Faulty(nn.Module):
    """A stage that fails at a microbatch of the second step."""

    def __init__(self, inner: nn.Module, fault: str, m: int, microbatch: int = 1) -> None:
        super().__init__()
        self.inner = inner
        self.fault = fault
        self.at = m + 1 + microbatch
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            if self.fault == "raise":
                raise ValueError("a fault made on purpose")
            if self.fault == "interrupt":
                raise KeyboardInterrupt
            if self.fault == "pause":
                time.sleep(1)
            if self.fault in ("kill", "kill in a pause"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "shape":
                return self.inner(x)[:, :3]
        return self.inner(x)


def leave_a_child() -> None:
    """As one that loads data: it has all of this process's sockets open. The test ends it."""
    if (child := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    print("CHILD", child, flush=True)


def patience(fault: str, make: Callable[[float], Any], m: int, group: dist.ProcessGroup) -> float:
    """The timeout to try a fault with: more than a step takes on this machine, as busy as it is."""
    if fault not in TIMED:
        return PATIENT
    pipe = make(PATIENT)
    for _ in range(3):  # the first one is slow, and no measure
        began = time.monotonic()
        pipe.step(torch.randint(11, (2 * m,)), torch.randint(5, (2 * m,)))
        seconds = time.monotonic() - began
    slowest = torch.tensor(seconds)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
    return max(2.0, 20 * float(slowest))


def attempt(path: str, fault: str, victim: int, rank: int) -> str:
    """Train on a group of its own until the fault; how it ended."""
    group = dist.new_group()
    compiled = load(path)
    m = compiled.PLAN.microbatches
    torch.manual_seed(0)  # what several ranks hold begins equal
    stages = mlp(compiled.STAGES)
    mine: list[nn.Module] = [stages[s] for s in compiled.stages_of(rank)]
    hit = rank == victim

    def make(timeout: float) -> Any:
        more = {"timeout": timeout, "shared_memory": os.environ.get("SHARED_MEMORY") != "no"}
        return compiled.Pipeline(mine, nn.functional.cross_entropy, process_group=group, **more)

    timeout = patience(fault, make, m, group)
    if hit and fault not in SUMS:
        mine[0] = Faulty(mine[0], fault, m)
    elif fault == "kill in a pause" and rank == 0:  # the first that it sees of it is a message that cannot be posted
        mine[0] = Faulty(mine[0], "pause", m, microbatch=2)
    if hit and fault == "chunks":
        mine.append(nn.Identity())
    if hit and fault == "file":
        compiled.PLAN.__dict__["fingerprint"] = "another"
    pipe = None
    try:
        pipe = make(timeout)
        for step in range(3):
            rows = 2 * m + (hit and fault in ("rows", "first rows") and step == (fault == "rows"))
            if hit and fault == "late" and step == 1:
                time.sleep(4 * timeout)
            if hit and fault == "backward" and step == 1:
                for parameter in mine[0].parameters():
                    parameter.register_hook(lambda gradient: 1 / 0)
            if hit and fault in SUMS and step == 1:
                setattr(compiled.Copies, SUMS[fault], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            if hit and fault in LEAVING_A_CHILD and step == 0:
                leave_a_child()
            pipe.step(torch.randint(11, (rows,)), torch.randint(5, (rows,)))
            if fault == "saving" and hit:
                compiled._STAY_FOR_OTHERS = PATIENT  # as long as the others need to be in the next step
                pipe.state_dict(nn.Identity())  # which its stage is no part of
            if fault == "leave at the timeline":
                if hit:
                    sys.exit()
                pipe.timeline()
            if fault.startswith("kill at clipping"):
                store = dist.distributed_c10d._get_default_store()
                store.set(f"stepped/{rank}", "")
                if hit:  # when nobody is in a step any more
                    store.wait([f"stepped/{each}" for each in range(dist.get_world_size())])
                    os.kill(os.getpid(), signal.SIGKILL)
            if fault not in (*SUMS, "saving"):
                pipe.clip_grad_norm_("much" if hit and fault == "clipping" else 1.0)
    except compiled.PipelineError as error:
        if pipe is not None:  # once broken, it stays so
            with pytest.raises(compiled.PipelineError, match="after an earlier failure"):
                pipe.step()
        return str(error)
    except KeyboardInterrupt:
        return "INTERRUPTED"
    return "nothing happened"


def main() -> None:
    rank = start()
    for case in sys.argv[2:]:
        fault, victim = case.split(":")
        print(f"CASE {case}\n{attempt(sys.argv[1], fault, int(victim), rank)}")


if __name__ == "__main__":
    main()
