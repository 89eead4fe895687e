"""The sizes of a program as JSON: whole numbers, in multiples of 1 / `unit` of the file's own unit."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

from pipedsl.program import Memory

SIZES = ("activation", "held_by_w", "input", "output", "weights", "gradients", "optimizer")
_MOST_BITS = 4096


def memory_json(memory: Memory) -> dict[str, Any]:
    """`{"unit", "activation": [one a stage], ..., "cap": [one a rank, null for none]}`.

    Raises ValueError for sizes without a common denominator of a few hundred digits.
    """
    columns: dict[str, tuple[Fraction | None, ...]] = {name: getattr(memory, name) for name in SIZES}
    columns["cap"] = memory.cap
    unit = 1
    for denominator in {value.denominator for column in columns.values() for value in column if value is not None}:
        unit = lcm(unit, denominator)
        if unit.bit_length() > _MOST_BITS:
            raise ValueError("the sizes have no common denominator of a reasonable length")
    scaled = {name: [None if v is None else int(v * unit) for v in column] for name, column in columns.items()}
    return {"unit": unit, **scaled}
