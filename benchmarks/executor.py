"""How fast the executor is, beside PyTorch's pipelining: same model, data and threads, in turn (A B A B ...).

    python benchmarks/executor.py                       # all parts: about five minutes on a quiet machine
    python benchmarks/executor.py --parts split,host    # some of them
    python benchmarks/executor.py --parts speed --rounds 15 --microbatches 4

    split   what I and W take together, of what B takes; how often a checkpointed forward is recomputed
    host    the main thread's CPU time per computation where there is next to nothing to compute, p=2, m=64
    speed   tokens per second on two ranks, against the limit: one process's step / p / (1 - bubble), the bubble under
            durations measured here; `searched` is what `pipedsl search` finds for these with 2 chunks a rank, and
            `searched_uneven` in stages of 1, 4 and 3 layers
    replay  the same from CPU times, for machines with other work: what each computation took the main thread, and what
            it needed besides in equal parts, put together as the schedule has them, as if messages took no time
    memory  live bytes on each rank at the peak, against what `verify --profile` predicts: on threads, whose messages
            take no memory, and on processes, with all that they send messages by; m=8 against m=128
    trace   what `trace=True` costs

Ratios are of medians over rounds in which all contestants run one after the other, so that a slow moment of the machine
hits all of them. One thread per process. `split`, `host` and `trace` count CPU time; `speed` seconds of the wall, which
other processes disturb: the fastest round is shown, too. Exit status 1 where something that is wanted is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(HERE.parent)

RANKS = 2
SEQUENCE = 128  # tokens of a microbatch
LAYERS = 8  # of the model of `speed`
SEARCH_FOR = 30  # work for each order that is searched for
TIME_LIMIT = 3600  # seconds for the processes of one part


@dataclass(frozen=True)
class Wanted:
    """A figure, what is wanted of it in words, and whether it is so."""

    text: str
    met: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each measurement (default 7)")
    parser.add_argument("--microbatches", default="4,8,16", help="for `speed` (default 4,8,16)")
    options = parser.parse_args()
    met = True
    for part in options.parts.split(","):
        if part not in PARTS:
            parser.error(f"no part {part!r}; there are {', '.join(PARTS)}")
        print(f"\n{part}", flush=True)
        for wanted in PARTS[part](options):
            met = met and wanted.met
            print(f"  wanted: {wanted.text}: {'yes' if wanted.met else 'NO'}", flush=True)
    return 0 if met else 1


# ------------------------------------------------------------------ the parts


def _split(options: argparse.Namespace) -> list[Wanted]:
    (found,) = _measure("split", 1, {"rounds": options.rounds})
    wanted = []
    for name, most in (("2 layers of width 256", 1.08), ("48 tiny layers", 1.5)):
        ours, theirs = (median(found[name][who]) for who in ("ours", "torch"))
        print(f"  {name:<24}(I + W) / B: {ours:.2f}, PyTorch {theirs:.2f}")
        wanted.append(Wanted(f"{name}: {ours:.2f} <= {most}", ours <= most))
    depths = found["depths"]
    print(
        "  (I + W) / B by depth    " + ", ".join(f"{depth} layers {median(each):.2f}" for depth, each in depths.items())
    )
    for name, (ours, theirs) in found["recomputed"].items():
        print(f"  {name:<24}forwards per microbatch: {ours}, PyTorch {theirs}")
        wanted.append(Wanted(f"{name}: recomputed once", ours == 2))
    ours, theirs = found["custom"]
    print(f"  custom function         backwards per microbatch: {ours}, PyTorch {theirs}")
    wanted.append(Wanted("a custom function's backward runs once", ours == 1))
    return wanted


def _host(options: argparse.Namespace) -> list[Wanted]:
    ranks = _measure(
        "host",
        RANKS,
        {"rounds": options.rounds, "ours": {"1f1b": _compile("1f1b", 64), "zb_h1": _compile("zb_h1", 64)}},
    )
    micro = {name: sum(median(each[name]) for each in ranks) / RANKS * 1e6 for name in ranks[0]}
    compute = micro.pop("compute")
    print(f"  {'the computations alone':<24}{compute:8.1f} µs of the main thread's CPU time, half of an F and a B")
    for name, each in micro.items():
        print(f"  {name:<24}{each:8.1f} µs, without the computation {each - compute:.1f}")
    ours, theirs, least = (micro[name] - compute for name in ("ours 1f1b", "torch 1F1B", "by hand"))
    print(f"  torch's own calls alone, by hand: {least / theirs:.2f} of what PyTorch's executor takes")
    return [Wanted(f"1F1B, without the computation: {ours / theirs:.2f} of PyTorch's <= 0.5", ours <= 0.5 * theirs)]


# Our schedules, and how many layers their stages hold.
WHOLE, HALVES = (4, 4), (2, 2, 2, 2)
OURS = {
    "1f1b": WHOLE,
    "interleaved_1f1b": HALVES,
    "zb_h1": WHOLE,
    "zb_h2": WHOLE,
    str(HERE / "interleaved_iw.sched"): HALVES,
}
SEARCHED = {str(HERE / "searched.sched"): HALVES, str(HERE / "searched_uneven.sched"): (1, 4, 3)}
SAME = {"1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B"}  # what PyTorch has, too


def _speed(options: argparse.Namespace) -> list[Wanted]:
    wanted = []
    costs = _costs(options)
    for m in map(int, options.microbatches.split(",")):
        files = {Path(name).stem: _compile(name, m, costs) for name in OURS | SEARCHED}
        ranks = _measure("speed", RANKS, {"rounds": options.rounds, "ours": files, "m": m})
        names = list(ranks[0]["wall"])
        wall = {name: [max(pair) for pair in _side_by_side(ranks, "wall", name)] for name in names}
        cpu = {name: median([sum(pair) for pair in _side_by_side(ranks, "cpu", name)]) for name in names}
        alone, halves = wall.pop("alone"), wall.pop("halves")
        times = f"{1e3 * median(alone):.0f} ms (fastest {1e3 * min(alone):.0f}), {cpu['alone']:.2f} s of CPU time"
        print(f"  m = {m}: one process {times}")
        lost = f"{median(halves) * RANKS / median(alone):.2f} of one process's half"
        times = f"{1e3 * median(halves):.0f} ms (fastest {1e3 * min(halves):.0f})"
        print(f"  {RANKS} at once without messages: {times}, {lost}")
        print(f"  {'':<28}{'tokens/s':>10}{'step':>10}{'fastest':>10}{'bubble':>10}{'of limit':>10}{'CPU':>10}")
        share = {}
        for name, seconds in wall.items():
            bubble = of_limit = ""
            if name in (ours := {f"ours {stem}": stem for stem in files}):
                stem = ours[name]
                bubble = f"{100 * files[stem][1]:.1f} %"
                share[stem] = median(alone) / RANKS / (1 - files[stem][1]) / median(seconds)
                of_limit = f"{share[stem]:.2f}"
            times = f"{1e3 * median(seconds):>7.0f} ms{1e3 * min(seconds):>7.0f} ms"
            rest = f"{times}{bubble:>10}{of_limit:>10}{cpu[name]:>8.2f} s"
            print(f"  {name:<28}{SEQUENCE * m / median(seconds):>10,.0f}{rest}")
        wanted += _wanted_of_speed(m, wall, share)
        for stem in ("zb_h1", "zb_h2"):
            more = cpu[f"ours {stem}"] / cpu["ours 1f1b"]
            wanted.append(Wanted(f"m={m} {stem}: CPU time {more:.2f} of 1F1B's <= 1.08", more <= 1.08))
    return wanted


def _costs(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a layer's computations and of a message."""
    both = _measure("costs", RANKS, {"rounds": 5 * options.rounds})
    costs = {kind: sum(each[kind] for each in both) / RANKS for kind in both[0]}
    times = ", ".join(f"{kind} {1e3 * seconds:.2f} ms" for kind, seconds in costs.items())
    print(f"  of one layer: {times}; (I + W) / B {(costs['I'] + costs['W']) / costs['B']:.2f}")
    return costs


