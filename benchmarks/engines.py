"""z3 against CP-SAT: an order at the optimum, and the refutation of one unit less, on the same problems in turn.

    python benchmarks/engines.py
    python benchmarks/engines.py --largest 512 --seconds 120

CPU seconds of one core, windows included, one question after the other on the same machine. Exit status 1 where the two
contradict each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from verify.search import Objective, Problem, cpsat, exact, make_problem, model_of, uniform_costs  # noqa: E402
from verify.search.exact import Answer, Decision  # noqa: E402

CASES = Path(__file__).resolve().parents[1] / "tests" / "cases" / "search.json"
ENGINES: dict[str, Callable[..., Decision]] = {"z3": exact.decide, "cpsat": cpsat.decide}


def problems(largest: int) -> list[tuple[str, Problem, int]]:
    """The proved rows of the file with their optima, in the problems' units."""
    found = []
    for row in json.loads(CASES.read_text())["optima"]:
        if not row["proved"] or row["p"] * row["m"] > largest:
            continue
        cost: dict[str, Any] = row["cost"]
        problem = make_problem(
            placement=range(row["p"]),
            microbatches=row["m"],
            costs=uniform_costs(row["p"], cost["F"], cost["I"], cost["W"], cost["send"]),
            cap=None if row["cap"] is None else Fraction(str(row["cap"])),
            held_by_w=Fraction(str(row["held_by_w"])),
            objective=Objective(row["minimize"]),
        )
        name = f"p={row['p']} m={row['m']} cap={row['cap']} held={row['held_by_w']} W={cost['W']} {row['minimize']}"
        found.append((name, problem, int(Fraction(str(row["best_known"])) / problem.time_unit)))
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--largest", type=int, default=128, help="p m of the largest row")
    options.add_argument("--seconds", type=float, default=60, help="for each question")
    chosen = options.parse_args()
    ratios: dict[str, list[float]] = {"found": [], "refuted": []}
    wrong = 0
    print(f"{'':62}{'z3':>18}{'CP-SAT':>18}")
    for name, problem, best in problems(chosen.largest):
        model = model_of(problem)
        for limit, expected in ((best, Answer.FOUND), (best - 1, Answer.REFUTED)):
            spent, cells = {}, []
            for engine, decide in ENGINES.items():
                started = process_time()
                answer = decide(model, limit, seconds=chosen.seconds).answer
                spent[engine] = process_time() - started
                cells.append(f"{answer.value} {spent[engine]:8.2f}")
                wrong += answer not in (expected, Answer.UNKNOWN)
            ratios[expected.value].append(spent["z3"] / max(spent["cpsat"], 1e-3))
            print(f"{name:52}{expected.value:>10}" + "".join(cell.rjust(18) for cell in cells), flush=True)
    for what, all_ratios in ratios.items():
        ordered = sorted(all_ratios)
        print(f"{what}: z3 / CP-SAT median {median(ordered):.1f}, from {ordered[0]:.2f} to {ordered[-1]:.1f}")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
