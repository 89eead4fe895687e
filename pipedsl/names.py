"""Names of the language for what has another name, or is called as a file is."""

from __future__ import annotations

import re

from pipedsl.evaluate import UNITS
from pipedsl.program import Kind
from pipedsl.tokens import ITEM_KEYWORDS, OTHER_KEYWORDS

WORDS = frozenset(
    [*ITEM_KEYWORDS.values(), *OTHER_KEYWORDS.values(), *UNITS, "True", "False", *(kind.name for kind in Kind)]
)
"""What is no name, though it is made of the same signs."""


def as_name(text: str) -> str:
    """`text` as a name: other signs than those of names are `_`, and a digit or a word of the language follows one."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{name}" if name in WORDS or not name or name[0].isdecimal() else name
