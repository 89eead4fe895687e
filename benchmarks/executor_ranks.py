"""What `executor.py` starts on every rank. Arguments: the part, and a folder with the task and for what is found."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import pipelining  # noqa: E402
from torch.nn import functional  # noqa: E402

from benchmarks.executor_split import HEADS, LAYERS, SEQUENCE, WIDTH, Both, split  # noqa: E402
from examples.train_gpt import Block  # noqa: E402


def costs(task: dict[str, Any], rank: int) -> Any:
    """Seconds of one block by kind, all ranks at work at once; of a message, half of there and back at the fastest."""
    torch.manual_seed(0)
    both = Both(nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS // 2))), torch.randn(1, SEQUENCE, WIDTH))
    found: dict[str, list[float]] = {name: [] for name in ("F", "I", "W", "B", "send")}
    tensor = torch.empty(1, SEQUENCE, WIDTH)
    for turn in range(task["rounds"] + 2):
        dist.barrier()
        began = time.perf_counter()
        for mine in (True, False):
            if (rank == 0) == mine:
                dist.send(tensor, 1 - rank)
            else:
                dist.recv(tensor, 1 - rank)
        seconds = [("send", (time.perf_counter() - began) / 2)]
        seconds += [(kind, each / LAYERS * 2) for split in (True, False) for kind, each in both.by_kind(split)]
        for kind, each in seconds if turn > 1 else ():
            found[kind].append(each)
    return {kind: min(each) if kind == "send" else median(each) for kind, each in found.items()}


# ------------------------------------------------------------------ several ranks


def load(folder: Path, name: str, text: str) -> Any:
    """Import a generated file."""
    path = folder / f"{name}_{dist.get_rank()}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stages_of(blocks: list[nn.Module], layers: Sequence[int]) -> list[nn.Module]:
    """Copies of the blocks in stages of so many each."""
    ends = [*accumulate(layers, initial=0)]
    assert ends[-1] == len(blocks)
    return [nn.Sequential(*copy.deepcopy(blocks[a:b])) for a, b in pairwise(ends)]


Step = Callable[[torch.Tensor, torch.Tensor], Any]


def evenly(blocks: list[nn.Module], count: int) -> list[int]:
    return [len(blocks) // count] * count


def our_step(folder: Path, name: str, made: Any, blocks: list[nn.Module], **options: Any) -> Step:
    """`made`: a schedule's text, its bubble, and how many of the blocks its stages hold, if not as many each."""
    text, _, layers = made
    compiled = load(folder, name, text)
    stages = stages_of(blocks, layers or evenly(blocks, compiled.STAGES))
    mine = [stages[s] for s, owner in enumerate(compiled.PLACEMENT) if owner == dist.get_rank()]
    step: Step = compiled.Pipeline(mine, functional.mse_loss, **options).step
    return step


# PyTorch's schedules: the stages of a rank among `count`, as they want them placed.
LOOPED: Callable[[int, int, int], list[int]] = lambda rank, p, count: list(range(rank, count, p))  # noqa: E731
V_SHAPED: Callable[[int, int, int], list[int]] = lambda rank, p, count: [rank, count - 1 - rank]  # noqa: E731
TORCH: dict[str, tuple[Any, int, Any]] = {
    "GPipe": (pipelining.ScheduleGPipe, 1, LOOPED),
    "1F1B": (pipelining.Schedule1F1B, 1, LOOPED),
    "Interleaved1F1B": (pipelining.ScheduleInterleaved1F1B, 2, LOOPED),
    "InterleavedZeroBubble": (pipelining.ScheduleInterleavedZeroBubble, 2, LOOPED),
    "ZBVZeroBubble": (pipelining.ScheduleZBVZeroBubble, 2, V_SHAPED),
    "DualPipeV": (pipelining.ScheduleDualPipeV, 2, V_SHAPED),
}


def torch_step(name: str, blocks: list[nn.Module], m: int) -> Step:
    make, chunks, place = TORCH[name]
    rank, p = dist.get_rank(), dist.get_world_size()
    count = chunks * p
    numbers = place(rank, p, count)
    modules = stages_of(blocks, evenly(blocks, count))
    stages = [pipelining.PipelineStage(modules[s], s, count, torch.device("cpu")) for s in numbers]
    schedule = make(stages[0] if chunks == 1 else stages, m, loss_fn=functional.mse_loss)
    first, last = 0 in numbers, count - 1 in numbers

    def step(batch: torch.Tensor, targets: torch.Tensor) -> Any:
        losses: list[torch.Tensor] = []
        given = (batch,) if first else ()
        return schedule.step(*given, **({"target": targets, "losses": losses} if last else {}))

    return step


