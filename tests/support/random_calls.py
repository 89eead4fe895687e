"""Random small Calls, about half of which hang somewhere.

Two to six ranks; blocking and non-blocking calls, batches, pairs that use both forms, tags that occur twice, calls
out of order, left out, never waited for.
"""

from __future__ import annotations

import random


def random_calls(seed: int, largest: int = 4) -> dict:
    """A document as in the case files: every message's two ends in about the same order, then some disorder."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 2, 3, 3, 4, 4, 5, 6))
    ends: list[list[list]] = [[] for _ in range(ranks)]
    for number in range(draw.randint(1, largest + ranks)):
        source, target = draw.sample(range(ranks), 2)
        tag = f"t{number}" if draw.random() < 0.8 else "t"
        ends[source].append(["isend", target, tag])
        ends[target].append(["irecv", source, tag])
    disorder, batching = draw.choice((0.0, 0.1, 0.3)), draw.choice((0, 0, 0, 1, 0.5))
    return {"ranks": [_rank(draw, calls, disorder, batching) for calls in ends]}


def random_reductions(seed: int, largest: int = 4) -> dict:
    """The same with reductions among them, at about the same places on all ranks that take part."""
    draw, document = random.Random(-1 - seed), random_calls(seed, largest)
    ranks = document["ranks"]
    for number in range(draw.randint(1, 3)):
        group = sorted(draw.sample(range(len(ranks)), draw.randint(1, min(3, len(ranks)))))
        place, disorder = draw.random(), draw.choice((0.0, 0.1, 0.4))
        for rank in group:
            at = place + draw.uniform(-disorder, disorder)
            if draw.random() > 0.03:
                row = round(min(max(at, 0), 1) * len(ranks[rank]))
                ranks[rank].insert(row, ["reduce", group, draw.choice(("a", f"r{number}")) if disorder == 0.4 else "a"])
    return document


def _rank(draw: random.Random, calls: list[list], disorder: float, batching: float) -> list:
    for at in range(len(calls) - 1):
        if draw.random() < disorder:
            calls[at], calls[at + 1] = calls[at + 1], calls[at]
    if calls and draw.random() < 0.04:
        calls.pop(draw.randrange(len(calls)))
    blocking = draw.choice((0, 0, 0.3))
    written: list = []
    open_requests: list[int] = []
    requests = 0
    rest = calls[:]
    while rest:
        if draw.random() < batching:
            size = draw.randint(1, 3)
            written.append(["batch", rest[:size]])
            rest = rest[size:]
        elif draw.random() < blocking:
            name, peer, tag = rest.pop(0)
            written.append([name[1:], peer, tag])
            continue
        else:
            written.append(rest.pop(0))
        open_requests.append(requests)
        requests += 1
        while open_requests and draw.random() < 0.5:
            written.append(["wait", open_requests.pop(draw.randrange(len(open_requests)))])
    written += [["wait", k] for k in open_requests if draw.random() < 0.9]
    return written


def has_batches(document: dict) -> bool:
    return any(call[0] == "batch" for calls in document["ranks"] for call in calls)


def all_waited(document: dict, at_the_end: bool = False) -> dict:
    """The same without batches, every request waited for; `at_the_end`: after all calls, and nothing blocks."""
    ranks = []
    for calls in document["ranks"]:
        written: list = []
        requests, waited = 0, set()
        for call in calls:
            if call[0] == "wait":
                if not at_the_end:
                    written.append(call)
                    waited.add(call[1])
                continue
            name = f"i{call[0].lstrip('i')}" if at_the_end else call[0]
            written.append([name, *call[1:]])
            requests += name.startswith("i")
        ranks.append(written + [["wait", k] for k in range(requests) if k not in waited])
    return {"ranks": ranks}
