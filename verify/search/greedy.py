"""List scheduling: run the pipeline in time, and let habits say what a rank that is free does next.

A rank that is free takes I (B) before F before W, of what it may start; F only under the cap. Its habits say when it
rather idles for an operation that is on its way. Where a rank idles too eagerly or too rarely is what a search over
habits finds out (`tune.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pipedsl.program import Kind
from verify.search.model import Model

_F, _I, _W = int(Kind.F), int(Kind.I), int(Kind.W)
_NEVER = 1 << 62  # at least; more where times or sizes are so large


@dataclass(frozen=True)
class Habit:
    """Of one rank. Waits are in hundredths of the duration of what it could start instead; 100: rather than delay it.

    `hold_forward`: wait so long for an I instead of starting an F. `wait_for_backward`, `wait_for_forward`: wait for an
    I (F) instead of starting a W; `wait_at_end`: the same for an I when no F is left. `forward_first`: F before I where
    both may start. `most_in_flight`: F that may be started and not have had their I. `most_waiting`: W that may wait
    while there are F left; one more, and a W comes before all else. `shallow_first`: of two chunks the F of the
    earlier stage first.
    """

    hold_forward: int = 0
    wait_for_backward: int = 100
    wait_for_forward: int = 100
    wait_at_end: int = 100
    forward_first: bool = False
    shallow_first: bool = False
    most_in_flight: int = 1 << 30
    most_waiting: int = 1 << 30


def list_schedule(model: Model, habits: Sequence[Habit]) -> list[list[int]] | None:
    """The orders that the ranks' habits lead to, or None where they end in memory that nobody can give back."""
    kind, duration, take, give = model.kind, model.duration, model.take, model.give
    upstream, lag, local, feeds, rank_of = model.upstream, model.lag, model.local, model.feeds, model.rank
    strand = model.strand
    ranks = len(model.strands)
    never = max(_NEVER, model.horizon << 8, sum(take) << 1)
    room = [never if value is None else value for value in model.room]
    deeper = reserves(model)
    heads = [[a for a, _ in pairs] for pairs in model.strands]
    stops = [[b for _, b in pairs] for pairs in model.strands]
    strands = [range(len(pairs)) for pairs in model.strands]
    stage = [operation.stage for operation in model.operations]
    end = [-1] * len(model)
    order: list[list[int]] = [[] for _ in range(ranks)]
    forwards = [sum(kind[row] == _F for a, b in pairs for row in range(a, b)) for pairs in model.strands]
    flying = [0] * ranks
    pending = [0] * ranks
    clock = [0] * ranks
    asleep = [True] * ranks
    remaining = len(model)
    events = [(0, r) for r in range(ranks)]
    settings = [
        (h.hold_forward, h.wait_for_backward, h.wait_for_forward, h.wait_at_end, h.forward_first,
         -1 if h.shallow_first else 1, h.most_in_flight, h.most_waiting)
        for h in habits
    ]  # fmt: skip
    while events:
        time, r = heappop(events)
        if time < clock[r]:
            continue
        hold, wait_b, wait_f, wait_end, forward_first, deep, most, late = settings[r]
        best_f = best_b = best_w = -1
        next_f = next_b = never
        head, stop = heads[r], stops[r]
        for k in strands[r]:
            row = head[k]
            if row >= stop[k]:
                continue
            source = local[row]
            if source >= 0 and end[source] < 0:
                continue
            what = kind[row]
            if what == _W:
                if best_w < 0 or end[source] < end[local[best_w]]:
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
                if take[row] + deeper[row] > room[r] or flying[r] >= most:
                    continue
                if arrival > time:
                    if arrival < next_f:
                        next_f = arrival
                elif best_f < 0 or (stage[row] - stage[best_f]) * deep > 0:
                    best_f = row
            elif arrival > time:
                if arrival < next_b:
                    next_b = arrival
            elif best_b < 0 or stage[row] < stage[best_b]:
                best_b = row
        pick = -1
        if best_w >= 0 and pending[r] > late and forwards[r]:
            pick = best_w
        elif best_b >= 0 and (best_f < 0 or not forward_first):
            pick = best_b
        elif best_f >= 0:
            if (next_b - time) * 100 >= hold * duration[best_f]:
                pick = best_f
            elif best_w >= 0 and next_b - time >= duration[best_w]:
                pick = best_w
        elif best_w >= 0:
            length = duration[best_w]
            if not forwards[r]:
                wait_b = wait_end
            if (next_b - time) * 100 >= wait_b * length and (next_f - time) * 100 >= wait_f * length:
                pick = best_w
        if pick < 0:
            asleep[r] = True
            soon = next_b if next_b < next_f else next_f
            if soon < never:
                heappush(events, (soon, r))
            continue
        what = kind[pick]
        finish = time + duration[pick]
        end[pick] = finish
        clock[r] = finish
        order[r].append(pick)
        remaining -= 1
        head[strand[pick]] += 1
        room[r] += give[pick] - take[pick]
        if what == _F:
            forwards[r] -= 1
            flying[r] += 1
        elif what != _W:
            flying[r] -= 1
            pending[r] += what == _I
        else:
            pending[r] -= 1
        asleep[r] = False
        heappush(events, (finish, r))
        other = feeds[pick]
        if other >= 0:
            o = rank_of[other]
            if asleep[o]:
                arrival = finish + lag[other]
                heappush(events, (arrival if arrival > clock[o] else clock[o], o))
    return None if remaining else order


def reserves(model: Model) -> list[int]:
    """What must stay free after an F so that the rank's later stages of the same microbatch still fit.

    Nothing where F and backwards are in one strand: their order decides what fits.
    """
    problem = model.problem
    if any(_fixed(model, pairs) for pairs in model.strands):
        return [0] * len(model)
    after = [0] * problem.stages
    for own in problem.chains:
        for stages in own:
            for at, s in enumerate(stages):
                after[s] = sum(problem.activation[t] for t in stages[at + 1 :])
    return [after[operation.stage] if operation.kind == Kind.F else 0 for operation in model.operations]


def _fixed(model: Model, pairs: Sequence[tuple[int, int]]) -> bool:
    return any(len({model.kind[row] == _F for row in range(a, b)}) > 1 for a, b in pairs)
