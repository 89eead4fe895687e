"""The search against brute force: the optimum of random small problems, found and proved, by every engine there is.

    python benchmarks/brute_force.py --count 1500
    python benchmarks/brute_force.py --count 300 --engine cpsat

One to four ranks; chunks, the V, looped, replicas; F and B, F, I and W, or both mixed; sketches; costs and sizes per
stage, messages that take time, what W holds, caps per rank, both objectives. Exit status 1 where anything disagrees.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from time import process_time

# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests" / "support")

from brute import optimum  # noqa: E402
from small_problems import small_problem  # noqa: E402

from verify.bound.certificate import check  # noqa: E402
from verify.bound.problem import read_problem  # noqa: E402
from verify.bound.text import smt_text  # noqa: E402
from verify.search import Budget, Infeasible, NothingFound, Problem, cpsat, exact, model_of, solve  # noqa: E402  # noqa: E402
from verify.search.evidence import bound_certificate  # noqa: E402
from verify.search.exact import Answer  # noqa: E402
from verify.search.problem_json import problem_json  # noqa: E402

ENGINES = {"z3": exact.decide, "cpsat": cpsat.decide}


def compare(seed: int, engine: str, counts: Counter[str]) -> list[str]:
    """What disagrees about one problem."""
    name, problem = small_problem(seed)
    try:
        best = optimum(problem, 5000)
    except ValueError:
        counts["too many orders to try"] += 1
        return []
    counts["problems"] += 1
    counts[name.partition(",")[0]] += 1
    counts[problem.objective.value] += 1
    try:
        found = solve(problem, budget=Budget(work=4), seed=seed)
    except Infeasible:
        counts["impossible"] += 1
        return [] if best is None else ["called impossible"]
    except NothingFound:
        return ["nothing found"]
    if best is None:
        return ["an order where none fits"]
    counts["proved"] += found.proof is not None
    wrong = [] if found.value == best else [f"the search found {found.value}"]
    wrong += [f"the bound is {found.bound}"] if found.bound > best else []
    return wrong + _evidence(problem, best, counts) + _engine(problem, best, engine, counts)


def _evidence(problem: Problem, best: Fraction, counts: Counter[str]) -> list[str]:
    """The certificate of the optimum as a bound: what it says itself, and the text it leaves to a solver."""
    least = int(best / problem.time_unit)
    certificate, _ = bound_certificate(problem, least)
    check(certificate, problem_json(problem))
    proved = Fraction(certificate["bound"], problem.time_unit.denominator)
    counts["proved by evidence alone"] += proved == best
    wrong = [f"the evidence is for {proved}"] if proved > best else []
    import z3

    for limit, expected in ((least, "sat"), (least - 1, "unsat")):
        solver = z3.Solver()
        solver.from_string(smt_text(read_problem(problem_json(problem)), limit * problem.time_unit.numerator))
        answer = str(solver.check())
        wrong += [] if answer == expected else [f"the text of {limit} is {answer}"]
    return wrong


def _engine(problem: Problem, best: Fraction, engine: str, counts: Counter[str]) -> list[str]:
    model, least = model_of(problem), int(best / problem.time_unit)
    there, below = (ENGINES[engine](model, limit, seconds=60).answer for limit in (least, least - 1))
    counts["refuted one below"] += below is Answer.REFUTED
    wrong = [f"{engine} does not find the optimum"] if there is not Answer.FOUND else []
    return [*wrong, f"{engine} finds what is not there"] if below is Answer.FOUND and _exact(problem) else wrong


def _exact(problem: Problem) -> bool:
    """Spans are asked for with more freedom than orders have; what comes of it is judged anew."""
    return problem.objective.value == "makespan"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=1500, help="problems")
    options.add_argument("--first", type=int, default=100_000, help="the first seed")
    options.add_argument(
        "--engine", choices=sorted(ENGINES), default="z3", help="which is asked at the optimum and below"
    )
    chosen = options.parse_args()
    counts: Counter[str] = Counter()
    wrong, started = 0, process_time()
    for seed in range(chosen.first, chosen.first + chosen.count):
        for text in compare(seed, chosen.engine, counts):
            wrong += 1
            print(f"seed {seed}, {small_problem(seed)[0]}: {text}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:7} {name}")
    print(f"{counts['problems']} problems, {wrong} disagreements, {process_time() - started:.0f} s of CPU")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
