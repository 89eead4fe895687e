"""Claims for all costs against brute force: random programs, random claims near the truth, random costs.

What is proved must hold at every cost tried here; what is refuted must be false at the costs that the message names.
Times come from a longest path computed here, not from the simulator.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

from hypothesis import event, given, settings
from hypothesis import strategies as st

from pipedsl.api import parse_text
from pipedsl.claims import check_claims
from pipedsl.expand import expand
from pipedsl.program import Costs, Program
from pipedsl.simulate import Metrics, measure, simulate

Op = tuple[str, int, int]
Times = dict[str, Fraction]


def random_ranks(rng: random.Random, ranks: int, microbatches: int, split: bool) -> list[list[Op]]:
    """Every rank's operations (kind, stage, microbatch), in an order that can be kept."""
    backward = "I" if split else "B"
    done: set[Op] = set()
    todo = {(kind, s, i) for kind in ("F", backward) for s in range(ranks) for i in range(microbatches)}
    todo |= {("W", s, i) for s in range(ranks) for i in range(microbatches) if split}
    found: list[list[Op]] = [[] for _ in range(ranks)]
    while todo:
        ready = sorted(op for op in todo if all(need in done for need, _ in needs(op, ranks, backward)))
        op = rng.choice(ready)
        todo.remove(op)
        done.add(op)
        found[op[1]].append(op)
    return found


def needs(op: Op, ranks: int, backward: str) -> list[tuple[Op, bool]]:
    """What an operation needs, and whether that comes from another rank."""
    kind, stage, microbatch = op
    if kind == "F":
        return [(("F", stage - 1, microbatch), True)] if stage else []
    if kind == "W":
        return [((backward, stage, microbatch), False)]
    behind: list[tuple[Op, bool]] = [((backward, stage + 1, microbatch), True)] if stage < ranks - 1 else []
    return [(("F", stage, microbatch), False), *behind]


def longest_paths(order: list[list[Op]], costs: Times) -> dict[str, Fraction]:
    """Makespan, span and bubbles."""
    ranks = len(order)
    backward = "I" if any(op[0] == "I" for rank in order for op in rank) else "B"
    previous = {op: rank[k - 1] for rank in order for k, op in enumerate(rank) if k}
    end: dict[Op, Fraction] = {}

    def end_of(op: Op) -> Fraction:
        if op not in end:
            starts = [end_of(need) + (costs["send"] if far else 0) for need, far in needs(op, ranks, backward)]
            if op in previous:
                starts.append(end_of(previous[op]))
            end[op] = max(starts, default=Fraction(0)) + costs[op[0]]
        return end[op]

    makespan = max(end_of(rank[-1]) for rank in order)
    span = max(end_of(rank[-1]) - end_of(rank[0]) + costs[rank[0][0]] for rank in order)
    busy = [sum((costs[op[0]] for op in rank), Fraction(0)) for rank in order]
    return {
        "makespan": makespan,
        "span": span,
        "bubble": 1 - sum(busy) / (ranks * makespan) if makespan else Fraction(0),
        "span_bubble": 1 - max(busy) / span if span else Fraction(0),
    }


def text_of(order: list[list[Op]], claim: str, send: int) -> str:
    blocks = "".join(
        f"rank r where r == {rank} {{ {' '.join(f'{kind}[{i}]' for kind, _, i in ops)} }}\n"
        for rank, ops in enumerate(order)
    )
    head = f"schedule x(p, m)\nstages p\nplace s -> s\ncost {{ F = 2 I = 1 W = 3 send = {send} }}\n"
    return f"{head}{blocks}expect {{ {claim} }}"


def verdict(text: str, ranks: int, microbatches: int) -> tuple[str, str]:
    """`proved`, `PD501` or `PD502`, and the message."""
    schedule = parse_text(text)
    program = expand(schedule, {"p": ranks, "m": microbatches})

    def resimulate(costs: Costs) -> Metrics:
        changed: Program = replace(program, costs=costs)
        return measure(changed, simulate(changed))

    found = check_claims(schedule, program, resimulate(program.costs), resimulate)
    return (found[0].code, found[0].message) if found else ("proved", "")


def complete(costs: Times, send: int) -> Times:
    """Costs with those that the claim leaves to the file."""
    full = {"F": Fraction(2), "I": Fraction(1), "W": Fraction(3), "send": Fraction(send), **costs}
    return {"B": full["I"] + full["W"], **full}


