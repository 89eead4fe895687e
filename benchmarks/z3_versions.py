"""The same optima with z3 from both ends of the range that pipedsl installs with: values, bounds, orders judged anew.

    python benchmarks/z3_versions.py                        # the ends of the range in pyproject.toml, constraints.txt
    python benchmarks/z3_versions.py 4.13.0.0 4.15.4.0 5.4.1.0 --largest 96

Makes an environment for each version, so it needs a package index. For every proved row of tests/cases/search.json
with p m up to `--largest`, z3 alone is asked for an order at the optimum and one below it, and the whole search for the
optimum. Exit status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("numpy", "networkx", "lark", "click")


def rows(largest: int) -> list[dict[str, Any]]:
    found = json.loads((ROOT / "tests" / "cases" / "search.json").read_text())["optima"]
    return [row for row in found if row["proved"] and row["p"] * row["m"] <= largest]


def name(row: dict[str, Any]) -> str:
    cost = row["cost"]
    times = " ".join(f"{kind}={cost[kind]}" for kind in ("F", "I", "W", "send"))
    return f"p={row['p']} m={row['m']} cap={row['cap']} held={row['held_by_w']} {times} {row['minimize']}"


def answers(largest: int, seconds: float) -> dict[str, list[str]]:
    """What this environment's z3 says of every row: at the optimum, below it, and the search. Times go to stderr."""
    sys.path.insert(0, str(ROOT))
    from verify.search import Budget, Objective, judge, make_problem, model_of, solve, uniform_costs
    from verify.search.exact import decide

    said = {}
    for row in rows(largest):
        cost = row["cost"]
        problem = make_problem(
            placement=range(row["p"]),
            microbatches=row["m"],
            costs=uniform_costs(row["p"], cost["F"], cost["I"], cost["W"], cost["send"]),
            cap=None if row["cap"] is None else Fraction(str(row["cap"])),
            held_by_w=Fraction(str(row["held_by_w"])),
            objective=Objective(row["minimize"]),
        )
        model, started = model_of(problem), process_time()
        best = int(Fraction(str(row["best_known"])) / problem.time_unit)
        there, below = (decide(model, limit, seconds=seconds) for limit in (best, best - 1))
        value = "none"
        if there.rows is not None:
            value = str(judge(problem, model.orders(there.rows)).value(problem.objective) / problem.time_unit - best)
        found = solve(problem, budget=Budget(work=1000, seconds=2 * seconds))
        proof = "open" if found.proof is None else "proved"
        said[name(row)] = [there.answer.value, value, below.answer.value, str(found.value), str(found.bound), proof]
        print(f"{process_time() - started:7.2f} s CPU  {name(row)}: {said[name(row)]}", file=sys.stderr)
    return said


def ends() -> list[str]:
    """The oldest and the newest version that the project installs with."""
    oldest = re.search(r"z3-solver>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    newest = re.search(r"z3-solver.*<=([\d.]+)", (ROOT / "constraints.txt").read_text())
    assert oldest is not None
    assert newest is not None
    full = oldest[1] + ".0" * (3 - oldest[1].count("."))
    return [full, newest[1]]


def environment(folder: Path, version: str) -> Path:
    """The interpreter of a fresh environment with this z3."""
    place = folder / version
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"z3-solver=={version}", *NEEDED]
        subprocess.run(command, check=True, timeout=600)
    return python


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("versions", nargs="*", help="of z3-solver; by default both ends of the range")
    options.add_argument("--largest", type=int, default=48, help="p m of the largest row")
    options.add_argument("--seconds", type=float, default=120, help="for each question")
    options.add_argument("--folder", type=Path, help="where the environments are kept; by default nowhere")
    options.add_argument("--answer", action="store_true", help="print what this environment's z3 says, as JSON")
    chosen = options.parse_args()
    if chosen.answer:
        print(json.dumps(answers(chosen.largest, chosen.seconds)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        said = {}
        for version in chosen.versions or ends():
            python = environment(chosen.folder or Path(scratch), version)
            limits = ["--largest", str(chosen.largest), "--seconds", str(chosen.seconds)]
            command = [str(python), str(Path(__file__).resolve()), "--answer", *limits]
            print(f"z3 {version}", file=sys.stderr)
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=7200)
            said[version] = json.loads(done.stdout)
            print(f"z3 {version}: {len(said[version])} rows", file=sys.stderr)
    different = 0
    for row in next(iter(said.values())):
        texts = {version: of[row] for version, of in said.items()}
        # The order found at the optimum may be another one, but not a worse one.
        if len({tuple(text) for text in texts.values()}) > 1:
            different += 1
            print(f"{row}: {texts}")
    print(f"{', '.join(said)}: {len(next(iter(said.values())))} rows, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