def _side_by_side(ranks: list[Any], what: str, name: str) -> list[tuple[float, ...]]:
    """A figure of all ranks, by round."""
    return list(zip(*(each[what][name] for each in ranks), strict=True))


def _wanted_of_speed(m: int, wall: dict[str, list[float]], share: dict[str, float]) -> list[Wanted]:
    wanted = [Wanted(f"m={m} {stem}: {part:.2f} of the limit >= 0.93", part >= 0.93) for stem, part in share.items()]
    for stem, other in SAME.items():
        gain = median(wall[f"torch {other}"]) / median(wall[f"ours {stem}"])
        wanted.append(Wanted(f"m={m} {stem}: {gain:.2f} of PyTorch's speed >= 1", gain >= 1))
    if m == 4:
        best = {who: min(median(s) for name, s in wall.items() if name.startswith(who)) for who in ("ours", "torch")}
        gain = best["torch"] / best["ours"]
        wanted.append(Wanted(f"m=4: our best is {gain:.2f} of PyTorch's best >= 1.2", gain >= 1.2))
    return wanted


def _replay(options: argparse.Namespace) -> list[Wanted]:
    wanted = []
    costs = _costs(options)
    for m in map(int, options.microbatches.split(",")):
        files = {Path(name).stem: _compile(name, m, costs) for name in OURS | SEARCHED}
        ranks = _measure("replay", RANKS, {"rounds": options.rounds, "ours": files, "m": m})
        alone = median(each["alone"] for each in ranks)
        print(f"  m = {m}: one process {1e3 * alone:.0f} ms")
        print(f"  {'':<28}{'tokens/s':>10}{'step':>10}{'of limit':>10}{'besides':>10}")
        wall, share = {}, {}
        for name in ranks[0]["ops"]:
            seconds = _makespan([(each["ops"][name], each["besides"][name]) for each in ranks])
            wall[name], of_limit, stem = [seconds], "", name.removeprefix("ours ")
            if name.startswith("ours "):
                share[stem] = alone / RANKS / (1 - files[stem][1]) / seconds
                of_limit = f"{share[stem]:.2f}"
            besides = 1e3 * max(each["besides"][name] for each in ranks)
            line = f"{SEQUENCE * m / seconds:>10,.0f}{1e3 * seconds:>7.0f} ms{of_limit:>10}{besides:>7.1f} ms"
            print(f"  {name:<28}{line}")
        wanted += _wanted_of_speed(m, wall, share)
    return wanted


