"""Lower bounds of searches are accepted with their evidence; nothing that is not true is."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from brute import cost as brute_cost
from brute import optimum
from certificates import at, changed, paths
from problems import EQUAL, linear, random_problem, vee

from pipedsl.program import Kind
from pipedsl.render.expansion import program_json
from verify import bound_checker
from verify.bound.arguments import frees
from verify.bound.certificate import check
from verify.bound.order import cost
from verify.bound.problem import read_problem
from verify.bound.reading import Refused, digest
from verify.bound.text import smt_text
from verify.bound_checker import main
from verify.search import (
    Budget,
    Infeasible,
    NothingFound,
    Objective,
    Operation,
    Problem,
    make_problem,
    program_of,
    solve,
    uniform_costs,
)
from verify.search.evidence import bound_certificate
from verify.search.problem_json import problem_json

CHECKER = Path(bound_checker.__file__)
FILES = [CHECKER, *sorted((CHECKER.parent / "bound").glob("*.py"))]
Document = dict[str, Any]


def certified(problem: Problem, bound: int = 0) -> tuple[Document, Document]:
    """The certificate of what the arguments prove, or of more with a solver's help, and the problem, as in files."""
    certificate, _ = bound_certificate(problem, bound)
    return json.loads(json.dumps(certificate)), json.loads(json.dumps(problem_json(problem)))


def signed(certificate: Document, subject: Document) -> Document:
    body = {name: value for name, value in certificate.items() if name != "sha256"} | {"problem": digest(subject)}
    return {**body, "sha256": digest(body)}


def answer(problem: Problem) -> tuple[Fraction, Document]:
    found = solve(problem, budget=Budget(work=10))
    return found.value, json.loads("".join(program_json(program_of(problem, found.orders))))


def chimera(objective: str = "makespan") -> Problem:
    """Two copies of two stages, placed the other way round."""
    return make_problem(
        placement=[0, 1, 1, 0],
        microbatches=2,
        costs=uniform_costs(4, 1, 2, 1, "1/2"),
        cap=3,
        replicas=2,
        objective=Objective(objective),
    )


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_no_accepted_bound_is_above_the_optimum(first: int) -> None:
    tight = tried = 0
    for seed in range(first, first + 40):
        problem = random_problem(seed)
        try:
            best = optimum(problem, 3000)
            certificate, subject = certified(problem)
        except (ValueError, Infeasible):
            continue
        check(certificate, subject)
        if best is not None:
            assert Fraction(certificate["bound"], subject["times"]["unit"]) <= best, f"seed {seed}"
            tight += Fraction(certificate["bound"], subject["times"]["unit"]) == best
            tried += 1
    assert tried > 20
    assert tight > tried / 2, "the evidence says less than it could"


PROVED = {
    "load": (linear(4, 8, EQUAL, 4), 27),
    "one at a time": (linear(3, 9, EQUAL, 1), 63),
    "no cap": (linear(3, 4, {"F": "1", "I": "1.1", "W": "0.7", "send": "0.1"}, None), Fraction("13.7")),
    "a cap": (linear(3, 6, {"F": "1", "I": "1.1", "W": "0.7", "send": "0.1"}, 3), Fraction("20.4")),
    "a span": (linear(3, 7, EQUAL, 5, objective="span"), 21),
    "round trips": (linear(3, 7, EQUAL, 3, objective="span"), 23),
    "two chunks": (vee(2, 4, EQUAL, 2), Fraction("12.5")),
}


@pytest.mark.parametrize("name", PROVED)
def test_an_order_that_meets_its_bound_is_the_smallest(name: str) -> None:
    problem, best = PROVED[name]
    value, program = answer(problem)
    assert value == best
    certificate, subject = certified(problem)
    said = check(certificate, subject, program)
    assert f" of {best}; no order has a " in said
    assert said.endswith(f" below {best}, so it is the smallest")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_orders_cost_what_they_do(first: int) -> None:
    for seed in range(first, first + 20):
        problem = random_problem(seed)
        try:
            found = solve(problem, budget=Budget(work=0.2))
        except (Infeasible, NothingFound):
            continue
        program = json.loads("".join(program_json(program_of(problem, found.orders))))
        value = brute_cost(problem, found.orders)
        assert value is not None
        assert cost(read_problem(problem_json(problem)), program) == value * problem.time_unit.numerator


