"""Answers of the search, kept by content in a folder of the user.

The key is a digest of everything that an answer depends on: the problem, the budget, the seed, where the search began,
and the text of the search itself. An entry holds orders, which are judged anew when they are read, and the lower bound,
which is believed only if the digest of the whole entry is right. Whatever is wrong with an entry or the folder, the
search just runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipedsl import __version__
from pipedsl.files import write_atomically
from verify.search.judge import Invalid, judge
from verify.search.problem import Operation, Problem
from verify.search.solve import Proof, Solution

if TYPE_CHECKING:
    from pipedsl.search_runs import Job

FORMAT = 2

LARGEST = 1 << 26
"""Bytes of an entry: hundreds of times as many as those of 64 ranks and 512 microbatches."""

SOLVERS = ("z3-solver", "ortools")
"""The packages whose answers are believed."""

LONGEST = 500
"""Characters of an argument; those of the search are a few words."""

_EXACT = re.compile(r"-?[0-9]+(/[0-9]+)?")


@dataclass(frozen=True)
class Kept:
    """An answer: `least` and `elapsed` as of an `Outcome`."""

    solution: Solution
    least: bool
    elapsed: float


def user_folder() -> Path:
    """`$XDG_CACHE_HOME/pipedsl`, by default `~/.cache/pipedsl`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "pipedsl"


@cache
def _engine() -> str:
    """A digest of the program that searches: another one may answer otherwise."""
    import pipedsl
    import verify

    digest = hashlib.sha256(__version__.encode())
    for package, pattern in ((verify, "**/*.py"), (pipedsl, "search*.py")):
        for path in sorted(Path(package.__path__[0]).glob(pattern)):
            digest.update(path.name.encode() + path.read_bytes())
    for solver in SOLVERS:
        with suppress(PackageNotFoundError):
            digest.update(f"{solver} {version(solver)}".encode())
    return digest.hexdigest()


def key_of(job: Job) -> str:
    """The digest that names the answer to a job."""
    problem, known = job.problem, job.known
    strands = [
        [[(int(op.kind), op.stage, op.microbatch) for op in strand] for strand in each] for each in problem.strands
    ]
    given = {each.name: repr(getattr(problem, each.name)) for each in fields(Problem) if each.name != "strands"}
    what = {
        "format": FORMAT,
        "engine": _engine(),
        "budget": repr(job.budget),
        "seed": job.seed,
        "aim": job.aim.name,
        "fixed": repr(job.fixed),
        "start": repr(job.start),
        "known": None if known is None else [str(known.bound), str(known.proof), known.argument],
        "problem": given,
    }
    return hashlib.sha256(json.dumps([what, strands], sort_keys=True).encode()).hexdigest()


def load_solution(folder: Path, key: str, problem: Problem) -> Kept | None:
    """What is kept; None where there is nothing that holds."""
    try:
        entry = json.loads(_text(_path(folder, key)))
        body = entry["body"]
        if entry["sha256"] != _digest(body) or body["key"] != key:
            return None
        orders = tuple(_merged(each, strands) for each, strands in zip(body["orders"], problem.strands, strict=True))
        judgement = judge(problem, orders)
        solution = Solution(
            problem=problem,
            orders=orders,
            value=judgement.value(problem.objective),
            bound=_exact(body["bound"]),
            proof=None if body["proof"] is None else Proof(body["proof"]),
            argument=_line(body["argument"]),
            judgement=judgement,
            work=_amount(body["work"]),
            log=(),
        )
        kept = Kept(solution, body["least"] is True, _amount(body["elapsed"]))
        return kept if solution.bound <= solution.value == _exact(body["value"]) else None
    except (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError, Invalid):
        return None


def _text(path: Path) -> str:
    """What is in a regular file that is not too large for an entry. Raises OSError or ValueError for all else.

    It is opened without waiting, as a pipe would be waited for that nobody writes to.
    """
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("no regular file")
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("too large for an entry")
    return data.decode()


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _exact(value: object) -> Fraction:
    """A number as `str` writes it: of 1e999999999 no Fraction would ever be made. Raises TypeError or ValueError."""
    text = _string(value)
    if not _EXACT.fullmatch(text):
        raise ValueError("no number")
    return Fraction(text)


def _line(value: object) -> str:
    """Words for the terminal and for a comment of one line. Raises TypeError or ValueError."""
    text = _string(value)
    if len(text) > LONGEST or not (text.isascii() and text.isprintable()):
        raise ValueError("no words")
    return text


def _amount(value: object) -> float:
    """Raises TypeError, ValueError or OverflowError for what is no time or work."""
    if type(value) not in (int, float):
        raise TypeError("no number")
    found = float(value)  # type: ignore[arg-type]
    if not 0 <= found < inf:
        raise ValueError("no amount")
    return found


def store_solution(folder: Path, key: str, kept: Kept) -> None:
    """Keep an answer; a folder that cannot be written to keeps nothing."""
    solution = kept.solution
    body = {
        "key": key,
        "orders": [
            _choices(order, strands) for order, strands in zip(solution.orders, solution.problem.strands, strict=True)
        ],
        "value": str(solution.value),
        "bound": str(solution.bound),
        "proof": None if solution.proof is None else solution.proof.value,
        "argument": solution.argument,
        "work": solution.work,
        "least": kept.least,
        "elapsed": kept.elapsed,
    }
    path = _path(folder, key)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() or not path.exists():  # no pipe, which would be waited for
            write_atomically(path, json.dumps({"body": body, "sha256": _digest(body)}) + "\n")


def _path(folder: Path, key: str) -> Path:
    return folder / f"search-{key[:40]}.json"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _choices(order: tuple[Operation, ...], strands: tuple[tuple[Operation, ...], ...]) -> list[int]:
    """Which strand runs next, all along: an order, said shortly."""
    number = {operation: k for k, strand in enumerate(strands) for operation in strand}
    return [number[operation] for operation in order]


def _merged(choices: list[int], strands: tuple[tuple[Operation, ...], ...]) -> tuple[Operation, ...]:
    """The order that `_choices` says. Raises IndexError or TypeError for what is no such list."""
    at = [0] * len(strands)
    order = []
    for k in choices:
        order.append(strands[k][at[k]])
        at[k] += 1
    return tuple(order)
