"""The mutants that other tests are built on: each is one edit away, and all of them are there."""

from __future__ import annotations

from collections import Counter

import pytest
from mutants import EDITS, mutants
from words import one_f_one_b, word_program

from pipedsl.diagnostics import DiagnosticError, Source
from pipedsl.lower import lower
from pipedsl.program import Program
from pipedsl.simulate import simulate
from pipedsl.torch_csv import read_csv, write_csv
from verify import Verdict, verify

PLAIN = word_program(one_f_one_b(3, 3))
EXPLICIT = read_csv(Source("explicit.csv", write_csv(PLAIN, lower(PLAIN, simulate(PLAIN)))))


def cells(program: Program) -> list[list[str]]:
    return [line.split(",") for line in write_csv(program).splitlines()]


@pytest.mark.parametrize("program", [PLAIN, EXPLICIT], ids=["compute", "explicit"])
def test_every_single_edit_of_every_operation(program: Program) -> None:
    made = list(mutants(program))
    count = Counter(mutant.edit for mutant in made)
    n = len(program)
    communication = n - len(PLAIN)
    want = {"swap": n - 3, "drop": n, "duplicate": n, "move": n, "shift": n, "flip": communication}
    assert count == {edit: number for edit, number in want.items() if number}
    assert len({mutant.name for mutant in made}) == len(made)
    original = write_csv(program)
    assert all(write_csv(mutant.program) != original for mutant in made)
    assert [mutant.name for mutant in mutants(program)] == [mutant.name for mutant in made]
    assert set(count) <= set(EDITS)


def test_what_each_edit_does() -> None:
    by_name = {mutant.name: cells(mutant.program) for mutant in mutants(PLAIN)}
    before = cells(PLAIN)
    assert before[1] == ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]
    at = "rank 1 step 2: B stage 1 microbatch 0"
    assert by_name[f"swap {at}"] == [before[0], ["1F0", "1F1", "1F2", "1B0", "1B1", "1B2"], before[2]]
    assert by_name[f"drop {at}"][1] == ["1F0", "1F1", "1F2", "1B1", "1B2"]
    assert by_name[f"duplicate {at}"][1] == ["1F0", "1F1", "1B0", "1B0", "1F2", "1B1", "1B2"]
    assert by_name[f"shift {at}"][1] == ["1F0", "1F1", "1B1", "1F2", "1B1", "1B2"]
    moved = by_name[f"move {at}"]
    assert moved[1] == ["1F0", "1F1", "1F2", "1B1", "1B2"]
    assert moved[2] == [*before[2][:2], "1B0", *before[2][2:]]
    last = by_name["move rank 2 step 5: B stage 2 microbatch 2"]
    assert last[0] == [*before[0][:5], "2B2", *before[0][5:]]
    assert last[2] == before[2][:5]


def test_spans_stay_with_their_operations() -> None:
    for mutant in mutants(PLAIN):
        if mutant.edit != "shift":
            for row in range(len(mutant.program)):
                text = mutant.program.span_of(row).text
                assert text == mutant.program.label(row).replace(" stage ", "@").replace(" microbatch ", "-").replace(
                    f"@{mutant.program.stage[row]}-", ""
                )


def test_flip_is_the_other_end() -> None:
    flipped = [mutant for mutant in mutants(EXPLICIT) if mutant.edit == "flip"]
    assert any("0RECV_F1" in cells(mutant.program)[0] for mutant in flipped)
    assert all(len(mutant.program) == len(EXPLICIT) for mutant in flipped)


@pytest.mark.parametrize("program", [PLAIN, EXPLICIT], ids=["compute", "explicit"])
def test_a_mutant_has_the_same_verdict_by_way_of_a_file(program: Program) -> None:
    for mutant in mutants(program):
        try:
            by_file = verify(read_csv(Source("mutant.csv", write_csv(mutant.program)))).verdict
        except DiagnosticError:
            by_file = Verdict.REJECTED
        assert by_file is verify(mutant.program).verdict, mutant.name
