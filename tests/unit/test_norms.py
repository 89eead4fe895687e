"""With whom a rank exchanges something while it clips its gradients."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import torch
from torch import nn

from pipedsl.runtime.norms import CLIPPING, clip_over_ranks


def test_the_norm_of_a_sharded_stage_is_with_its_replicas() -> None:
    """Of these one can be lost there, and of its pipeline in the sum over stages, or where nothing is sharded."""
    plain, sharded = (nn.Parameter(torch.ones(2)) for _ in range(2))
    plain.grad, sharded.grad = torch.ones(2), torch.ones(2)
    sharded.grad.device_mesh = Mock(mesh=torch.tensor([[1, 3], [5, 7]]))  # type: ignore[attr-defined]
    stood: list[Any] = [("begun", [0, 1])]
    asked: list[Any] = []
    wire: Any = Mock(ranks=[0, 1], all_reduce=lambda tensor, **_: asked.append(stood[-1]))
    note = Mock(side_effect=lambda what, among: stood.append((what, list(among))))
    for given in ([plain], [plain, sharded]):
        norm = clip_over_ranks(wire, given, (), torch.device("cpu"), 9.0, 2.0, note)
        torch.testing.assert_close(norm, torch.tensor(2.0 * len(given)).sqrt())
        if len(given) == 1:
            assert all(among == [0, 1] for _, among in stood)
    assert (f"{CLIPPING}: those of a stage over its replicas", [1, 3, 5, 7]) in stood
    assert asked == [(CLIPPING, [0, 1])] * 2
