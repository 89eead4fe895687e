"""The example's comparison with one process fails where it must."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.support.launch import ROOT
from tests.support.worker import difference, load

SIZES = {"layers": 1, "hidden": 8, "sequence": 4}


def compared(**change: Any) -> None:
    example = load(ROOT / "examples" / "train_gpt.py")
    torch.manual_seed(0)
    whole = torch.nn.Sequential(*example.build_stages(2, **SIZES))
    one = copy.deepcopy(whole)
    batch, targets = torch.randint(256, (2, 4)), torch.randint(256, (2, 4))
    losses = [example.loss_fn(one(x), y) for x, y in zip(batch.chunk(2), targets.chunk(2), strict=True)]
    (sum(losses) / 2).backward()
    found = {name: q.grad for name, q in one.named_parameters()}
    first = next(iter(found))
    if "gradient" in change:
        found[first].view(-1)[0] = change["gradient"]
    loss = change.get("loss", sum(losses).item() / 2)
    example.compare_with_one_process(whole, one.state_dict(), found, batch, targets, 2, loss)


def test_equal_gradients_pass() -> None:
    compared()


@pytest.mark.parametrize("change", [{"gradient": 1.0}, {"gradient": torch.nan}, {"loss": 0.0}, {"loss": torch.nan}])
def test_others_fail(change: dict[str, float]) -> None:
    with pytest.raises(SystemExit, match="not those of one process"):
        compared(**change)


def test_the_tests_own_comparison_takes_no_nan_for_nothing() -> None:
    """`max(0.0, nan)` is 0.0."""
    good, bad = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert difference(good, good) == 0
    for pair in ((good, bad), (bad, good), (bad, bad), (good, torch.ones(1)), (bad, None), (None, bad)):
        assert max(0.0, difference(*pair)) == float("inf")
