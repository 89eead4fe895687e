"""List scheduling: run the pipeline in time, and let a rule pick what a rank that is free does next.

A rank that is free takes, of the operations that it may start, the one that the rule likes best; F only under the cap;
W where nothing else is there, or where nothing fits before a W is done. A rule may hold a rank idle for an operation
that is known to arrive soon.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pipedsl.program import Kind
from verify.search.model import Model

_F, _B, _I, _W = int(Kind.F), int(Kind.B), int(Kind.I), int(Kind.W)


@dataclass(frozen=True)
class Rule:
    """What a rank prefers. Fractions are hundredths of a duration.

    `forward_first`: F before I where both may start. `wait_for_backward`, `wait_for_forward`: how long a rank waits for
    an I (F) that is on its way instead of starting a W, in hundredths of the W; `hold_forward`: the same for an I
    instead of an F. `most_in_flight[r]`: the most that rank r takes, besides its cap (None: no such limit).
    `deep_first`: of two chunks the later stage's F first. `late`: how many W may wait before one is done at once.
    `noise`: how often, in thousandths, the second best is taken.
    """

    forward_first: bool = False
    wait_for_backward: int = 100
    wait_for_forward: int = 100
    hold_forward: int = 0
    most_in_flight: tuple[int, ...] | None = None
    deep_first: bool = True
    late: int = 1 << 30
    noise: int = 0
    target: int = 0
    patience: int = 100


def list_schedule(model: Model, rule: Rule, seed: int = 0, first: Sequence[Sequence[int]] = ()) -> list[list[int]] | None:
    """The orders that a rule leads to, or None where it runs into a dead end (memory that nobody can give back)."""
    draw = random.Random(seed).randrange
    kind, duration, take, give = model.kind, model.duration, model.take, model.give
    upstream, lag, local, feeds, rank_of = model.upstream, model.lag, model.local, model.feeds, model.rank
    ranks = len(model.strands)
    unlimited = 1 << 62
    room = [unlimited if value is None else value for value in model.room]
    if rule.most_in_flight is not None:
        largest = [max((take[a] for a, b in pairs if a < b), default=0) for pairs in model.strands]
        limit = [rule.most_in_flight[r] * largest[r] for r in range(ranks)]
        reserve_limit = [room[r] - limit[r] if room[r] > limit[r] else 0 for r in range(ranks)]
    else:
        reserve_limit = [0] * ranks
    deeper = _reserves(model)
    heads = [[a for a, _ in pairs] for pairs in model.strands]
    stops = [[b for _, b in pairs] for pairs in model.strands]
    end = [-1] * len(model)
    order: list[list[int]] = [[] for _ in range(ranks)]
    pending = [0] * ranks  # W that could be done
    clock = [0] * ranks
    events = [(0, r) for r in range(ranks)]
    remaining = [sum(b - a for a, b in pairs) for pairs in model.strands]
    wake = [0] * ranks
    stages = [operation.stage for operation in model.operations]
    wait_b, wait_f, hold_f = rule.wait_for_backward, rule.wait_for_forward, rule.hold_forward
    noise, late = rule.noise, rule.late
    target, patience = rule.target, rule.patience
    work = [sum(duration[a] for x, y in pairs for a in range(x, y)) for pairs in model.strands]

    while events:
        time, r = heappop(events)
        if time < clock[r] or not remaining[r]:
            continue
        best_f = best_b = best_w = -1
        best_f_key = 0
        next_f = next_b = unlimited
        blocked = False
        head, stop = heads[r], stops[r]
        for k in range(len(head)):
            row = head[k]
            if row >= stop[k]:
                continue
            what = kind[row]
            source = local[row]
            if source >= 0 and end[source] < 0:
                continue
            if what == _W:
                if best_w < 0 or end[local[row]] < end[local[best_w]]:
                    best_w = row
                continue
            source = upstream[row]
            if source < 0:
                arrival = 0
            else:
                arrival = end[source]
                if arrival < 0:
                    continue
                arrival += lag[row]
            if what == _F:
                if take[row] + deeper[row] + reserve_limit[r] > room[r]:
                    blocked = blocked or arrival <= time
                    continue
                if arrival > time:
                    next_f = min(next_f, arrival)
                    continue
                key = stages[row] if rule.deep_first else -stages[row]
                if best_f < 0 or key > best_f_key:
                    best_f, best_f_key = row, key
            else:
                if arrival > time:
                    next_b = min(next_b, arrival)
                    continue
                if best_b < 0 or stages[row] < stages[best_b]:
                    best_b = row
        pick = -1
        wait = unlimited
        if best_b >= 0 and (best_f < 0 or not rule.forward_first):
            pick = best_b
        elif best_f >= 0:
            if next_b < unlimited and (next_b - time) * 100 < hold_f * duration[best_f] and (not target or (next_b - time) * 100 <= (target - time - work[r]) * patience):
                wait = next_b
            else:
                pick = best_f
        if noise and pick >= 0 and draw(1000) < noise:
            others = [x for x in (best_b, best_f, best_w) if x >= 0 and x != pick]
            if others:
                pick = others[0]
        if pick < 0 and best_w >= 0:
            length = 100 * duration[best_w]
            soon_b = (next_b - time) * 100 < length * 1 and (length - (next_b - time) * 100) * 100 > wait_b * length
            soon_f = (next_f - time) * 100 < length * 1 and (length - (next_f - time) * 100) * 100 > wait_f * length
            if target:
                slack = (target - time - work[r]) * patience
                soon = min(next_b, next_f if not blocked else unlimited)
                if soon - time < duration[best_w] and (soon - time) * 100 <= slack:
                    wait = min(wait, soon)
                else:
                    pick = best_w
            elif wait < unlimited and (wait - time) < duration[best_w]:
                pass
            elif soon_b:
                wait = min(wait, next_b)
            elif soon_f and not blocked:
                wait = min(wait, next_f)
            else:
                pick = best_w
        elif pick >= 0 and pending[r] > late and best_w >= 0:
            pick = best_w
        if pick < 0:
            wait = min(wait, next_b, next_f)
            if wait < unlimited:
                heappush(events, (wait, r))
            continue
        finish = time + duration[pick]
        end[pick] = finish
        clock[r] = finish
        order[r].append(pick)
        remaining[r] -= 1
        work[r] -= duration[pick]
        head[model.strand[pick]] += 1
        room[r] += give[pick] - take[pick]
        if kind[pick] == _I:
            pending[r] += 1
        elif kind[pick] == _W:
            pending[r] -= 1
        heappush(events, (finish, r))
        other = feeds[pick]
        if other >= 0 and rank_of[other] != r:
            arrival = max(finish + lag[other], clock[rank_of[other]])
            heappush(events, (arrival, rank_of[other]))
            if duration[pick]:  # so that it knows beforehand
                heappush(events, (max(time, clock[rank_of[other]]), rank_of[other]))
    return None if any(remaining) else order


def _reserves(model: Model) -> list[int]:
    """What must stay free after an F so that the rank's later stages of the same microbatch still fit."""
    if len(model.problem.placement) == model.problem.ranks and len(set(model.problem.placement)) == model.problem.ranks:
        return [0] * len(model)
    problem = model.problem
    after = [
        sum(problem.activation[t] for t in range(s + 1, problem.stages) if problem.placement[t] == problem.placement[s])
        for s in range(problem.stages)
    ]
    return [after[op.stage] if op.kind == Kind.F else 0 for op in model.operations]
