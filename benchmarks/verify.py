"""How long verifying takes, from text to verdict on all transports, beside PyTorch's lowering of the same order.

    python benchmarks/verify.py                  # all rows: some minutes, most of them PyTorch's
    python benchmarks/verify.py --rows iw,1f1b   # some of them
    python benchmarks/verify.py --no-torch --repeat 3
    python benchmarks/verify.py --profile iw     # where the time goes

Each measurement is a process of its own, pipedsl's and PyTorch's in turn; peak memory is the process's, with its
imports. pipedsl's time is from reading the file to the verdict. PyTorch's is that of `_prepare_schedule_with_comms`,
what its runtime does with an order before it runs it: `_validate_schedule` and three passes, of which `_add_send_recv`
is shown apart. It starts with the operations in memory and decides nothing about transports. Of several runs the
fastest counts. Growth with size is of CPU time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
TIME_LIMIT = 600  # seconds for one process


@dataclass(frozen=True)
class Row:
    """`most_seconds`, `most_gib`, `times_faster`: what is wanted; None where nothing is.

    `four_times`: the row with a quarter of the operations, which must take more than a fifth of the time.
    """

    key: str
    schedule: str
    params: dict[str, int] = field(hash=False)
    torch: bool = False
    most_seconds: float | None = None
    most_gib: float | None = None
    times_faster: float | None = None
    four_times: str | None = None


_INTERLEAVED = str(HERE / "interleaved_iw.sched")
ROWS = (
    Row("iw", _INTERLEAVED, {"p": 64, "m": 512, "v": 2}, torch=True, most_gib=1, times_faster=20),
    Row("1f1b", "1f1b", {"p": 64, "m": 1024}, torch=True, most_seconds=2),
    Row("iw-x4", _INTERLEAVED, {"p": 64, "m": 2048, "v": 2}, four_times="iw"),
    Row("1f1b-x4", "1f1b", {"p": 64, "m": 4096}, four_times="1f1b"),
    Row("large", "1f1b", {"p": 256, "m": 4096}, most_seconds=60, most_gib=6, four_times="1f1b-x4"),
)
MOST_GROWTH = 5.0


def main() -> int:
    options = _options()
    if options.child:
        json.dump(_CHILDREN[options.child](_row(options.rows)), sys.stdout)
        return 0
    if options.profile:
        return _profile(_row(options.profile))
    rows = [_row(key) for key in options.rows.split(",")] if options.rows else list(ROWS)
    ours_head, torch_head = (
        f"{'pipedsl':>10}{'memory':>10}",
        f"{'torch':>10}{'send/recv':>11}{'memory':>10}{'ratio':>9}",
    )
    print(f"{'row':<9}{'operations':>11}{ours_head}{torch_head}  wanted")
    cpu: dict[str, float] = {}
    met = True
    for row in rows:
        ours, theirs = [], []
        for _ in range(options.repeat):  # in turn, so that a slow moment of the machine hits both
            ours.append(_measure("ours", row))
            if row.torch and options.torch:
                theirs.append(_measure("torch", row))
        best = min(ours, key=lambda each: each["seconds"])
        cpu[row.key] = min(each["cpu"] for each in ours)
        line = f"{row.key:<9}{best['operations']:>11,}{best['seconds']:>8.2f} s{best['gib']:>6.2f} GiB"
        other = min(theirs, key=lambda each: each["seconds"]) if theirs else None
        ratio = other["seconds"] / best["seconds"] if other else None
        if other and ratio:
            line += f"{other['seconds']:>8.2f} s{other['send_recv']:>9.2f} s{other['gib']:>6.2f} GiB{ratio:>8.1f}x"
        else:
            line += " " * 40
        wants = _wants(row, best, ratio, cpu)
        met = met and all(ok for _, ok in wants)
        print(line + "  " + ", ".join(f"{text} {'yes' if ok else 'NO'}" for text, ok in wants), flush=True)
    return 0 if met else 1


def _wants(row: Row, best: dict[str, Any], ratio: float | None, cpu: dict[str, float]) -> list[tuple[str, bool]]:
    """What is wanted of the row, and whether it is so."""
    wants = [("verified", best["verdict"] == "verified")]
    if row.most_seconds is not None:
        wants.append((f"<= {row.most_seconds} s", best["seconds"] <= row.most_seconds))
    if row.most_gib is not None:
        wants.append((f"<= {row.most_gib} GiB", best["gib"] <= row.most_gib))
    if row.times_faster is not None and ratio is not None:
        wants.append((f">= {row.times_faster}x", ratio >= row.times_faster))
    if row.four_times in cpu:
        growth = cpu[row.key] / cpu[row.four_times]
        wants.append((f"{growth:.2f} times {row.four_times}, < {MOST_GROWTH:g}", growth < MOST_GROWTH))
    return wants


def _row(key: str) -> Row:
    found = next((row for row in ROWS if row.key == key), None)
    if found is None:
        sys.exit(f"no row {key!r}; there are {', '.join(row.key for row in ROWS)}")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"of {', '.join(row.key for row in ROWS)}")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each (default 1)")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="measure pipedsl alone")
    parser.add_argument("--profile", metavar="ROW", help="print where pipedsl's time goes in one row")
    parser.add_argument("--child", choices=_CHILDREN, help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(child: str, row: Row) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", child, "--rows", row.key]
    # Nothing here needs threads, and those of numpy and torch would blur the times.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


# ------------------------------------------------------------------ in the other processes


def _peak_gib() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 30 if sys.platform == "darwin" else 1 << 20)


def _ours(row: Row) -> dict[str, Any]:
    import pipedsl.api as pipedsl

    start, cpu = time.perf_counter(), time.process_time()
    result = pipedsl.verify(pipedsl.load(row.schedule), row.params)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    unsafe = [name for name, state in result.report.transports.items() if state != "safe"]
    assert not unsafe, unsafe
    assert result.program is not None
    return {
        "seconds": seconds,
        "cpu": cpu,
        "gib": _peak_gib(),
        "operations": len(result.program),
        "verdict": result.verdict.value,
    }


def _torch(row: Row) -> dict[str, Any]:
    from torch.distributed.pipelining import schedules

    import pipedsl.api as pipedsl
    from pipedsl.expand import expand
    from pipedsl.program import Kind

    program = expand(pipedsl.load(row.schedule), row.params)
    letters = {int(kind): schedules._ComputationType(kind.name) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    columns = zip(program.stage.tolist(), program.kind.tolist(), program.microbatch.tolist(), strict=True)
    actions = [schedules._Action(stage, letters[kind], microbatch) for stage, kind, microbatch in columns]
    bounds = program.offsets.tolist()
    order = {rank: actions[bounds[rank] : bounds[rank + 1]] for rank in range(program.ranks)}
    stage = SimpleNamespace(
        num_stages=program.stages, group_size=program.ranks, group_rank=0, stage_index=0, is_last=False
    )
    make: Any = schedules._PipelineScheduleRuntime
    runtime = make([stage], program.microbatches)
    add_send_recv, send_recv = schedules._add_send_recv, 0.0

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal send_recv
        start = time.perf_counter()
        result = add_send_recv(*args, **kwargs)
        send_recv = time.perf_counter() - start
        return result

    schedules._add_send_recv = timed
    start = time.perf_counter()
    runtime._prepare_schedule_with_comms(order)
    return {"seconds": time.perf_counter() - start, "send_recv": send_recv, "gib": _peak_gib()}


_CHILDREN = {"ours": _ours, "torch": _torch}


def _profile(row: Row) -> int:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    measured = _ours(row)
    profile.disable()
    print(measured)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    # This file must not stand in for the package `verify`.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
    sys.exit(main())
