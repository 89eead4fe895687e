"""The checker against the explorer of states, and certificates with one entry altered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from certificates import accepted, at, certified, changed, paths, signed
from explore import TRANSPORTS, run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_calls import random_calls, random_reductions
from words import gpipe, interleaved, memory, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.calls_json import read_calls
from pipedsl.program import Program
from verify import Verdict, check_calls
from verify.certificate import certificate
from verify.checker import COLD, Refused, check, replay, times_of
from verify.checker import read_calls as columns_of
from verify.messages import check_requests, check_unwaited


def columns(document: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Calls JSON as the columns of a certificate, written apart from the writer."""
    letters = {"send": "S", "recv": "R", "isend": "s", "irecv": "r"}
    tags: list[str] = []
    ranks = []
    for rows in document["ranks"]:
        entries: list[tuple[str, int, int]] = []
        for row in rows:
            members = row[1] if row[0] == "batch" else [row]
            entries += [("[", len(members), 0)] if row[0] == "batch" else []
            for name, *rest in members:
                if name == "wait":
                    entries.append(("w", rest[0], 0))
                elif name == "reduce":
                    tags += [rest[1]] if rest[1] not in tags else []
                    entries.append(("=", tags.index(rest[1]), sum(2**r for r in rest[0])))
                else:
                    tags += [rest[1]] if rest[1] not in tags else []
                    entries.append((letters[name], rest[0], tags.index(rest[1])))
        do, x, y = zip(*entries, strict=True) if entries else ((), (), ())
        ranks.append({"do": "".join(do), "x": list(x), "y": list(y)})
    return ranks, tags


def interleavings(left: list[int], repeats: int) -> Iterator[list[int]]:
    """All orders of the events of steps in which each step has its own in order; `left`: how many of each remain."""
    if not any(left):
        yield []
    for step, count in enumerate(left):
        if count:
            rest = [*left[:step], count - 1, *left[step + 1 :]]
            event = 3 * step + 3 - count
            yield from ([event, *more] for more in interleavings(rest, repeats))


BY_HAND = (
    {"ranks": [[["recv", 1, "b"], ["send", 1, "a"]], [["recv", 0, "a"], ["send", 0, "b"]]]},
    {"ranks": [[["send", 1, "a"], ["recv", 1, "b"]], [["send", 0, "b"], ["recv", 0, "a"]]]},
    {"ranks": [[["isend", 1, "a"], ["batch", [["irecv", 1, "b"]]], ["wait", 0], ["wait", 1]],
               [["batch", [["isend", 0, "b"]]], ["irecv", 0, "a"], ["wait", 0], ["wait", 1]]]},
)  # fmt: skip


def test_calls_have_an_order_that_is_accepted_just_where_they_do_not_hang() -> None:
    """All orders of all events of tiny calls: the checker takes one of them if and only if no run hangs."""
    seen = {True: 0, False: 0}
    for seed in range(-len(BY_HAND), 1500):
        made = random_reductions if seed % 2 else random_calls
        document = BY_HAND[seed] if seed < 0 else made(seed, largest=1)
        calls = read_calls(document)
        if check_requests(calls, None) or check_unwaited(calls, None):
            continue
        ranks, tags = columns(document)
        read = columns_of(ranks, tags)
        for name in TRANSPORTS:
            repeats = 3 if name in COLD else 2
            if len(read.owner) > (3 if repeats == 3 else 4) or seen[True] + seen[False] > 900:
                continue
            found = False
            for events in interleavings([repeats] * len(read.owner), repeats):
                try:
                    replay(read, name, times_of({"events": events}, "", read, [name]), "")
                except Refused as refused:
                    if "left over" in str(refused) or "meets the receive" in str(refused):
                        break
                else:
                    found = True
                    break
            hangs = run(document, name, seed)
            assert not (found and hangs), (seed, name, document)
            if check_calls(calls, (name,)).verdict is Verdict.VERIFIED:
                assert found, (seed, name, document)
            seen[hangs] += 1
    assert seen[True] > 100
    assert seen[False] > 100


def test_verified_calls_are_accepted_and_no_hanging_ones_under_any_borrowed_order() -> None:
    """Evidence for the transports that are safe is claimed for those that hang, with launches wherever they may fit."""
    refused = accepted_ones = 0
    for seed in range(500):
        document, draw = (random_reductions if seed % 2 else random_calls)(seed), random.Random(seed)
        calls = read_calls(document)
        if check_requests(calls, None) or check_unwaited(calls, None):
            continue
        states = check_calls(calls, TRANSPORTS)
        safe = [name for name in TRANSPORTS if states.transports[name] == "safe"]
        report = check_calls(calls, safe)
        if not safe or report.verdict is not Verdict.VERIFIED:
            continue
        evidence = certificate(None, calls, report)
        assert accepted(evidence, document), (seed, document)
        accepted_ones += 1
        for name in TRANSPORTS:
            if states.transports[name] == "safe":
                continue
            for order in evidence["orders"]:
                if "events" not in order:
                    continue
                steps = {event // 3 for event in order["events"]}
                events = [event for event in order["events"] if event % 3]
                starts = [event for event in events if event % 3 == 1]
                for launches in ([start - 1 for start in starts], [3 * step for step in sorted(steps)]):
                    if draw.random() < 0.3:
                        draw.shuffle(launches)
                    forged = {**evidence, "orders": [{"transports": [name], "events": launches + events}]}
                    assert not accepted(signed(forged), document), (seed, name, document)
                    refused += 1
    assert accepted_ones > 100
    assert refused > 50


@st.composite
def programs(draw: st.DrawFn) -> Program:
    p = draw(st.integers(1, 4))
    m = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["1f1b", "gpipe", "zb_h1", "zb_h2", "interleaved"]))
    sizes = None
    stages = 2 * p if kind == "interleaved" else p
    if draw(st.booleans()):
        whole = draw(st.fractions(0, 3, max_denominator=4))
        held = whole * draw(st.fractions(0, 1, max_denominator=3))
        sizes = memory(stages, p, activation=whole, held=held, weights=draw(st.integers(0, 2)), output="1/3", cap=99)
    if kind == "interleaved":
        words, placement = interleaved(p, p * m, 2), [stage % p for stage in range(stages)]
        return word_program(words, placement=placement, sizes=sizes)
    makers = {"1f1b": one_f_one_b, "gpipe": gpipe, "zb_h1": zb_h1, "zb_h2": zb_h2}
    m = max(m, {"zb_h1": p, "zb_h2": 2 * p - 1}.get(kind, 1))
    words = makers[kind](p, m)
    if draw(st.booleans()):
        words = [[*word, "REDUCE"] for word in words]
    return word_program(words, sizes=sizes)


@settings(max_examples=60, deadline=None)
@given(programs(), st.data())
def test_one_altered_entry_is_noticed(program: Program, data: st.DataObject) -> None:
    document, subject = certified(program)
    assert check(document, subject)
    path = data.draw(st.sampled_from([path for path in paths(document) if type(at(document, path)) is int]))
    value = data.draw(st.integers(-2, 40).filter(lambda value: value != at(document, path)))
    assert not accepted(changed(document, path, value), subject)
    assert not accepted(signed(changed(document, path, value)), subject)
