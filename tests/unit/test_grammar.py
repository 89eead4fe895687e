"""The parser's tables are those of the grammar, and do what a parser built from it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipedsl import grammar

SCHEDULES = sorted((Path(__file__).parents[2] / "schedules").glob("*.sched"))


def test_tables_are_current() -> None:
    stored = json.loads(grammar.TABLES.read_text(encoding="utf-8"))
    assert stored["grammar"] == grammar.GRAMMAR.read_text(encoding="utf-8"), (
        "make them anew: PYTHONHASHSEED=0 python -m pipedsl.grammar"
    )


def test_tables_parse_as_the_grammar_does() -> None:
    built = grammar.build(grammar.GRAMMAR.read_text(encoding="utf-8"))
    for text in ("stages p * (v + 1)", "rank r where r > 0 { F * p B@k[i] }", "cost s { F = 1  send = 0.5 }"):
        assert built.parse(text) == grammar.lark_parser().parse(text)


@pytest.mark.parametrize("stored", [{"lark": "0.0.0"}, {"grammar": 'start: "x"\n'}, None])
def test_other_tables_are_passed_over(
    stored: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "tables.json"
    if stored is not None:
        tables.write_text(json.dumps(json.loads(grammar.TABLES.read_text(encoding="utf-8")) | stored))
    monkeypatch.setattr(grammar, "TABLES", tables)
    assert grammar.lark_parser.__wrapped__().parse("stages 1").data == "stages"
