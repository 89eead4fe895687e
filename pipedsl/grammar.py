"""The lark parser of `grammar.lark`, read from tables that are made beforehand: 5 ms instead of 60.

`PYTHONHASHSEED=0 python -m pipedsl.grammar` makes `grammar_tables.json` anew, after every change to `grammar.lark` (the
seed keeps the numbering, and so the difference small). Tables of another grammar or another version of
lark are passed over, and the parser is built from the grammar: slower, never wrong.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark

GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("grammar_tables.json")


@functools.cache
def lark_parser() -> Lark:
    from lark import Lark

    grammar = GRAMMAR.read_text(encoding="utf-8")
    tables = _tables(grammar)
    return build(grammar) if tables is None else Lark.load(tables)


def build(grammar: str) -> Lark:
    from lark import Lark

    return Lark(grammar, parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=True)


def _tables(grammar: str) -> dict[str, Any] | None:
    """What lark made of `grammar` before, if this very lark did."""
    import lark

    if not TABLES.is_file():
        return None
    stored = json.loads(TABLES.read_text(encoding="utf-8"), object_pairs_hook=_with_numbers)
    current: bool = stored["lark"] == lark.__version__ and stored["grammar"] == grammar
    return stored["tables"] if current else None


def _with_numbers(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """An object of the tables; numbers as keys are texts in JSON."""
    return {int(key) if key.isdecimal() else key: value for key, value in pairs}


def write_tables() -> None:
    import lark

    grammar = GRAMMAR.read_text(encoding="utf-8")
    data, memo = build(grammar).memo_serialize([lark.lexer.TerminalDef, lark.grammar.Rule])
    stored = {"lark": lark.__version__, "grammar": grammar, "tables": {"data": data, "memo": memo}}
    TABLES.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_tables()
