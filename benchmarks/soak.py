"""Train for thousands of steps while ranks are killed at random and the job goes on from its last checkpoint.

    python benchmarks/soak.py                            # 10,000 steps, 20 kills: some minutes
    python benchmarks/soak.py --steps 200 --kills 1      # a short one

Four ranks over gloo. At every step the loss must be that of one process that trains without a pipeline, to the bit;
after a kill every other rank must have ended by itself, in time, with a message; and a rank must need no more memory at
the end of a stretch than a while after its beginning. Exit status 1 where one of these is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

RANKS, M, ROWS, WIDTH = 4, 4, 8, 32
SCHEDULE = "1f1b"  # whose gradients are one process's to the bit
PATIENCE = 30.0  # seconds until ranks notice that one is silent
LIMIT = 120.0  # seconds in which all ranks have ended after a kill
SETTLED = 300  # steps after which memory is looked at for the first time
GROWTH = 4.0  # MiB that it may differ at the end: allocators round


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(RANKS)]
    made[-1].append(nn.Linear(WIDTH, 5))
    return list(made)


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randint(5, (ROWS,), generator=generator)


def optimizer_of(modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(modules.parameters(), lr=1e-3)


def one_process(steps: int) -> list[float]:
    """The losses of a process that accumulates the same microbatches."""
    model = nn.Sequential(*stages())
    optimizer = optimizer_of(model)
    losses = []
    for step in range(steps):
        batch, targets = data(step)
        parts = []
        for x, y in zip(batch.chunk(M), targets.chunk(M), strict=True):
            loss = functional.cross_entropy(model(x), y)
            (loss / M).backward()
            parts.append(loss.detach())
        losses.append(float(torch.stack(parts).mean()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


# ------------------------------------------------------------------ a rank


def rank_main(folder: Path, steps: int, every: int) -> None:
    """Train from the last step that all ranks have saved."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sys.path.insert(0, str(folder))
    import soak_pipeline  # type: ignore[import-not-found]

    stage = stages()[rank]
    optimizer = optimizer_of(stage)
    pipe = soak_pipeline.Pipeline(stage, functional.cross_entropy, timeout=PATIENCE)
    begin = last_saved(folder)
    if begin:
        saved = torch.load(folder / f"{begin}.{rank}", weights_only=True)
        stage.load_state_dict(saved["stage"])
        optimizer.load_state_dict(saved["optimizer"])
    memory: list[float] = []
    with (folder / "losses").open("a") as out:
        for step in range(begin, steps):
            losses = pipe.step(*data(step))
            optimizer.step()
            optimizer.zero_grad()
            if losses is not None:
                out.write(json.dumps([step, float(losses.mean())]) + "\n")
                out.flush()
            if (step + 1) % every == 0:
                save(folder / f"{step + 1}.{rank}", {"stage": stage.state_dict(), "optimizer": optimizer.state_dict()})
            if step - begin >= SETTLED and (step - begin) % 50 == 0:
                memory.append(resident())
    if memory:
        print(f"MEMORY {rank} {memory[0]:.1f} {memory[-1]:.1f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def save(path: Path, state: dict[str, Any]) -> None:
    """All or nothing, whenever the process is killed."""
    unfinished = path.with_suffix(path.suffix + ".unfinished")
    torch.save(state, unfinished)
    unfinished.rename(path)


def last_saved(folder: Path) -> int:
    """The last step that all ranks have saved, 0 for none."""
    saved = {path.name for path in folder.iterdir()}
    numbers = {int(name.split(".")[0]) for name in saved if name.endswith(".0")}
    return max((n for n in numbers if all(f"{n}.{rank}" in saved for rank in range(RANKS))), default=0)


def resident() -> float:
    """MiB of this process in main memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# ------------------------------------------------------------------ the disturber


def start(folder: Path, options: argparse.Namespace) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--steps", str(options.steps), "--save-every", str(options.save_every)]
    return [
        subprocess.Popen(
            [*command, "--rank-in", str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]


def reached(folder: Path) -> int:
    """The steps that the last stage has had a loss of, over all stretches."""
    path = folder / "losses"
    return sum(1 for _ in path.open()) if path.exists() else 0


def stretch(folder: Path, options: argparse.Namespace, kill_after: int | None, victim: int) -> Iterator[str]:
    """Run until the end, or until `kill_after` more steps and the victim's death; what was wrong."""
    ranks = start(folder, options)
    before = reached(folder)
    try:
        if kill_after is None:
            for rank in ranks:
                rank.wait()
        else:
            while reached(folder) < before + kill_after and all(rank.poll() is None for rank in ranks):
                time.sleep(0.002)
            ranks[victim].send_signal(signal.SIGKILL)
            deadline = time.monotonic() + LIMIT
            for rank in ranks:
                try:
                    rank.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    yield f"a rank still ran {LIMIT:g} s after rank {victim} was killed"
    finally:
        for rank in ranks:
            rank.kill()
    for number, rank in enumerate(ranks):
        said, _ = rank.communicate()
        if kill_after is None and rank.returncode:
            yield f"rank {number} ended with {rank.returncode}:\n{said}"
        if kill_after is not None and number != victim and rank.returncode and "pipeline one_f_one_b" not in said:
            yield f"rank {number} did not say why it ended:\n{said}"
        for line in said.splitlines():
            if line.startswith("MEMORY"):
                _, _, early, late = line.split()
                print(f"  rank {number}: {early} MiB after {SETTLED} steps, {late} MiB at the end", flush=True)
                if float(late) - float(early) > GROWTH:
                    yield f"rank {number}'s memory grew from {early} to {late} MiB"


def wrong_losses(folder: Path, expected: list[float]) -> Iterator[str]:
    """Steps of any stretch whose loss is not that of one process, and steps that are missing."""
    seen = set()
    for line in (folder / "losses").read_text().splitlines():
        step, loss = json.loads(line)
        seen.add(step)
        if loss != expected[step]:
            yield f"step {step}: loss {loss!r}, one process {expected[step]!r}"
    if missing := set(range(len(expected))) - seen:
        yield f"{len(missing)} steps have no loss, as step {min(missing)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of whom and when to kill")
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_in:
        rank_main(options.rank_in, options.steps, options.save_every)
        return 0

    torch.set_num_threads(1)  # as the ranks have
    import pipedsl.api as pipedsl
    from pipedsl.emit import emit_result

    chance = random.Random(options.seed)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled = emit_result(pipedsl.verify(pipedsl.load(SCHEDULE), {"p": RANKS, "m": M}))
        (folder / "soak_pipeline.py").write_text(compiled)
        for kill in range(options.kills):
            after, victim = chance.randrange(1, 2 * options.steps // (options.kills + 1)), chance.randrange(RANKS)
            problems += stretch(folder, options, after, victim)
            print(
                f"kill {kill + 1}: rank {victim} after {reached(folder)} steps; on from {last_saved(folder)}",
                flush=True,
            )
        problems += stretch(folder, options, None, -1)
        problems += wrong_losses(folder, one_process(options.steps))
    for problem in problems:
        print(f"WRONG {problem}")
    print(f"{options.steps} steps, {options.kills} kills: {len(problems) or 'nothing'} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
