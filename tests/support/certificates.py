"""Certificates for tests: made, copied, altered and signed again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from pipedsl.memory_json import memory_json
from pipedsl.program import Program
from pipedsl.render.expansion import program_json
from verify import Verdict, verify
from verify.certificate import certificate, digest
from verify.checker import Refused, check

Path = tuple[Any, ...]


def certified(program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
    """A program's certificate and its JSON, sizes too, both as they are read from files."""
    report = verify(program)
    assert report.verdict is Verdict.VERIFIED, report.diagnostics
    assert report.calls is not None
    subject = json.loads("".join(program_json(program))) | {"memory": memory_json(program.memory)}
    return json.loads(json.dumps(certificate(program, report.calls, report))), subject


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """The same with the digest that belongs to it."""
    return {**document, "sha256": digest(document)}


def accepted(document: Any, subject: Any) -> bool:
    try:
        check(document, subject)
    except Refused:
        return False
    return True


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of every value in a JSON document, inner ones too."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*path, key))


def at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def changed(document: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy with another value in one place."""
    if not path:
        return value
    found = copy.deepcopy(document)
    at(found, path[:-1])[path[-1]] = value
    return found