def by_hand(module: nn.Module, rank: int, m: int) -> Step:
    """1F1B on two ranks as a person would write it for these stages alone: no checks, no names, no way out of a hang.

    What it takes is for torch's calls, which nobody is spared: as long as they take, so long takes every executor.
    """
    group, peer, seed = dist.group.WORLD, 1 - rank, torch.tensor(1 / m)
    assert group is not None

    def receive(tag: int) -> tuple[torch.Tensor, Any]:
        tensor = torch.empty(1, 2)
        return tensor, group.recv([tensor], peer, tag)

    def first(batch: torch.Tensor, targets: torch.Tensor) -> None:
        inputs, outputs, sent, coming = batch.split(1), [], [], []
        for i in range(m + 1):
            if i < m:
                outputs.append(module(inputs[i]))
                output = outputs[-1].detach()
                sent.append((output, group.send([output], peer, i)))
                coming.append(receive(m + i))
            if i > 0:
                gradient, work = coming.pop(0)
                work.wait()
                outputs.pop(0).backward(gradient)
                sent.pop(0)[1].wait()

    def last(batch: torch.Tensor, targets: torch.Tensor) -> None:
        wanted, sent, coming = targets.split(1), [], [receive(0)]
        for i in range(m):
            x, work = coming.pop(0)
            work.wait()
            if i + 1 < m:
                coming.append(receive(i + 1))
            x.requires_grad_()
            functional.mse_loss(module(x), wanted[i]).backward(seed)
            sent.append((x.grad, group.send([x.grad], peer, m + i)))
            if i > 0:
                sent.pop(0)[1].wait()
        sent.pop(0)[1].wait()

    return first if rank == 0 else last


def host(task: dict[str, Any], rank: int) -> Any:
    """CPU seconds of the main thread per computation; under `compute` those of the computations by themselves.

    Not of the process: gloo's own thread waits for sockets at a rate that depends on what else the machine does.
    """
    m, folder = 64, Path(sys.argv[2])
    blocks: list[nn.Module] = [nn.Linear(2, 2) for _ in range(2)]
    module, gradient = copy.deepcopy(blocks[rank]), torch.ones(1, 2)

    def compute(batch: torch.Tensor, targets: torch.Tensor) -> None:
        for x, y in zip(batch.split(1), targets.split(1), strict=True):
            if rank == 0:
                module(x).backward(gradient)
            else:
                (functional.mse_loss(module(x.detach().requires_grad_()), y) / m).backward()

    steps: dict[str, Step] = {"compute": compute, "by hand": by_hand(copy.deepcopy(blocks[rank]), rank, m)}
    steps |= {f"ours {name}": our_step(folder, name, made, blocks) for name, made in task["ours"].items()}
    steps |= {f"torch {name}": torch_step(name, blocks, m) for name in ("1F1B", "GPipe")}
    batch, targets = torch.randn(m, 2), torch.randn(m, 2)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(task["rounds"] + 2):
        for name, step in steps.items():
            dist.barrier()
            began = time.thread_time()
            for _ in range(3):
                step(batch, targets)
            if turn > 1:
                found[name].append((time.thread_time() - began) / 3 / m / 2)
    return found