def test_replicas() -> None:
    problem = chimera()
    value, program = answer(problem)
    certificate, subject = certified(problem)
    assert f"makespan of {value}" in check(certificate, subject, program)
    assert Fraction(certificate["bound"], subject["times"]["unit"]) <= value
    program["ranks"][0][0][3] = 1 - program["ranks"][0][0][3]
    with pytest.raises(Refused, match="rank 0, operation"):
        check(certificate, subject, program)


def test_what_is_no_answer_is_refused() -> None:
    problem = linear(2, 3, EQUAL, 2)
    _, program = answer(problem)
    certificate, subject = certified(problem)

    def refused(program: Document, why: str, subject: Document = subject) -> None:
        with pytest.raises(Refused, match=why):
            check(signed(certificate, subject), subject, program)

    refused(changed(program, ("ranks", 0), program["ranks"][0][:-1]), "leaves some out")
    refused(changed(program, ("ranks", 0), program["ranks"][1]), "on another rank")
    first, second, *rest = program["ranks"][0]
    refused(changed(program, ("ranks", 0), [second, first, *rest]), "order of its strand")
    refused(
        changed(program, ("ranks", 1), [["I", 1, 0], ["F", 1, 0], *program["ranks"][1][2:]]), "before what it needs"
    )
    refused(changed(program, ("ranks",), program["ranks"][:1]), "a list of 2")
    late = [["F", 0, 0], ["F", 0, 1], ["F", 0, 2], *([kind, 0, i] for i in range(3) for kind in "IW")]
    refused(changed(program, ("ranks", 0), late), "more is held than the cap")
    order = [[kind, 0, i] for i in range(3) for kind in "FIW"]
    crossed = [
        ["F", 1, 1],
        ["F", 1, 0],
        ["I", 1, 1],
        ["W", 1, 1],
        ["I", 1, 0],
        ["W", 1, 0],
        *([k, 1, 2] for k in "FIW"),
    ]
    loose = changed(subject, ("strands", 1), [[operation] for operation in crossed])
    refused({"ranks": [order, crossed]}, "wait for each other", loose)


def split_by_microbatch() -> Problem:
    """W of microbatch 0 apart, the others in one piece: that W says nothing of what the others hold."""
    rows = [[("F", 0, i) for i in range(4)], [("I" if i == 0 else "B", 0, i) for i in range(4)], [("W", 0, 0)]]
    strands = tuple(tuple(Operation(Kind[letter], stage, i) for letter, stage, i in row) for row in rows)
    return make_problem(placement=[0], microbatches=4, costs=uniform_costs(1, 1, 1, 1), cap=2, strands=(strands,))


def test_one_late_w_is_no_claim_on_others() -> None:
    problem = split_by_microbatch()
    subject = read_problem(problem_json(problem))
    assert not frees(subject, 0, ("W", 0, 0), ("F", 0, 3))
    assert frees(subject, 0, ("W", 0, 0), ("F", 0, 1)) is False
    assert frees(subject, 0, ("B", 0, 1), ("F", 0, 3))
    assert optimum(problem) == 12


