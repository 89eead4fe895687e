"""One rank does something else than the others, in several ways. Arguments: a generated file, then the ways."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.support.worker import PATIENCE, load, mlp, start

ODD = 1  # the rank that does


def step(pipe: Any, train: bool = True, seed: int | None = None) -> None:
    m = 4
    pipe.step(torch.zeros(2 * m).long(), torch.zeros(2 * m).long(), train=train, seed=seed)


def evaluates(pipe: Any, odd: bool) -> None:
    step(pipe, train=False)
    step(pipe)
    step(pipe, train=not odd)


def skips_an_evaluation(pipe: Any, odd: bool) -> None:
    step(pipe)
    if not odd:
        step(pipe, train=False)
    step(pipe)


def trains_once_more(pipe: Any, odd: bool) -> None:
    step(pipe)
    if odd:
        step(pipe)
    step(pipe, train=False)


def renews(pipe: Any, odd: bool) -> None:
    step(pipe)
    if odd:
        pipe.renew_shapes()
    step(pipe)


def renews_twice(pipe: Any, odd: bool) -> None:
    """Nothing is wrong with that."""
    step(pipe)
    pipe.renew_shapes()
    if odd:
        pipe.renew_shapes()
    step(pipe)


def draws(pipe: Any, odd: bool) -> None:
    step(pipe, seed=6)
    step(pipe, seed=None if odd else 7)


def clips(pipe: Any, odd: bool) -> None:
    step(pipe)
    if odd:
        pipe.clip_grad_norm_(1.0)
    step(pipe)


def loads(pipe: Any, odd: bool) -> None:
    step(pipe)
    if odd:
        model = nn.ModuleList(pipe.mine)
        pipe.load_state_dict(model, pipe.state_dict(model))
    step(pipe)


def looks_back(pipe: Any, odd: bool) -> None:
    step(pipe)
    if odd:
        pipe.timeline()
    step(pipe)


def steps_on(pipe: Any, odd: bool) -> None:
    step(pipe)
    if not odd:
        pipe.timeline()
    step(pipe)


WAYS: dict[str, Callable[[Any, bool], None]] = {
    each.__name__: each
    for each in (
        evaluates,
        skips_an_evaluation,
        trains_once_more,
        renews,
        renews_twice,
        draws,
        clips,
        loads,
        looks_back,
        steps_on,
    )
}


def attempt(path: str, way: str, rank: int) -> str:
    compiled = load(path)
    group = dist.new_group()
    torch.manual_seed(0)
    stages = mlp(compiled.STAGES)
    stages[1][0].weight = nn.Parameter(stages[0][1].weight.detach().clone())
    tied = {0: {"x": stages[0][1].weight}, 1: {"x": stages[1][0].weight}}.get(rank) if way == "loads" else None
    try:
        pipe = compiled.Pipeline(
            stages[rank], nn.functional.cross_entropy, process_group=group, timeout=PATIENCE, tied=tied
        )
        pipe.mine = [stages[rank]]
        WAYS[way](pipe, rank == ODD)
    except compiled.PipelineError as error:
        return str(error)
    return "nothing happened"


def main() -> None:
    rank = start()
    for way in sys.argv[2:]:
        print(f"CASE {way}\n{attempt(sys.argv[1], way, rank)}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
