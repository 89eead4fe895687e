"""What is said to be added by each microbatch more is what is added, or is said to be about that."""

from __future__ import annotations

import pytest

from pipedsl.api import load, parse_text, verify
from pipedsl.every_m import every_m
from pipedsl.render.search import every_text, search_document
from pipedsl.searching import search
from pipedsl.syntax import Schedule
from verify.search.solve import Budget

pytest.importorskip("z3")

# A period of three microbatches takes 107 1/2: the makespan grows by 108 and by 107 in turn.
UNEVEN = parse_text("""
schedule u(p, m, cap = p)
stages p
place s -> s
rank r { F * m || I * m || W * m }
cost s { F = 10 + s % 3  I = 11 - s % 2  W = 7 + s  send = 1 }
memory { cap(r) = cap  held_by_w(s) = 1/2 }
""")


@pytest.mark.parametrize(
    ("schedule", "params", "even"),
    [(load("zero_bubble"), {"p": 3, "m": 6, "cap": 3}, True), (UNEVEN, {"p": 4, "m": 9, "cap": 3}, False)],
)
def test_growth_is_said_to_be_proved_where_it_is(schedule: Schedule, params: dict[str, int], even: bool) -> None:
    result = search(schedule, params, budget=2.0)
    every = every_m(result, Budget(0.05))
    assert every is not None
    text = parse_text(every.text)
    exact = True
    for k in range(5):
        m = params["m"] + k * every.period
        metrics = verify(text, {"m": m}).metrics
        assert metrics is not None
        exact = exact and metrics.makespan == every.value + every.slope * (m - params["m"])
    assert every.proved == exact == even
    assert ("about " in every_text(result, every)) != even
    document = search_document(result, every)["every_m"]
    assert document["slope_proved"] == even
