"""Ctrl-C where an exception would be printed and lost, or leave something half made."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import signal, sys, time, weakref
from pipedsl.interrupts import handle_with, raise_where_safe
handle_with(raise_where_safe)

def press(*_):
    signal.raise_signal(signal.SIGINT)

class Held:
    def __del__(self):
        press()
        print("gone")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "colorsys":
            press()

def pressed_in_z3():
    import z3
    make = z3.z3.Z3_mk_context_rc
    def made(config):
        press()
        context = make(config)
        print("made")
        return context
    z3.z3.Z3_mk_context_rc = made
    z3.Context()

def imported():
    sys.meta_path.insert(0, Finder())
    import colorsys

try:
    {what}
    time.sleep(60)
except KeyboardInterrupt:
    if "colorsys" in sys.modules:
        print("imported")
    print("stopped")
"""


@pytest.mark.parametrize(
    ("what", "before"),
    [
        ("Held()", "gone\n"),
        ("callback = weakref.ref(set(), press)", ""),
        ("imported()", "imported\n"),
        ("pressed_in_z3()", "made\n"),
        ("press()", ""),
    ],
)
def test_it_comes_when_what_was_begun_is_done(what: str, before: str) -> None:
    if "z3" in what:
        pytest.importorskip("z3")
    code = HEAD.replace("{what}", what)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == (f"{before}stopped\n", "", 0)


def test_after_the_command_it_ends_nothing() -> None:
    code = """
import signal
from pipedsl.interrupts import handle_with, ignore, raise_where_safe
handle_with(raise_where_safe)
ignore()
signal.raise_signal(signal.SIGINT)
print("whole")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("whole\n", "")


def test_other_exceptions_that_are_lost_are_printed() -> None:
    code = """
from pipedsl.interrupts import handle_with, ignore, raise_where_safe

class Fails:
    def __del__(self):
        raise ValueError("in a __del__")

handle_with(raise_where_safe)
Fails()
ignore()
Fails()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr.count("ValueError: in a __del__") == 2


def test_ctrl_c_reaches_the_search_while_cpsat_reasons() -> None:
    """CP-SAT would take the signal for itself, and only end its answer to one question."""
    pytest.importorskip("ortools")
    code = """
import os, signal, threading
from ortools.sat.python import cp_model
from verify.search import lower_bound, make_problem, model_of, uniform_costs
from verify.search.cpsat import decide

signal.signal(signal.SIGINT, signal.default_int_handler)
solve = cp_model.CpSolver.solve

def solved(solver, model):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return solve(solver, model)

cp_model.CpSolver.solve = solved
model = model_of(make_problem(placement=range(8), microbatches=32, costs=uniform_costs(8, 13, 11, 7), cap=5))
try:
    print(decide(model, lower_bound(model).value + 130, work=1000))
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("stopped\n", "")