def speed(task: dict[str, Any], rank: int) -> Any:
    """Seconds of the wall and of CPU time per step."""
    m, folder = task["m"], Path(sys.argv[2])
    torch.manual_seed(0)
    blocks: list[nn.Module] = [Block(WIDTH, HEADS) for _ in range(LAYERS)]
    whole = nn.Sequential(*copy.deepcopy(blocks))

    def alone(batch: torch.Tensor, targets: torch.Tensor) -> None:
        """The same microbatches in one process, while the other one waits."""
        if rank == 0:
            for x, y in zip(batch.chunk(m), targets.chunk(m), strict=True):
                (functional.mse_loss(whole(x), y) / m).backward()

    half = nn.Sequential(*copy.deepcopy(blocks[: LAYERS // 2]))

    def halves(batch: torch.Tensor, targets: torch.Tensor) -> None:
        """Both processes at once, each with half of the layers, and no messages."""
        for x, y in zip(batch.chunk(m), targets.chunk(m), strict=True):
            (functional.mse_loss(half(x), y) / m).backward()

    steps: dict[str, Step] = {"alone": alone, "halves": halves}
    ours = {f"ours {name}": our_step(folder, name, made, blocks) for name, made in task["ours"].items()}
    theirs = {f"torch {name}": torch_step(name, blocks, m) for name in TORCH if name != "DualPipeV" or m >= 4}
    mixed = [*zip(ours.items(), theirs.items(), strict=False)]
    steps |= dict(each for pair in mixed for each in pair)  # ours and theirs in turn
    steps |= ours | theirs
    batch, targets = torch.randn(m, SEQUENCE, WIDTH), torch.randn(m, SEQUENCE, WIDTH)
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(task["rounds"] + 1):
        for name, step in steps.items():
            dist.barrier()
            began, cpu_began = time.perf_counter(), time.process_time()
            step(batch, targets)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            if turn:
                wall[name].append(seconds)
                cpu[name].append(cpu_seconds)
    return {"wall": wall, "cpu": cpu}


class Taken:
    """The main thread's CPU time of computations, by kind, stage and microbatch, in the order of running."""

    def __init__(self) -> None:
        self.now: dict[tuple[str, int, int], float] = {}

    def around(self, kind: Callable[..., str], method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of PyTorch's stages, with its time noted."""

        def timed(stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            result = method(stage, chunk, *args, **kwargs)
            self.now[kind(**kwargs), stage.stage_index, chunk] = time.thread_time() - began
            return result

        return timed


def replay(task: dict[str, Any], rank: int) -> Any:
    """What the computations of a step take by themselves, and what the main thread needs besides."""
    m, folder = task["m"], Path(sys.argv[2])
    torch.manual_seed(0)
    blocks: list[nn.Module] = [Block(WIDTH, HEADS) for _ in range(LAYERS)]
    whole = nn.Sequential(*copy.deepcopy(blocks))
    batch, targets = torch.randn(m, SEQUENCE, WIDTH), torch.randn(m, SEQUENCE, WIDTH)
    taken = Taken()
    kind_of: dict[str, Callable[..., str]] = {
        "forward_one_chunk": lambda **_: "F",
        "backward_one_chunk": lambda full_backward=True, **_: "B" if full_backward else "I",
        "backward_weight_one_chunk": lambda **_: "W",
    }
    for method, kind in kind_of.items():
        setattr(pipelining.PipelineStage, method, taken.around(kind, getattr(pipelining.PipelineStage, method)))

    def run_ours(pipe: Any) -> dict[tuple[str, int, int], float]:
        pipe.step(batch, targets)
        return {(call.kind, call.stage, call.microbatch): end - begin for call, begin, end in pipe._marks}

    def run_theirs(step: Step) -> dict[tuple[str, int, int], float]:
        taken.now = {}
        step(batch, targets)
        return taken.now

    runs: dict[str, Callable[[], dict[tuple[str, int, int], float]]] = {}
    for name, made in task["ours"].items():
        step: Any = our_step(folder, name, made, blocks, trace=True)
        step.__self__._clock.now = time.thread_time
        runs[f"ours {name}"] = partial(run_ours, step.__self__)
    runs |= {f"torch {name}": partial(run_theirs, torch_step(name, blocks, m)) for name in TORCH}
    seen: dict[str, list[dict[tuple[str, int, int], float]]] = {name: [] for name in runs}
    besides: dict[str, list[float]] = {name: [] for name in runs}
    alone = []
    for turn in range(task["rounds"] + 1):
        began = time.thread_time()
        for x, y in zip(batch.chunk(m), targets.chunk(m), strict=True):
            (functional.mse_loss(whole(x), y) / m).backward()
        alone.append(time.thread_time() - began)
        for name, run in runs.items():
            dist.barrier()
            began = time.thread_time()
            each = run()
            if turn:
                seen[name].append(each)
                besides[name].append(time.thread_time() - began - sum(each.values()))
    return {
        "alone": median(alone[1:]),
        "ops": {
            name: [[*key, median(each[key] for each in rounds)] for key in rounds[0]] for name, rounds in seen.items()
        },
        "besides": {name: median(each) for name, each in besides.items()},
    }


def trace(task: dict[str, Any], rank: int) -> Any:
    """CPU seconds per step, with and without."""
    m, folder = task["m"], Path(sys.argv[2])
    blocks: list[nn.Module] = [Block(WIDTH, HEADS) for _ in range(2)]
    ((name, made),) = task["ours"].items()
    steps = {
        "plain": our_step(folder, name, made, blocks),
        "traced": our_step(folder, f"{name}_traced", made, blocks, trace=True),
    }
    batch, targets = torch.randn(m, SEQUENCE, WIDTH), torch.randn(m, SEQUENCE, WIDTH)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(task["rounds"] + 1):
        for which, step in steps.items():
            dist.barrier()
            began = time.process_time()
            step(batch, targets)
            if turn:
                found[which].append(time.process_time() - began)
    return found


def memory(task: dict[str, Any], rank: int) -> Any:
    """The most bytes that are alive, and the sizes of the stages that predict it."""
    from tests.unit.test_executor_memory import ROWS, Block, loss_fn, measure, peak_of, with_gradients
    from tests.unit.test_executor_memory import WIDTH as NARROW

    folder, found = Path(sys.argv[2]), {}
    for name, (text, *_) in task["ours"].items():
        compiled = load(folder, name, text)
        last, m = compiled.STAGES - 1, compiled.PLAN.microbatches
        stages = [with_gradients(nn.Sequential(*(Block() for _ in range(4)))) for _ in range(last + 1)]
        sizes = [astuple(measure(each, first=s == 0, last=s == last)) for s, each in enumerate(stages)]
        pipe = compiled.Pipeline([stages[s] for s in compiled.stages_of(rank)], loss_fn)
        batch, targets = torch.randn(m * ROWS, NARROW), torch.randn(m * ROWS, NARROW)
        found[name] = {"sizes": sizes, "peak": peak_of(pipe, partial(pipe.step, batch, targets), steps=3)}
    return found


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    task = json.loads((folder / "task.json").read_text())
    work: dict[str, Callable[[dict[str, Any], int], Any]] = {
        "split": split,
        "costs": costs,
        "host": host,
        "speed": speed,
        "replay": replay,
        "trace": trace,
        "memory": memory,
    }
    found = work[part](task, dist.get_rank())
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
