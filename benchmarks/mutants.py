"""Slips of the pen in the shipped schedules: our verdict, what really happens, and what PyTorch says.

    python benchmarks/mutants.py                # every mutant for p up to 4 and m up to 8
    python benchmarks/mutants.py --every 20     # of each program every 20th
    python benchmarks/mutants.py --no-torch

Of every schedule, as its computations alone and with its communication written out: each swap of neighbours, each
operation dropped, written twice, moved to the next rank, given the next microbatch, each SEND made a RECV and back.
What happens is found by running it with real gradients on models of the transports (tests/support/judge.py). Exit
status 1 where a verdict and what happens disagree.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

# In place of this folder, whose files have the names of modules.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests" / "support")

from closed import closed  # noqa: E402
from compiled import admitted  # noqa: E402
from judge import WASTEFUL, Judged, forms, judge  # noqa: E402
from mutants import EDITS, mutants  # noqa: E402
from rehearse import EQUAL, ERROR, HANGS, TRANSPORTS, WRONG  # noqa: E402
from tiny import Model  # noqa: E402
from torch_opinion import Opinion, Question, opinions  # noqa: E402

from pipedsl.torch_csv import write_csv  # noqa: E402

CHUNK = 2500
FAILS = (ERROR, HANGS, WRONG)
Case = tuple[str, Judged, Question]


def cases(config: tuple[str, int, int, int]) -> list[Case]:
    """Every mutant of a schedule (or every few) with its form, judged, and the question to PyTorch."""
    schedule, p, m, every = config
    found = []
    for form, program in forms(schedule, p, m):
        model = Model(program.stages, m)
        for number, mutant in enumerate(mutants(program)):
            if number % every == 0:
                question = Question(write_csv(mutant.program), p, program.stages, m)
                found.append((form, judge(mutant, model), question))
    return found


def ask_torch(questions: Sequence[Question]) -> list[Opinion]:
    chunks = [questions[k : k + CHUNK] for k in range(0, len(questions), CHUNK)]
    with ThreadPoolExecutor(2) as pool:
        return [answer for answers in pool.map(lambda chunk: opinions(chunk, 10, 3600), chunks) for answer in answers]


def print_ours(found: Sequence[Case]) -> None:
    counts = Counter((form, each.edit, each.accepted, each.happens) for form, each, _ in found)
    columns = [(True, EQUAL), *((True, what) for what in FAILS), *((False, what) for what in (*FAILS, WASTEFUL, EQUAL))]
    print("Our verdict against what happens")
    print(f"{'':25}{'mutants':>9}{'accepted:':>11}{'':30}{'rejected:':>11}")
    print(f"{'':34}" + "".join(f"{what:>{11 if what != EQUAL else 10}}" for _, what in columns))
    for form, edit in rows_of(found):
        own = [counts[form, edit, *column] for column in columns]
        print(f"{form:14}{edit:11}{sum(own):>9,}" + "".join(f"{number:>11,}" for number in own))
    total = [sum(n for (_, _, *rest), n in counts.items() if tuple(rest) == column) for column in columns]
    print(f"{'all':25}{sum(total):>9,}" + "".join(f"{number:>11,}" for number in total))


def print_torch(found: Sequence[Case], answers: Sequence[Opinion]) -> None:
    verdicts = ("accept", "reject", "hang", "error", "time")
    counts: Counter[tuple[str, ...]] = Counter()
    for (form, each, _), answer in zip(found, answers, strict=True):
        runs = {EQUAL: "runs", WASTEFUL: WASTEFUL}.get(each.happens, "fails")
        counts[form, each.edit, runs, answer.verdict] += 1
    print("\nPyTorch (its reader, _validate_schedule, its lowering, _simulate_comms_compute) of the same")
    groups = [(runs, verdict) for runs in ("runs", "fails", WASTEFUL) for verdict in verdicts]
    groups = [group for group in groups if any(counts[form, edit, *group] for form, edit in rows_of(found))]
    print(f"{'':25}" + "".join(f"{runs:>10}" for runs, _ in groups))
    print(f"{'':25}" + "".join(f"{verdict:>10}" for _, verdict in groups))
    for form, edit in rows_of(found):
        print(f"{form:14}{edit:11}" + "".join(f"{counts[form, edit, *group]:>10,}" for group in groups))
    sums = [sum(n for (_, _, *rest), n in counts.items() if tuple(rest) == group) for group in groups]
    print(f"{'all':25}" + "".join(f"{number:>10,}" for number in sums))
    said = Counter(
        (each.happens, answer.verdict, answer.said[:90])
        for (_, each, _), answer in zip(found, answers, strict=True)
        if (each.happens == EQUAL) != (answer.verdict == "accept") and each.happens != WASTEFUL
    )
    print("\nwhere PyTorch and what happens differ: how often, what happens, PyTorch's answer")
    for (happens, verdict, words), number in said.most_common(12):
        print(f"{number:>9,}  {happens:8}{verdict:8}{words}")


def rows_of(found: Sequence[Case]) -> list[tuple[str, str]]:
    return [
        (form, edit)
        for form in ("computations", "communication")
        for edit in EDITS
        if any(form == each[0] and edit == each[1].edit for each in found)
    ]


def print_wasteful(found: Sequence[Case]) -> None:
    wasteful = [(form, each) for form, each, _ in found if each.happens == WASTEFUL]
    print(f"\n{len(wasteful):,} wasteful ones: the gradients are equal if no message is sent twice. If each operation")
    print("sends its own message, as in PyTorch, so many of them end with")
    for form in ("computations", "communication"):
        for transport in TRANSPORTS:
            ends = Counter(each.repeated[transport] for own, each in wasteful if own == form)
            print(f"    {form:14}{transport:18}" + "".join(f"{what:>8}{ends[what]:>7,}" for what in (EQUAL, *FAILS)))
    fine = sum(set(each.repeated.values()) == {EQUAL} for _, each in wasteful)
    print(f"    {fine:,} of them end equal on every transport: each repeats an F that sends nothing itself")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-p", type=int, default=4, help="the most ranks")
    options.add_argument("-m", type=int, default=8, help="the most microbatches")
    options.add_argument("--every", type=int, default=1, help="of each program every so many mutants")
    options.add_argument("--no-torch", action="store_true")
    given = options.parse_args()
    begin = time.perf_counter()
    sizes = [(p, m) for p in range(1, given.p + 1) for m in range(1, given.m + 1)]
    configs = [(name, p, m, given.every) for name in closed() for p, m in sizes if admitted(name, p=p, m=m)]
    with ProcessPoolExecutor(2) as pool:
        found = [case for part in pool.map(cases, reversed(configs)) for case in part]
    print(f"{len(found):,} mutants of {len(configs)} programs, in {time.perf_counter() - begin:.0f} s\n")
    print_ours(found)
    print_wasteful(found)
    wrong = [(form, each) for form, each, _ in found if each.wrong]
    print(f"\n{len(wrong):,} disagreements of a verdict with what happens")
    for form, each in wrong[:20]:
        print(f"    {form}: {each.name}: {each.wrong}")
    if not given.no_torch:
        begin = time.perf_counter()
        print_torch(found, ask_torch([question for _, _, question in found]))
        print(f"\nPyTorch took {time.perf_counter() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