def holds(claim: str, order: list[list[Op]], costs: Times) -> bool:
    exact = re.sub(r"(?<![\w.])(\d+)", r"Fraction(\1)", claim)
    return bool(eval(exact, {"Fraction": Fraction, **costs, **longest_paths(order, costs)}))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[Op]], str, tuple[str, ...], int, random.Random]:
    """A program, a claim near the truth, the independent costs that it names, and the file's send."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    split = draw(st.booleans())
    order = random_ranks(rng, draw(st.integers(1, 3)), draw(st.integers(1, 3)), split)
    free: tuple[str, ...] = ("F", "I", "W") if split else ("F", "B")
    with_send = draw(st.booleans())
    names = (*free, "send") if with_send else free
    send = draw(st.integers(0, 2))
    metric = draw(st.sampled_from(["makespan", "span", "bubble", "span_bubble"]))
    op = draw(st.sampled_from(["<=", ">=", "==", "<", ">"]))
    whole = "makespan" if metric in ("makespan", "bubble") else "span"

    def at(costs: Times) -> Fraction:
        return longest_paths(order, {"send": Fraction(0), "B": Fraction(0), **costs})[whole]

    unit = {name: at({other: Fraction(int(other == name)) for other in (*free, "send")}) for name in names}
    rest = at({name: Fraction(send * (name == "send")) for name in (*free, "send")}) if not with_send else Fraction(0)
    coefficients = {
        name: max(value + draw(st.sampled_from([0, 0, 0, -1, 1])), Fraction(0)) for name, value in unit.items()
    }
    linear = " + ".join([*(f"{value} * {name}" for name, value in coefficients.items()), str(rest)])
    if metric in ("makespan", "span"):
        return order, f"{metric} {op} {linear}", names, send, rng
    if draw(st.booleans()):
        return order, f"{metric} {op} {draw(st.integers(0, 9))} / 10 + 0 * {' * '.join(names)}", names, send, rng
    counts = {name: sum(op[0] == name for rank in order for op in rank) for name in free}
    busy = " + ".join(f"{count} * {name}" for name, count in counts.items())
    ranks = len(order)
    return order, f"{metric} {op} 1 - ({busy}) / ({ranks} * ({linear}))", names, send, rng


@settings(max_examples=250, deadline=None)
@given(cases())
def test_verdicts_agree_with_brute_force(case: tuple[list[list[Op]], str, tuple[str, ...], int, random.Random]) -> None:
    order, claim, names, send, rng = case
    microbatches = sum(op[0] == "F" for op in order[0])
    code, message = verdict(text_of(order, claim, send), len(order), microbatches)
    event(f"{code} {claim.split()[0]} {claim.split()[1]}")
    if code == "proved":
        for _ in range(40):
            costs = complete({name: Fraction(rng.choice([0, 0, 1, 2, 3, 7, 50, 1000])) for name in names}, send)
            if not longest_paths(order, costs)["makespan"]:
                continue
            try:
                assert holds(claim, order, costs), costs
            except ZeroDivisionError:
                continue
    elif code == "PD501":
        given_costs = re.search(r"with ([^,]+(?:, [A-Za-z]+ = [^,]+)*), `", message)
        assert given_costs, message
        pairs = (part.split(" = ") for part in given_costs.group(1).split(", "))
        named = {name: Fraction(value) for name, value in pairs if name in names}
        assert set(named) == set(names)
        assert not holds(claim, order, complete(named, send))
    else:
        assert code == "PD502"
        # A linear bound from above on the makespan is always decided.
        assert not claim.startswith("makespan <=")


@settings(max_examples=100, deadline=None)
@given(cases())
def test_what_holds_for_all_costs_holds_where_nothing_takes_time_if_so_the_file_has_it(
    case: tuple[list[list[Op]], str, tuple[str, ...], int, random.Random],
) -> None:
    order, claim, names, _, _ = case
    text = text_of(order, claim, 0).replace("F = 2 I = 1 W = 3", "F = 0 I = 0 W = 0")
    code, message = verdict(text, len(order), sum(op[0] == "F" for op in order[0]))
    event(code)
    idle = dict.fromkeys(("F", "B", "I", "W", "send"), Fraction(0))
    try:
        held = holds(claim, order, idle)
    except ZeroDivisionError:
        return
    if code == "proved":
        assert held
    elif not held:
        assert code == "PD501"
        assert all(f"{name} = 0" in message for name in names)
