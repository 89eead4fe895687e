"""The placements that `place ?` chooses from, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _linear(stage: int, stages: int, ranks: int) -> int:
    return stage * ranks // stages


def _looped(stage: int, stages: int, ranks: int) -> int:
    return stage % ranks


def _v(stage: int, stages: int, ranks: int) -> int:
    turn, step = divmod(stage, ranks)
    return ranks - 1 - step if turn % 2 else step


PLACEMENTS: Mapping[str, Callable[[int, int, int], int]] = {"linear": _linear, "looped": _looped, "v": _v}
"""(stage, stages, ranks) -> rank.

`linear`: neighbouring stages share a rank. `looped`: stage s on rank s % p, as interleaving has it. `v`: down the ranks
and up again, so that the first and the last of 2 p stages share rank 0.
"""
