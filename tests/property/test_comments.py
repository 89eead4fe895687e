"""Comments and line breaks anywhere: formatting keeps the comments and the tree, and is done after once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from trees import bare

from pipedsl.diagnostics import Source
from pipedsl.format import format_schedule
from pipedsl.parser import parse

HEAD = "schedule x ( p , m ) stages p place s -> s "
WORDS = [
    "rank r { ( F * m || ( B ) * m ) * 2 }",
    "rank r { F * m || I * m || ( W F ) * ( m - 1 ) }",
    "rank r { ( F ( I W ) * 2 ) * r if r > 1 { F } else if r { B } else { W } for k in 0 .. m { F [ k ] ( B ) } }",
    "rank r where r == 0 { let a = m ( F B ) * a } rank r where r > 0 { ( ( F ) B || W ) }",
]
TEXTS = [(HEAD + word).split(" ") for word in WORDS]
for path in sorted(Path(__file__).parents[2].glob("schedules/*.sched")):
    lines = re.sub(r"#.*", "", path.read_text()).splitlines()
    TEXTS.append(" ".join(line for line in lines if '"' not in line).split())


@pytest.mark.parametrize("seed", range(400))
def test_formatting_twice_is_formatting_once(seed: int) -> None:
    rng = random.Random(seed)
    words = rng.choice(TEXTS)
    rate = rng.choice((0.02, 0.1, 0.4))
    gaps = [rng.choice((" # c\n", "\n", "\n# c\n")) if rng.random() < rate else " " for _ in words]
    text = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
    schedule = parse(Source("x.sched", text))
    once = format_schedule(schedule)
    again = parse(Source("y.sched", once))
    assert bare(again.items) == bare(schedule.items)
    assert sorted(each.text for each in again.comments) == sorted(each.text for each in schedule.comments)
    assert format_schedule(again) == once
