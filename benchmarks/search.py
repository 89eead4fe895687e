"""What the search finds and proves on the cases that others published or solved, and how long it takes.

    python benchmarks/search.py                                # all parts: more than an hour
    python benchmarks/search.py --parts optima,smallest_cap    # some of them
    python benchmarks/search.py --cases FILE --work 60 --largest 1024

Cases are in `tests/cases/search.json` and `zb_paper.json`. A row says the case, the value found, the best proven lower
bound, what proves that no order is better, what others have, the gap to the bound and the seconds of CPU (by the clock
with `--jobs`, which leaves smallest_cap and curve as they are). `worse` marks a row in which others are better, `over`
one that is not proved, whose gap is too large, or that takes longer than is wanted. Exit status 1 where any row has one
of them. Rows end by work done and by the clock, which takes time from them where something else runs, and where a gap
is wanted by the clock alone; with `--no-clock` by work alone, which may come to more seconds than are granted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path

# In place of this folder, whose verify.py has the verifier's name.
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from pipedsl.program import Costs  # noqa: E402
from pipedsl.search_runs import Effort, Job  # noqa: E402
from pipedsl.search_turns import take_turns  # noqa: E402
from verify.search import (  # noqa: E402
    Budget,
    Objective,
    Problem,
    Solution,
    make_problem,
    smallest_cap_without_bubble,
    solve,
    uniform_costs,
)

CASES = ROOT / "tests" / "cases"
EQUAL = {"F": "1", "I": "1", "W": "1", "send": "0"}
OTHER = {"F": "1", "I": "1", "W": "0.7", "send": "0.1"}
RANDOM = 60  # problems of random costs
JUDGING = 2  # seconds of a row for what comes after the clock has ended its search


@dataclass(frozen=True)
class Row:
    """`known`: what others have; `most`: the largest gap that is wanted, None for any; `proved`: whether a proof is.

    `seconds` are granted.
    """

    name: str
    problem: Problem
    known: Fraction | None = None
    most: Fraction | None = None
    proved: bool = False
    seconds: float = 120


def linear(
    p: int, m: int, costs: dict[str, str], cap: object, held: object = 1, objective: str = "makespan"
) -> Problem:
    return make_problem(
        placement=range(p),
        microbatches=m,
        costs=uniform_costs(p, costs["F"], costs["I"], costs["W"], costs["send"]),
        cap=None if cap is None else Fraction(str(cap)),
        held_by_w=Fraction(str(held)),
        objective=Objective(objective),
    )


def vee(p: int, m: int, costs: dict[str, str], cap: object, objective: str) -> Problem:
    half = {name: str(Fraction(value) / 2) for name, value in costs.items()}
    return make_problem(
        placement=[*range(p), *reversed(range(p))],
        microbatches=m,
        costs=uniform_costs(2 * p, half["F"], half["I"], half["W"], costs["send"]),
        activation=Fraction(1, 2),
        cap=Fraction(str(cap)),
        objective=Objective(objective),
    )


def named(p: int, m: int, costs: dict[str, str], cap: object, held: object, objective: str) -> str:
    times = "/".join(costs[name] for name in ("F", "I", "W", "send"))
    return f"p={p} m={m} {times} cap {float(Fraction(str(cap))):g} held {held} {objective}"


def optima(cases: dict) -> Iterator[Row]:
    for case in cases["optima"]:
        args = (case["p"], case["m"], case["cost"], case["cap"], case["held_by_w"], case["minimize"])
        yield Row(named(*args), linear(*args), Fraction(str(case["best_known"])), proved=case["proved"], seconds=60)


def every_cap(cases: dict) -> Iterator[Row]:
    """All caps of pipelines that are to be proved within a minute, and some of any costs whatever."""
    for p, m in ((2, 12), (3, 12), (4, 12), (5, 16), (6, 16), (7, 16), (8, 16)):
        for held, objective in product(("1", "0.5"), ("makespan", "span")):
            for cap in range(1, 2 * p + 1):
                args = (p, m, EQUAL, cap, held, objective)
                yield Row(named(*args), linear(*args), proved=True, seconds=60)
    uneven = {"F": "1.3", "I": "1.7", "W": "0.9", "send": "0.15"}
    for costs, held in product((uneven, OTHER), ("1", "0.5")):
        for cap in range(1, 9):
            args = (4, 12, costs, cap, held, "makespan")
            yield Row(named(*args), linear(*args), proved=True, seconds=60)
    for seed in range(RANDOM):
        name, problem = any_costs(4, 12, seed)
        yield Row(name, problem, proved=True, seconds=60)


def any_costs(p: int, m: int, seed: int) -> tuple[str, Problem]:
    """Durations per stage around one for each kind, or all apart; messages that take time; what W holds; half caps."""
    draw = random.Random(seed)
    parts = draw.choice((1, 2, 5, 10, 20, 100))
    far = draw.random() < 0.4

    def value(low: float, high: float) -> Fraction:
        return Fraction(draw.randint(round(low * parts), round(high * parts)), parts)

    def times(low: float, high: float) -> tuple[Fraction, ...]:
        if far:
            return tuple(value(1, 9) for _ in range(p))
        one = value(low, high)
        each = (value(-0.2, 0.2) if seed % 2 else Fraction(0) for _ in range(p))
        return tuple(max(Fraction(1, parts), one + more) for more in each)

    forward, inputs, weights = times(0.7, 1.5), times(0.7, 2), times(0.4, 1.5)
    send = (draw.choice((Fraction(0), value(0, 0.5))),) * p
    held = draw.choice((Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(9, 10), Fraction(1)))
    cap, objective = Fraction(draw.randint(2, 4 * p - 3), 2), draw.choice(tuple(Objective))
    whole = tuple(a + b for a, b in zip(inputs, weights, strict=True))
    problem = make_problem(
        placement=range(p),
        microbatches=m,
        costs=Costs(forward, whole, inputs, weights, send),
        cap=cap,
        held_by_w=held,
        objective=objective,
    )
    return f"p={p} m={m} costs {seed} cap {float(cap):g} held {float(held):g} {objective.value}", problem


def heuristic(cases: dict) -> Iterator[Row]:
    names = {"A": EQUAL, "B": OTHER}
    for case in cases["published_heuristic_under_tight_caps"]:
        args = (case["p"], case["m"], names[case["cost"]], case["cap"], 1, "makespan")
        yield Row(named(*args), linear(*args), Fraction(str(case["heuristic"])))
    for case in cases["published_heuristic"]:
        for objective in ("makespan", "span"):
            args = (case["p"], case["m"], case["cost"], case["cap"], case["held_by_w"], objective)
            yield Row(named(*args), linear(*args), Fraction(str(case["published_heuristic"][objective])))


def uneven(cases: dict) -> Iterator[Row]:
    """Eight ranks of different speed."""
    speed = [Fraction(value, 10) for value in (12, 10, 10, 11, 9, 10, 10, 14)]
    costs = Costs(
        tuple(speed), tuple(2 * v for v in speed), tuple(speed), tuple(speed), (Fraction(1, 10),) * len(speed)
    )
    for cap in range(4, 17):
        problem = make_problem(placement=range(8), microbatches=32, costs=costs, cap=cap)
        yield Row(f"p=8 m=32 per-stage costs cap {cap}", problem, most=Fraction(2, 100))


def drawn(cases: dict) -> Iterator[Row]:
    """The same with costs drawn for each seed: one speed a rank, or F, I and W apart, a little or a lot."""
    for low, high, seeds in ((8, 14, (3, 4, 5, 8)), (8, 14, (1004, 1005)), (5, 20, (6001, 6002, 6003))):
        for seed in seeds:
            draw = random.Random(seed)
            if seed < 1000:
                forward = inputs = weights = _drawn(draw, low, high)
            else:
                forward, inputs, weights = (_drawn(draw, low, high) for _ in range(3))
            whole = tuple(a + b for a, b in zip(inputs, weights, strict=True))
            costs = Costs(forward, whole, inputs, weights, (Fraction(1, 10),) * 8)
            problem = make_problem(placement=range(8), microbatches=32, costs=costs, cap=5)
            yield Row(f"p=8 m=32 costs of seed {seed} from {low / 10} to {high / 10}", problem, most=Fraction(2, 100))


def _drawn(draw: random.Random, low: int, high: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(draw.randint(low, high), 10) for _ in range(8))


def large(cases: dict) -> Iterator[Row]:
    for p, m in ((32, 256), (64, 512)):
        for costs in (EQUAL, OTHER):
            for cap, most in ((p, 1), (2 * p, 1), (p // 2, 5)):
                args = (p, m, costs, cap, 1, "makespan")
                yield Row(named(*args), linear(*args), most=Fraction(most, 100))


def chunks(cases: dict) -> Iterator[Row]:
    for case in cases["v_placement"]:
        for objective in ("makespan", "span"):
            args = (case["p"], case["m"], case["cost_per_whole_stage"], case["peak_whole_stages"])
            name = f"{case['schedule']} {named(*args, 1, objective)}"
            yield Row(name, vee(*args, objective), Fraction(str(case[objective])))


def paper(cases: dict) -> Iterator[Row]:
    """The span that the published bubble rate comes to, which is rounded to four places."""
    for row in json.loads((CASES / "zb_paper.json").read_text())["rows"]:
        costs = {name: str(value) for name, value in row["cost_ms"].items()}
        load = row["m"] * sum(Fraction(costs[name]) for name in ("F", "I", "W"))
        span = load / (1 - Fraction(str(row["span_bubble"]["search_cap_2p"])) - Fraction(5, 100_000))
        args = (row["p"], row["m"], costs, 2 * row["p"], "0.5", "span")
        yield Row(f"{row['model']} {named(*args)}", linear(*args), span)


PARTS: dict[str, Callable[[dict], Iterator[Row]]] = {
    "optima": optima,
    "every_cap": every_cap,
    "heuristic": heuristic,
    "uneven": uneven,
    "drawn": drawn,
    "large": large,
    "chunks": chunks,
    "paper": paper,
}


def smallest_cap(work: float) -> bool:
    """The smallest cap with no span bubble, with its proof."""
    fine = True
    for p in range(2, 9):
        begin = time.process_time()
        found = smallest_cap_without_bubble(linear(p, 2 * p + 1, EQUAL, None), budget=Budget(work))
        right = found is not None and found.proved and found.cap == 2 * p - 1
        fine = fine and right
        text = "none" if found is None else f"{found.cap} ({'proved' if found.proved else 'not proved'}: {found.why})"
        print(f"smallest cap with no span bubble, p={p}: {text}  {time.process_time() - begin:.1f} s", flush=True)
    return fine


def curve(work: float) -> bool:
    """Two chunks in a V from the memory of V-Min to that of ZB-V and beyond: never slower with more of it."""
    fine = True
    for p, m in ((4, 12), (8, 24)):
        known: Solution | None = None
        for half in range(p, 2 * p + 3):
            problem = vee(p, m, EQUAL, Fraction(half, 2), "makespan")
            found = solve(problem, budget=Budget(work / 10), start=None if known is None else known.orders)
            right = known is None or found.value <= known.value
            fine, known = fine and right, found
            marks = "" if right else "  worse"
            print(
                f"V p={p} m={m} cap {half / 2:g}: {float(found.value):g} (bound {float(found.bound):g}){marks}",
                flush=True,
            )
    return fine


def answer(problem: Problem, budget: Budget, jobs: int) -> Solution:
    """Of one search here, or of several in processes, as `pipedsl search --jobs` has it."""
    if jobs == 1:
        return solve(problem, budget=budget)

    def make(_: int, part: Effort, seed: int) -> Job:
        return Job(problem, part.budget, seed, fixed=(Fraction(0),) * problem.ranks)

    [ended] = take_turns(make, 1, Effort(budget, jobs=jobs))
    if ended.solution is None:
        raise SystemExit(f"nothing was found{ended.lost and f': {ended.lost}'}")
    return ended.solution


def show(row: Row, work: float, clock: bool, jobs: int) -> bool:
    now = time.process_time if jobs == 1 else time.monotonic
    begin = now()
    by_time = clock and row.most is not None  # as `pipedsl search --timeout` has it
    budget = Budget(10 * row.seconds if by_time else min(work, row.seconds), row.seconds - JUDGING if clock else None)
    found = answer(row.problem, budget, jobs)
    seconds = now() - begin
    marks = []
    if row.known is not None and found.value > row.known:
        marks.append("worse")
    wanted = (row.most is None or found.gap <= row.most) and (found.proof is not None or not row.proved)
    if not wanted or seconds > row.seconds:
        marks.append("over")
    proof = found.proof.value if found.proof is not None else "-"
    known = "-" if row.known is None else f"{float(row.known):.6g}"
    print(
        f"{row.name:66}{float(found.value):>11.6g}{float(found.bound):>11.6g} {proof:11}{known:>9}"
        f"{float(found.gap):>8.2%}{seconds:>7.1f} {' '.join(marks)}",
        flush=True,
    )
    return not marks


WHOLE: dict[str, Callable[[float], bool]] = {"smallest_cap": smallest_cap, "curve": curve}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", default=",".join((*PARTS, *WHOLE)))
    options.add_argument("--cases", type=Path, default=CASES / "search.json")
    options.add_argument("--work", type=float, default=100, help="about seconds for each row")
    options.add_argument("--no-clock", dest="clock", action="store_false", help="end rows by work alone")
    options.add_argument("--smallest", type=int, default=0, help="p * m of the smallest case")
    options.add_argument("--largest", type=int, default=1 << 30, help="p * m of the largest case")
    options.add_argument("--jobs", type=int, default=1, help="processes for each row, as of pipedsl search")
    given = options.parse_args()
    cases = json.loads(given.cases.read_text())
    fine = True
    for part in given.parts.split(","):
        if part in WHOLE:
            fine &= WHOLE[part](given.work)
            continue
        print(f"\n{part:66}{'found':>11}{'bound':>11} {'proof':11}{'others':>9}{'gap':>8}{'s':>7}")
        for row in PARTS[part](cases):
            if given.smallest <= row.problem.ranks * row.problem.microbatches <= given.largest:
                fine &= show(row, given.work, given.clock, given.jobs)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
