"""Verdicts on random small Calls against a step-by-step run of each, by the explorer that was written apart.

    python benchmarks/agreement.py --count 20000
    python benchmarks/agreement.py --count 2000 --orders 200   # and all orders of moves of 200 of them

A run makes random moves until none is left; that every order of moves ends alike, so that one run decides, is checked
on the smallest programs by trying all of them (`--orders`). Exit status 1 where anything disagrees.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# In place of this folder, whose verify.py has the verifier's name.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests" / "support")

from explore import TRANSPORTS, every_end, run  # noqa: E402
from random_calls import has_batches, random_calls  # noqa: E402

from pipedsl.calls_json import read_calls  # noqa: E402
from verify import check_calls  # noqa: E402

CHUNK = 250


def compare(seeds: range) -> Counter[object]:
    """How often each thing happened: (transport, verdict), and what the programs have."""
    counts: Counter[object] = Counter()
    for seed in seeds:
        document = random_calls(seed)
        states = check_calls(read_calls(document), TRANSPORTS, remedies=0).transports
        for name, state in states.items():
            hangs = run(document, name, seed)
            counts[name, "hangs" if hangs else "ends"] += 1
            if hangs != (state == "deadlock"):
                counts[name, "disagrees"] += 1
                print(f"seed {seed} on {name}: {state}, and a run {'hangs' if hangs else 'ends'}: {document}")
        forms = {call[0] for calls in document["ranks"] for call in calls}
        counts["programs"] += 1
        counts["hang somewhere"] += "deadlock" in states.values()
        counts["with batches"] += has_batches(document)
        counts["that mix batches and single calls"] += has_batches(document) and bool(forms - {"batch", "wait"})
        counts["with blocking calls"] += bool(forms & {"send", "recv"})
        counts["of more than three ranks"] += len(document["ranks"]) > 3
        counts["with a tag twice"] += _repeats_a_tag(document)
    return counts


def orders(seeds: range) -> Counter[object]:
    """Programs of which all orders of moves were tried, and those where two of them end differently."""
    counts: Counter[object] = Counter()
    for seed in seeds:
        document = random_calls(seed, largest=1)
        for name in TRANSPORTS:
            ends = every_end(document, name, most_states=4000)
            state = check_calls(read_calls(document), [name], remedies=0).transports[name]
            counts["programs and transports, all orders tried"] += 1
            counts["of which some order ends otherwise"] += bool(ends) and ends != {state == "deadlock"}
    return counts


def _repeats_a_tag(document: dict) -> bool:
    for calls in document["ranks"]:
        members = [member for call in calls for member in (call[1] if call[0] == "batch" else [call])]
        sends = [tuple(member[1:]) for member in members if member[0].endswith("send")]
        if len(set(sends)) < len(sends):
            return True
    return False


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=20_000, help="programs")
    options.add_argument("--orders", type=int, default=100, help="programs of which all orders of moves are tried")
    options.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    begin = time.perf_counter()
    totals: Counter[object] = Counter()
    with ProcessPoolExecutor(given.processes) as pool:
        last = given.first + given.count
        chunks = [range(k, min(k + CHUNK, last)) for k in range(given.first, last, CHUNK)]
        few = [
            range(given.first + k, min(given.first + k + 10, given.first + given.orders))
            for k in range(0, given.orders, 10)
        ]
        for counts in (*pool.map(compare, chunks), *pool.map(orders, few)):
            totals.update(counts)
    print(f"{'transport':28}{'ends':>10}{'hangs':>10}{'disagree':>10}")
    for name in TRANSPORTS:
        print(f"{name:28}" + "".join(f"{totals[name, what]:>10,}" for what in ("ends", "hangs", "disagrees")))
    print()
    for what, count in totals.items():
        if isinstance(what, str):
            print(f"{count:>10,}  {what}")
    print(f"\n{time.perf_counter() - begin:.0f} s")
    wrong = sum(totals[name, "disagrees"] for name in TRANSPORTS) + totals["of which some order ends otherwise"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
