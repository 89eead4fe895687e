"""A certificate of a bound, judged as a whole."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

from verify.bound.arguments import lower_bound
from verify.bound.order import cost
from verify.bound.problem import MOST, read_problem
from verify.bound.reading import digest, fields, integer, need
from verify.bound.text import smt_text

FORMAT, VERSION = "pipedsl bound", 1


def check(certificate: Any, subject: Any, program: Any = None) -> str:
    """What the certificate proves of the problem, and of the program if one is given. Raises Refused."""
    names = ("format", "version", "sha256", "problem", "bound", "evidence", "refuted")
    title, version, signature, about, bound, evidence, refuted = fields(certificate, "the certificate", *names)
    need(
        title == FORMAT and type(version) is int and version == VERSION, "the certificate", "another format or version"
    )
    body = {name: value for name, value in certificate.items() if name != "sha256"}
    need(signature == digest(body), "sha256", "something was altered")
    need(about == digest(subject), "problem", "the certificate is about another problem")
    problem = read_problem(subject)
    proved = lower_bound(problem, evidence)
    need(type(bound) is int and bound == proved, "bound", f"the evidence says {proved}")
    aim = "makespan" if problem.makespan else "span"
    condition = ""
    if refuted is not None:
        limit, text = fields(refuted, "refuted", "limit", "sha256")
        integer(limit, "refuted.limit", proved, MOST)
        own = hashlib.sha256(smt_text(problem, limit).encode()).hexdigest()
        need(text == own, "refuted.sha256", f"the problem's own text has {own}")
        proved, condition = limit + 1, f", if a solver answers unsat to the file with SHA-256 {own}"
    said = f"no order has a {aim} below {Fraction(proved, problem.unit)}"
    if program is None:
        return said + condition
    value = cost(problem, program)
    need(value >= proved, "the program", f"its {aim} is below the bound")
    if any(each[0] == "REDUCE" for row in program["ranks"] for each in row):
        # Of which the problem says what it adds at least.
        return (
            f"this order has a {aim} of at least {Fraction(value, problem.unit)} with every REDUCE; {said}{condition}"
        )
    best = ", so it is the smallest" if value == proved else ""
    return f"this order has a {aim} of {Fraction(value, problem.unit)}; {said}{best}{condition}"
