"""REDUCE at any places of programs with copies, against a machine that knows nothing of arrays, calls or events."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from pipedsl.api import parse_text, verify
from pipedsl.expand import expand
from pipedsl.program import Kind, Program
from pipedsl.sched_text import program_text
from tests.support import compiled
from verify import Verdict

THREE = """schedule three(p, m)
stages p
replica a { place s -> s }
replica b { place s -> (s + 1) % p }
replica c { place s -> s }
rank r { for k in 0 .. 3 { F@k * m } for k in 0 .. 3 { I@k * m } for k in 0 .. 3 { W@k * m } }
"""
BASES = [
    (compiled.TWO_WAYS, 2, 1),
    (compiled.TWO_WAYS, 3, 2),
    (compiled.TWO_WAYS_SPLIT, 2, 2),
    (compiled.CHIMERA, 4, 2),
    (compiled.V_SHAPE, 2, 2),
    (THREE, 2, 2),
]
PROGRAMS = 120
DURATION = {"F": 2, "B": 3, "I": 2, "W": 1}

Row = tuple[str, int, int, int]  # kind, replica, stage, microbatch; -1 for a REDUCE


def rows_of(program: Program) -> list[list[Row]]:
    columns = (program.replica.tolist(), program.stage.tolist(), program.microbatch.tolist())
    rows = [(Kind(kind).name, *rest) for kind, *rest in zip(program.kind.tolist(), *columns, strict=True)]
    return [[rows[row] for row in program.rows(rank)] for rank in range(program.ranks)]


def with_reductions(program: Program, draw: random.Random) -> list[list[Row]]:
    """Some REDUCEs: mostly all that there should be, and not too early."""
    ranks = rows_of(program)
    left_out = {s for s in range(program.stages) if draw.random() < 0.3}
    for rank, rows in enumerate(ranks):
        for replica, stage in draw.sample(chunks := program.chunks(rank), len(chunks)):
            if stage in left_out or draw.random() < 0.02:
                continue
            last = max(k for k, row in enumerate(rows) if row[1:3] == (replica, stage) and row[0] in "BW")
            earliest = last + 1 if draw.random() < 0.97 else 0
            # Near the end of its backwards, or anywhere after them.
            near = draw.random() < 0.5
            place = earliest if near else draw.randint(earliest, len(rows))
            rows.insert(place, ("REDUCE", replica, stage, -1))
            if draw.random() < 0.01:
                rows.insert(draw.randint(place, len(rows)), ("REDUCE", replica, stage, -1))
    return ranks


def written(program: Program, ranks: list[list[Row]]) -> str:
    """A schedule with a block for each rank and every operation by its number."""

    lines = [f"schedule made(p = {program.ranks}, m = {program.microbatches})", f"stages {program.stages}"]
    for number, copy in enumerate(program.placement.tolist()):
        chain = " else ".join([*(f"{rank} if s == {s}" for s, rank in enumerate(copy[:-1])), str(copy[-1])])
        place = f"place s -> {chain}"
        lines.append(place if len(program.placement) == 1 else f"replica c{number} {{ {place} }}")
    for rank, rows in enumerate(ranks):
        chunk = {pair: k for k, pair in enumerate(program.chunks(rank))}
        words = [
            f"{kind}@{chunk[replica, stage]}" + ("" if kind == "REDUCE" else f"[{i}]")
            for kind, replica, stage, i in rows
        ]
        lines.append(f"rank r where r == {rank} {{ {' '.join(words)} }}")
    lines.append("cost s { F = 2  I = 2  W = 1  REDUCE = s + 1 }")
    return "\n".join(lines) + "\n"


def run(program: Program, ranks: list[list[Row]]) -> dict[tuple[int, int], int] | None:
    """When each row (rank, number) ends; None where something is wrong or the ranks wait for ever."""
    stages, copies = program.stages, len(program.placement)
    sums = [row[1:3] for rows in ranks for row in rows if row[0] == "REDUCE"]
    if len(set(sums)) < len(sums):
        return None
    if any(0 < sum((c, s) in sums for c in range(copies)) < copies for s in range(stages)):
        return None
    for rows in ranks:
        for at, (kind, replica, stage, _) in enumerate(rows):
            if kind == "REDUCE" and any(row[0] in "BIW" and row[1:3] == (replica, stage) for row in rows[at:]):
                return None
    # The last REDUCE of a stage on each rank meets the others.
    last = {
        (stage, rank): at
        for rank, rows in enumerate(ranks)
        for at, (kind, _, stage, _) in enumerate(rows)
        if kind == "REDUCE"
    }
    done: dict[tuple[str, int, int, int], int] = {}
    end: dict[tuple[int, int], int] = {}
    at, clock = [0] * len(ranks), [0] * len(ranks)
    moved = True
    while moved:
        moved = False
        for rank, rows in enumerate(ranks):
            if at[rank] == len(rows):
                continue
            kind, replica, stage, i = rows[at[rank]]
            if kind == "REDUCE":
                meeting = [r for r in range(len(ranks)) if (stage, r) in last] if last[stage, rank] == at[rank] else []
                if any(at[r] != last[stage, r] for r in meeting):
                    continue
                together = max((clock[r] for r in meeting), default=clock[rank]) + (stage + 1 if meeting else 0)
                for r in meeting or [rank]:
                    end[r, at[r]] = clock[r] = together
                    at[r] += 1
                moved = True
                continue
            back = "B" if kind == "B" else "I"
            if kind == "F":
                needs = [("F", replica, stage - 1, i)] if stage else []
            elif kind == "W":
                needs = [("I", replica, stage, i)]
            else:
                needs = [("F", replica, stage, i), *([(back, replica, stage + 1, i)] if stage < stages - 1 else [])]
            if all(need in done for need in needs):
                clock[rank] = max([clock[rank], *(done[need] for need in needs)]) + DURATION[kind]
                end[rank, at[rank]] = done[kind, replica, stage, i] = clock[rank]
                at[rank] += 1
                moved = True
    return end if all(place == len(rows) for place, rows in zip(at, ranks, strict=True)) else None


@pytest.mark.parametrize("base", range(len(BASES)))
def test_verdicts_and_times_are_those_of_a_machine(base: int) -> None:
    text, p, m = BASES[base]
    _, program, _ = compiled.build(text, p=p, m=m)
    fine = deadlocks = 0
    for seed in range(PROGRAMS):
        ranks = with_reductions(program, random.Random(base * PROGRAMS + seed))
        made = parse_text(written(program, ranks))
        result = verify(made, {})
        expected = run(program, ranks)
        assert (result.verdict is Verdict.VERIFIED) == (expected is not None), (seed, result.diagnostics)
        if expected is None:
            deadlocks += any(found.code == "PD301" for found in result.diagnostics)
            continue
        fine += 1
        assert set(result.report.transports.values()) == {"safe"}
        assert result.timeline is not None
        assert result.program is not None
        ends = [Fraction(int(x)) * result.timeline.unit for x in result.timeline.end]
        assert ends == [expected[rank, at] for rank, rows in enumerate(ranks) for at in range(len(rows))], seed
        back = expand(parse_text(program_text(result.program)), {})
        for name in ("kind", "stage", "replica", "microbatch", "offsets"):
            assert np.array_equal(getattr(back, name), getattr(result.program, name)), name
        assert back.costs == result.program.costs
    assert fine > PROGRAMS // 5
    assert deadlocks > PROGRAMS // 25 or len(program.placement) == 1