Forge = Callable[[Document], None]
OF_CHAINS: dict[str, tuple[Forge, str]] = {
    "a higher bound": (lambda d: d.__setitem__("bound", d["bound"] + 1), "the evidence says"),
    "a lower bound": (lambda d: d.__setitem__("bound", d["bound"] - 1), "the evidence says"),
    "a strand twice": (lambda d: d["evidence"]["parts"].append(d["evidence"]["parts"][0]), "expected an integer"),
    "more operations": (lambda d: d["evidence"]["parts"][0].__setitem__("to", 99), "expected an integer"),
    "a head of another": (lambda d: d["evidence"]["parts"][0]["head"].append(["W", 0, 5]), "head or tail"),
    "a longer chain": (lambda d: d["evidence"]["parts"][0]["head"].insert(0, ["W", 1, 5]), "nothing says that"),
    "a tail that is none": (lambda d: d["evidence"]["parts"][0]["tail"].append(["F", 0, 0]), "nothing says that"),
    "a start": (lambda d: d["evidence"].__setitem__("start", [["F", 0, 0]]), "only for spans"),
    "another version": (lambda d: d.__setitem__("version", 2), "another format or version"),
    "a refutation of less": (lambda d: d.__setitem__("refuted", {"limit": 3, "sha256": "0" * 64}), "an integer from"),
    "another refutation": (lambda d: d.__setitem__("refuted", {"limit": 40, "sha256": "0" * 64}), "the problem's own"),
}
OF_SPANS: dict[str, tuple[Forge, str]] = {
    "idling more": (lambda d: d["evidence"]["idle"][0].__setitem__(1, 50), "it idles"),
    "idling twice": (lambda d: d["evidence"]["idle"].append(d["evidence"]["idle"][-1]), "overlap"),
    "idling at once": (lambda d: d["evidence"]["idle"].insert(1, [1, 0]), "overlap"),
    "idling of a part": (lambda d: d["evidence"]["parts"].pop(), "only where all of the rank"),
    "heads of nothing": (lambda d: d["evidence"]["parts"][0]["head"].append(["F", 0, 0]), "no head or tail"),
    "no first": (lambda d: d["evidence"].__setitem__("start", [["I", 2, 0]]), "need not be the first"),
    "a start amid": (lambda d: d["evidence"].__setitem__("start", [["F", 1, 0]]), "a gap"),
}


@pytest.mark.parametrize("name", [*OF_CHAINS, *OF_SPANS])
def test_forgeries_are_refused_with_the_reason(name: str) -> None:
    problem = linear(4, 8, EQUAL, 4) if name in OF_CHAINS else linear(3, 9, EQUAL, 2, objective="span")
    certificate, subject = certified(problem)
    assert bool(certificate["evidence"]["idle"]) == (name in OF_SPANS)
    forge, reason = (OF_CHAINS | OF_SPANS)[name]
    forge(certificate)
    with pytest.raises(Refused, match=r"sha256|version"):
        check(certificate, subject)
    with pytest.raises(Refused, match=reason):
        check(signed(certificate, subject), subject)


def test_a_certificate_is_for_one_problem() -> None:
    certificate, _ = certified(linear(2, 3, EQUAL, 2))
    with pytest.raises(Refused, match="about another problem"):
        check(certificate, problem_json(linear(2, 3, EQUAL, 1)))


SMALL = {
    "load": linear(2, 3, EQUAL, 2),
    "round trips": linear(2, 5, EQUAL, 1),
    "span": linear(2, 3, {"F": "2", "I": "1", "W": "1", "send": "0.5"}, 2, objective="span"),
    "two chunks": vee(2, 2, EQUAL, 1),
    "replicas": chimera(),
}


@pytest.mark.parametrize("name", SMALL)
def test_whatever_is_altered_no_other_bound_comes_through(name: str) -> None:
    """Even where the digest is made to fit. What is still accepted is other evidence for the same bound."""
    certificate, subject = certified(SMALL[name])
    draw = random.Random(name)
    values = [0, 1, 2, -1, "F", "I", "W", "B", None, [], {}, 2**70, True]
    places = [path for path in paths(certificate) if path and path[0] != "sha256"]
    count = 0
    for path in places:
        value = at(certificate, path)
        near = [value - 1, value + 1] if type(value) is int else []
        for other in [*near, *draw.sample(values, 3)]:
            if json.dumps(other) == json.dumps(value):
                continue
            forged = changed(certificate, path, other)
            with pytest.raises(Refused):
                check(forged, subject)
            if "bound" not in path:
                for bound in (certificate["bound"], certificate["bound"] + 1):
                    again = signed({**forged, "bound": bound}, subject)
                    try:
                        check(again, subject)
                    except Refused:
                        continue
                    assert bound == certificate["bound"], (path, other)
            count += 1
    assert count > 100


STRANGE = (None, True, -1, 2**70, "x", "\ud800", [], {}, [[]], [None], {"x": []}, ["F"])


@pytest.mark.parametrize("name", ["one rank", "replicas"])
def test_wrong_types_are_refused_and_nothing_else_happens(name: str) -> None:
    problem = chimera("span") if name == "replicas" else linear(1, 2, EQUAL, 1)
    _, program = answer(problem)
    certificate, subject = certified(problem)
    for path in paths(subject):
        for value in STRANGE:
            if json.dumps(value) != json.dumps(at(subject, path)):
                forged = changed(subject, path, value)
                assert refuses(signed(certificate, forged), forged, program) or reads(forged), (path, value)
    for path in paths(program):
        for value in STRANGE:
            if path[:1] == ("ranks",) and json.dumps(value) != json.dumps(at(program, path)):
                assert refuses(certificate, subject, changed(program, path, value)), (path, value)


