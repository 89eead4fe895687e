"""Syntax trees without their spans, to compare what two texts mean."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipedsl.diagnostics import Source, Span
from pipedsl.parser import parse
from pipedsl.syntax import Schedule


def bare(node: Any) -> Any:
    """The node as nested tuples: the class's name, then the fields; spans left out."""
    if isinstance(node, Span | Source):
        return None
    if isinstance(node, tuple):
        return tuple(bare(part) for part in node)
    if dataclasses.is_dataclass(node):
        fields = (bare(getattr(node, field.name)) for field in dataclasses.fields(node))
        return (type(node).__name__, *fields)
    return node


def tree(text: str) -> Schedule:
    return parse(Source("test.sched", text))
