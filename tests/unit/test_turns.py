"""What ranks do together, told and compared."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from pipedsl.runtime.turns import Turns
from pipedsl.runtime.wire import TENSORS_PER_MESSAGE, message_tag, step_tag
from tests.support import compiled
from tests.support.worker import mlp
from tests.unit.test_executor import results, train


def take(store: Any, rank: int, *labels: str) -> Turns:
    turns = Turns(rank)
    for label in labels:
        turns.begin(label)
    turns.tell(store)
    return turns


def test_only_what_two_ranks_did_in_one_turn_is_compared() -> None:
    store = dist.HashStore()
    own = take(store, 1, "a", "b", "c")
    take(store, 0, "a", "b", "c", "d")  # ahead
    take(store, 2, "a")  # behind
    take(store, 3, *[f"step {i}" for i in range(50)])  # so far ahead that what it tells begins later
    assert own.parted(store, [0, 2, 3, 4]) == "", "and rank 4 has told nothing"
    take(store, 5, "a", "x", "c")
    assert own.parted(store, [0, 5]) == "b on rank 1, but x on rank 5"
    take(store, 0, "a", "b", "y")
    assert own.parted(store, [0, 5]) == "y on rank 0, but c on rank 1"


def test_the_first_turn_in_which_two_ranks_differ_is_named() -> None:
    store = dist.HashStore()
    own = take(store, 0, "a", "b", "c")
    take(store, 1, "a", "x", "y")
    assert own.parted(store, [1]) == "b on rank 0, but x on rank 1"


def test_who_is_done_with_a_turn_is_not_waited_for_in_it() -> None:
    store = dist.HashStore()
    own, other = take(store, 0, "a", "b"), take(store, 1, "a")
    assert not own.is_over(store, 2), "it has told nothing"
    assert not own.is_over(store, 1)
    other.end()
    other.tell(store)
    assert not own.is_over(store, 1), "that was the turn before"
    other.begin("b")
    other.tell(store)
    assert not own.is_over(store, 1)
    other.end()
    other.tell(store)
    assert own.is_over(store, 1)


def test_news_are_told_once() -> None:
    class Counting:
        def __init__(self) -> None:
            self.said: list[str] = []

        def set(self, key: str, value: str) -> None:
            self.said.append(value)

    store = Counting()
    turns = Turns(3)
    turns.tell(store)
    assert (store.said, turns.label) == ([], "")
    turns.begin("a")
    for _ in range(3):
        turns.tell(store)
    turns.end()
    for _ in range(3):
        turns.tell(store)
    assert store.said == ['[false, [[1, "a"]]]', '[true, [[1, "a"]]]']


def test_a_turn_that_begins_while_the_last_is_told_is_not_told_to_be_over() -> None:
    """Else nobody who waits for this rank would find that its process has ended."""
    store = dist.HashStore()
    turns, other = take(store, 0, "a"), take(store, 1, "a", "b")
    turns.end()

    class Lately(deque[tuple[int, str]]):
        def copy(self) -> Lately:
            turns.begin("b")
            return Lately(self)

    turns._lately = Lately(turns._lately)
    turns.tell(store)
    assert other.told(store, 0) == (True, {1: "a"})
    assert not other.is_over(store, 0)


def test_a_rank_outside_of_a_step_lets_the_others_know_by_itself(tmp_path: Path) -> None:
    def body(pipe: Any, rank: int) -> tuple[bool, dict[int, str]]:
        pipe.step(torch.zeros(4).long(), torch.zeros(4).long(), train=False)
        told = Turns(rank)
        deadline = time.monotonic() + 60
        while not (found := told.told(pipe._watch._store, 1 - rank))[0] and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    found = results(train(compiled.SPLIT, mlp(2), None, None, functional.cross_entropy, tmp_path, p=2, m=2, body=body))
    assert found == [(True, {1: "step 1 (evaluating)"})] * 2


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (3, 5), (64, 512), (256, 8192)])
def test_no_two_messages_of_steps_that_ranks_may_be_in_share_a_tag(stages: int, microbatches: int) -> None:
    """The largest leaves no room for steps; then order alone tells messages of one tag apart, as before."""
    cells = stages * microbatches
    last = message_tag(True, stages - 1, microbatches - 1, microbatches) + TENSORS_PER_MESSAGE - 1
    moves = [step_tag(step, cells) for step in range(16)]
    if stages == 256:
        assert set(moves) == {0}
    else:
        assert len(set(moves)) == 16
        assert min(b - a for a, b in zip(sorted(moves), sorted(moves)[1:], strict=False)) > last
    assert all(0 <= last + move < 1 << 30 for move in (*moves, step_tag(10**12 + 3, cells)) if stages < 256)