def _makespan(ranks: list[tuple[list[list[Any]], float]]) -> float:
    """When the last computation ends, where each starts as soon as its rank and what it needs allow.

    `ranks`: (kind, stage, microbatch, seconds) in order, and the seconds that are spread evenly over them.
    """
    ends: dict[tuple[bool, int, int], float] = {}
    at, free = [0] * len(ranks), [0.0] * len(ranks)
    last = max(stage for ops, _ in ranks for _, stage, *_ in ops)
    moved = True
    while moved:
        moved = False
        for rank, (ops, besides) in enumerate(ranks):
            while at[rank] < len(ops):
                kind, stage, microbatch, seconds = ops[at[rank]]
                need = (True, stage - 1, microbatch) if kind == "F" else (False, stage + 1, microbatch)
                outer = stage == (0 if kind == "F" else last) or kind == "W"
                if not outer and need not in ends:
                    break
                start = max(free[rank], 0.0 if outer else ends[need])
                free[rank] = start + seconds + besides / len(ops)
                if kind != "W":
                    ends[kind == "F", stage, microbatch] = free[rank]
                at[rank], moved = at[rank] + 1, True
    assert all(done == len(ops) for done, (ops, _) in zip(at, ranks, strict=True))
    return max(free)


def _memory(options: argparse.Namespace) -> list[Wanted]:
    from tests.unit import test_executor_memory as memory

    memory.deferred.WORTH_DEFERRING = 1  # the stages are small
    wanted = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for schedule, text in memory.SCHEDULES.items():
            stages = memory.make_stages(memory.compiled.build(text, p=3, m=9)[1].stages)
            ends = [(s == 0, s == len(stages) - 1) for s in range(len(stages))]
            sizes = [memory.measure(x, first=a, last=b) for x, (a, b) in zip(stages, ends, strict=True)]
            expected = [int(each) for each in memory.predicted(text, sizes, p=3, m=9)]
            found = memory.measured(text, folder, p=3, m=9)
            most = max(abs(ours - each) / each for ours, each in zip(found, expected, strict=True))
            print(f"  {schedule:<32}measured {found}, predicted {expected}")
            wanted.append(Wanted(f"{schedule}: {100 * most:.1f} % <= 5 %", most <= 0.05))
        wanted += _shared_memory()
        few, many = (memory.measured("1f1b", folder, p=2, m=m, steps=2) for m in (8, 128))
        print(f"  {'1f1b, p=2':<32}m=8 {few}, m=128 {many}")
        same = all(b - a <= 128 * 8 for a, b in zip(few, many, strict=True))  # the losses: a number each
        wanted.append(Wanted("m=128 needs no more than m=8, but for the losses", same))
    return wanted


