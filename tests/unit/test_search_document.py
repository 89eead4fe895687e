"""The JSON of searches and sweeps has the keys that docs/formats.md names, and those alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipedsl.api import load
from pipedsl.diagnostics import DiagnosticError
from pipedsl.render.search import refusal_document, search_document, sweep_document
from pipedsl.searching import search
from pipedsl.sweeping import sweep

pytest.importorskip("z3")

WHOLE = Path(__file__).parents[2].joinpath("docs", "formats.md").read_text(encoding="utf-8")
SECTION = WHOLE.split("## `pipedsl search --format json`")[1].split("\n## ")[0]
TABLE, OF_SWEEPS = SECTION.split("\nWith `--sweep`")
ROWS = [line.split("|")[1:3] for line in TABLE.splitlines() if line.startswith("| `")]
KEYS = [key for names, _ in ROWS for key in re.findall(r"`(\w+)`", names)]


def test_an_answer() -> None:
    document = search_document(result := search(load("zero_bubble"), {"p": 2, "m": 4}, budget=2))
    assert sorted(document) == sorted(KEYS)
    with_m: Any = search_document(result, result.every_m)["every_m"]
    said = next(text for names, text in ROWS if names.strip() == "`every_m`")
    assert sorted(with_m) == sorted(set(re.findall(r"`(\w+)`", said)))


def test_no_order() -> None:
    with pytest.raises(DiagnosticError) as caught:
        search(load("zero_bubble"), {"p": 2, "m": 4}, cap=0, budget=2)
    document = refusal_document("zero_bubble", {"p": 2, "m": 4}, caught.value.diagnostics)
    assert sorted(document) == sorted([*KEYS[: KEYS.index("found") + 1], "diagnostics"])


def test_the_points_of_a_sweep() -> None:
    document = sweep_document("cap", sweep(load("zero_bubble"), {"p": 2, "m": 4}, "cap", [0, 2], budget=2))
    named = re.findall(r"`(\w+)`", OF_SWEEPS)
    refused, found = document["points"]
    of_answers = KEYS[KEYS.index("found") : KEYS.index("lost") + 1]
    beside = ["at", "bubble", "span_bubble", "peak_activations", "memory", "sched"]
    assert sorted(found) == sorted([*of_answers, *beside])
    assert set(found) - set(of_answers) <= set(named)
    assert {"at", "found", "infeasible", "diagnostics"} < set(refused) <= {"at", *named}
    answered = named.index("infeasible")
    assert set(named[answered:]) == set(refused) - {"at", "found"}
