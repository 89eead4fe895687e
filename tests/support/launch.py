"""Start the ranks of a job as real processes, and never leave one behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. `returncode` is None for one that had to be killed when time was up."""

    returncode: int | None
    output: str


def launch(
    script: str | Path,
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    timeout: float = 120,
    meddle: Callable[[list[subprocess.Popen[bytes]], Callable[[int], str]], None] | None = None,
) -> list[Outcome]:
    """Run `script` on `ranks` processes with env:// rendezvous; rank 0 holds the store.

    `meddle(processes, output_of)` may kill or stop some of them while they run. All are killed when for `timeout`
    seconds none has ended or said anything: how long they take in all depends on what else the machine does.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{rank}" for rank in range(ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, path in enumerate(paths):
                environment = {
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT),
                    "PYTHONUNBUFFERED": "1",
                }
                with path.open("wb") as out:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, str(script), *arguments], env=environment, stdout=out, stderr=out
                        )
                    )
            if meddle is not None:
                meddle(processes, lambda rank: paths[rank].read_text(errors="replace"))
            ended, heard, last = 0, 0, time.monotonic()
            while ended < ranks and time.monotonic() - last < timeout:
                ended = sum(process.poll() is not None for process in processes)
                if (now := ended + sum(path.stat().st_size for path in paths)) > heard:
                    heard, last = now, time.monotonic()
                time.sleep(0.02)
            codes = [process.poll() for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        return [Outcome(codes[rank], path.read_text(errors="replace")) for rank, path in enumerate(paths)]


def succeed(outcomes: Sequence[Outcome]) -> None:
    """Fail with the output of the first rank that did not end well."""
    for rank, outcome in enumerate(outcomes):
        if outcome.returncode != 0:
            raise AssertionError(f"rank {rank} ended with {outcome.returncode}:\n{outcome.output}")