def refuses(certificate: Any, subject: Any, program: Any) -> bool:
    try:
        check(certificate, subject, program)
    except Refused:
        return True
    return False


def reads(subject: Any) -> bool:
    """Whether it is a problem, of which what was said of the other may hold as well."""
    try:
        read_problem(subject)
    except Refused:
        return False
    return True


def test_incomplete_problems_are_refused() -> None:
    subject = problem_json(linear(2, 2, EQUAL, 2))
    for path, value, why in (
        (("strands", 0, 2), [["W", 0, 0]], "does not run once"),
        (("strands", 0), [[["F", 0, 0], ["F", 0, 1]]], "does not run once"),
        (("strands",), [[], []], "an operation is missing"),
        (("strands", 0, 2, 1), ["W", 0, 0], "a second time"),
        (("strands", 0, 2, 1), ["W", 1, 1], "on another rank"),
        (("sizes", "held_by_w"), [2, 2], "more than the activation"),
        (("replicas",), 3, "an integer from"),
        (("microbatches",), 0, "an integer from"),
    ):
        with pytest.raises(Refused, match=why):
            read_problem(changed(subject, path, value))


def test_the_checker_is_small_and_needs_nothing() -> None:
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    assert sum(len(text.splitlines()) for text in texts) < 680
    own = {f"verify.bound.{file.stem}" for file in FILES if file != CHECKER}
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = node.module or ""
            assert module in own or module.split(".")[0] in sys.stdlib_module_names


def test_the_command(tmp_path: Path) -> None:
    problem = linear(2, 3, EQUAL, 2)
    value, program = answer(problem)
    certificate, subject = certified(problem)
    forged = copy.deepcopy(certificate)
    forged["bound"] += 1
    for name, content in (("c", certificate), ("p", subject), ("o", program), ("bad", forged)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    for arguments, status, word in (
        (("c.json", "p.json", "o.json"), 0, f"accepted: this order has a makespan of {value}"),
        (("c.json", "p.json"), 0, "accepted: no order has a makespan below"),
        (("bad.json", "p.json"), 1, "refused: sha256"),
        (("p.json", "c.json"), 1, "refused: "),
        (("c.json", "absent.json"), 2, "absent"),
        (("c.json",), 2, "usage"),
    ):
        command = [sys.executable, "-I", "-S", str(CHECKER), *arguments]  # no packages can be found
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, (arguments, done)
        assert word in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text", [b"", b"nul", b"[1.5]", b"[NaN]", b'{"a": 1, "a": 2}', b"\xff", b"[" * 200_000, b"1" * 10_000]
)
def test_hostile_texts(text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, subject = certified(linear(2, 2, EQUAL, 2))
    files = {name: tmp_path / name for name in ("certificate", "problem", "hostile")}
    files["certificate"].write_text(json.dumps(certificate))
    files["problem"].write_text(json.dumps(subject))
    files["hostile"].write_bytes(text)
    assert main([str(files["hostile"]), str(files["problem"])]) == 1
    assert main([str(files["certificate"]), str(files["hostile"])]) == 1
    assert main([str(files["certificate"]), str(files["problem"]), str(files["hostile"])]) == 1
    assert capsys.readouterr().out.count("refused: ") == 3


def test_long_pipelines_have_short_evidence() -> None:
    certificate, subject = certified(linear(16, 128, EQUAL, 8))
    assert len(json.dumps(certificate)) < 50_000
    assert "no order has a makespan below" in check(certificate, subject)


def test_too_large_for_a_solver() -> None:
    problem = linear(2, 900, EQUAL, 2)
    with pytest.raises(Refused, match="pairs"):
        smt_text(read_problem(problem_json(problem)), 1)
    certificate, text = bound_certificate(problem, 10**6)
    assert text is certificate["refuted"] is None
    assert "no order has a makespan below 2" in check(certificate, problem_json(problem))
