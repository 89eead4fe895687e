"""JSON that others wrote, with nothing believed: every value has its place, type and range, or is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

MOST_BYTES = 2**30


class Refused(Exception):
    """Where, and why."""


def need(holds: bool, where: str, why: str) -> None:
    if not holds:
        raise Refused(f"{where}: {why}")


def read(path: str) -> Any:
    """The value in a file: no floats, no key twice, within a size. Raises OSError and Refused."""
    with open(path, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    need(len(data) <= MOST_BYTES, ascii(path), f"larger than {MOST_BYTES} bytes")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), ascii(path), "a key stands twice in one object")
        return dict(pairs)

    def never(text: str) -> Any:
        raise Refused(f"{path!a}: {text[:20]} is no whole number")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=never, parse_constant=never)
    except ValueError as error:
        raise Refused(f"{path!a}: {str(error)[:200]!a}") from None


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fields(value: Any, where: str, *names: str) -> list[Any]:
    """The values of an object that has these keys and no other."""
    need(type(value) is dict and value.keys() == set(names), where, f"expected an object with {', '.join(names)}")
    return [value[name] for name in names]


def items(value: Any, where: str, count: int | None = None) -> list[Any]:
    right = type(value) is list and count in (None, len(value))
    need(right, where, f"expected a list of {'any' if count is None else count} values")
    return list(value)


def integer(value: Any, where: str, low: int, high: int) -> int:
    need(type(value) is int and low <= value <= high, where, f"expected an integer from {low} to {high}")
    return int(value)


def integers(value: Any, where: str, low: int, high: int, count: int | None = None) -> list[int]:
    return [integer(each, f"{where}[{at}]", low, high) for at, each in enumerate(items(value, where, count))]