def _shared_memory() -> list[Wanted]:
    """The same of ranks that are processes, and send messages by memory."""
    from tests.unit import test_executor_memory as memory

    names, m = ("1f1b", "interleaved_1f1b", "zb_h1", "zb_h2"), 8
    ranks = _measure("memory", RANKS, {"ours": {name: _compile(name, m) for name in names}})
    wanted = []
    for name in names:
        sizes = [memory.Sizes(*each) for each in ranks[0][name]["sizes"]]
        expected = [int(each) for each in memory.predicted(name, sizes, p=RANKS, m=m)]
        found = [each[name]["peak"] for each in ranks]
        most = max(abs(ours - each) / each for ours, each in zip(found, expected, strict=True))
        print(f"  {f'{name}, shared memory':<32}measured {found}, predicted {expected}")
        wanted.append(Wanted(f"{name}, shared memory: {100 * most:.1f} % <= 5 %", most <= 0.05))
    return wanted


def _trace(options: argparse.Namespace) -> list[Wanted]:
    ranks = _measure("trace", RANKS, {"rounds": 3 * options.rounds, "ours": {"zb_h1": _compile("zb_h1", 8)}, "m": 8})
    cpu = {name: [sum(pair) for pair in zip(*(each[name] for each in ranks), strict=True)] for name in ranks[0]}
    cost = median(cpu["traced"]) / median(cpu["plain"]) - 1
    print(f"  CPU time of a step with trace=True: {100 * cost:+.2f} %")
    return [Wanted(f"{100 * cost:+.2f} % <= 1 %", cost <= 0.01)]


PARTS: dict[str, Callable[[argparse.Namespace], Sequence[Wanted]]] = {
    "split": _split,
    "host": _host,
    "speed": _speed,
    "replay": _replay,
    "memory": _memory,
    "trace": _trace,
}


# ------------------------------------------------------------------ starting what measures


Compiled = tuple[str, float, tuple[int, ...]]  # an executor's text, its bubble, how many layers its stages hold


def _compile(schedule: str, m: int, costs: dict[str, float] | None = None) -> Compiled:
    """A schedule for two ranks; its bubble with F, I and W equal, or with `costs` of a layer.

    What it leaves open is searched for first.
    """
    import pipedsl
    from pipedsl.emit import emit_result
    from pipedsl.profile import Profile

    loaded, params = pipedsl.load(schedule), {"p": RANKS, "m": m}
    profile = None
    if costs is not None:
        times = {kind: (1,) if kind == "send" else (OURS | SEARCHED)[schedule] for kind in costs}
        profile = Profile(
            "measured",
            {kind: tuple(Fraction(round(1e6 * each * n)) for n in times[kind]) for kind, each in costs.items()},
        )
    if schedule in SEARCHED:
        found = pipedsl.search(loaded, params, profile=profile, budget=SEARCH_FOR)
        loaded, params = pipedsl.parse_text(found.text, schedule), {}
    if profile is not None:  # messages are what keeps a step from its limit, and no part of it
        profile = replace(profile, costs={**profile.costs, "send": (Fraction(0),)})
    result = pipedsl.verify(loaded, params, profile=profile)
    assert result.metrics is not None
    layers = () if costs is None else (OURS | SEARCHED)[schedule]
    return emit_result(result), float(result.metrics.bubble), layers


def _measure(part: str, ranks: int, task: dict[str, Any]) -> list[Any]:
    """What every rank's process found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task.json").write_text(json.dumps(task))
        environment = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE.parent),
        }
        command = [sys.executable, str(HERE / "executor_ranks.py"), part, name]
        processes = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(TIME_LIMIT) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            sys.exit(f"{part}: a rank ended with {max(codes, key=abs)}")
        return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    sys.exit(main())
