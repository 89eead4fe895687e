"""The problem as SMT-LIB: other solvers find an order where there is one, and none where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cvc5
import pytest
import z3
from brute import optimum
from problems import EQUAL, linear, random_problem, vee

from verify.bound.problem import read_problem
from verify.bound.text import smt_text
from verify.search import Problem, model_of
from verify.search.problem_json import problem_json
from verify.search.smtlib import narrowed_text

MIXED = {"F": "1", "I": "1.1", "W": "0.7", "send": "0.1"}


def by_z3(text: str) -> str:
    solver = z3.Solver()
    solver.from_string(text)
    return str(solver.check())


def by_cvc5(text: str) -> str:
    """Another solver, by other people; it is strict about what a logic may say."""
    solver = cvc5.Solver(cvc5.TermManager())
    parser = cvc5.InputParser(solver)
    # It compares its answer with the one expected, where it is told.
    text = text.replace("(set-info :status unsat)\n", "")
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "text")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, parser.getSymbolManager()))
    return said.strip()


def plain(problem: Problem, limit: int) -> str:
    """`limit` in the problem's units."""
    return smt_text(read_problem(problem_json(problem)), limit * problem.time_unit.numerator)


@pytest.mark.parametrize("first", range(2000, 2080, 20))
def test_says_what_brute_force_says(first: int) -> None:
    tried = 0
    for seed in range(first, first + 20):
        problem = random_problem(seed)
        try:
            best = optimum(problem, 3000)
        except ValueError:
            continue
        tried += 1
        solve = by_z3 if seed % 4 else by_cvc5
        if best is None:
            assert solve(plain(problem, 10**6)) == "unsat", f"seed {seed}"
            continue
        least = int(best / problem.time_unit)
        assert solve(plain(problem, least)) == "sat", f"seed {seed}"
        assert solve(plain(problem, least - 1)) == "unsat", f"seed {seed}"
    assert tried > 10


@pytest.mark.parametrize(
    ("problem", "limit"),
    [
        (linear(3, 6, EQUAL, 2), 24),
        (linear(4, 8, EQUAL, 2), 40),
        (linear(4, 8, EQUAL, 3), 30),
        (linear(3, 6, MIXED, 2), 254),
        (linear(2, 5, {**EQUAL, "W": "0"}, 1, held=0), 19),
    ],
    ids=["24", "40", "30", "costs", "instants"],
)
def test_another_solver_refutes_what_was_refuted(problem: Problem, limit: int) -> None:
    assert by_cvc5(plain(problem, limit)) == "unsat"
    helped = narrowed_text(model_of(problem), limit)
    assert helped is None or by_cvc5(helped) == "unsat"


def test_two_chunks() -> None:
    problem = vee(2, 4, EQUAL, 1)
    text = plain(problem, 25)
    assert "(set-logic QF_LIA)" in text
    assert by_z3(text) == "unsat"
    assert by_z3(plain(problem, 26)) == "unsat"
    helped = narrowed_text(model_of(problem), 26)
    assert helped is None or by_z3(helped) == "unsat"


def test_what_windows_refute_needs_no_help_but_has_its_text() -> None:
    problem = linear(4, 8, EQUAL, 4)
    assert narrowed_text(model_of(problem), 20) is None
    assert by_cvc5(plain(problem, 20)) == "unsat"


def test_a_cap_is_among_what_is_said() -> None:
    problem = linear(3, 6, EQUAL, 2)
    assert by_z3(plain(problem, 24)) == "unsat"
    assert by_z3(plain(replace(problem, cap=(None,) * 3), 24)) == "sat"


def test_the_file_alone_is_enough(tmp_path: Path) -> None:
    """z3 as a program, which reads the file and nothing else."""
    program = shutil.which("z3", path=str(Path(sys.executable).parent)) or shutil.which("z3")
    assert program is not None, "the wheel of z3 brings its program"
    (tmp_path / "c.smt2").write_text(plain(linear(3, 6, EQUAL, 2), 24))
    done = subprocess.run([program, "c.smt2"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "unsat\n"
