"""Which inputs share memory, as ranks tell each other, and for how long that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import compiled
from tests.unit.test_executor import train


def test_what_was_told_is_forgotten_with_the_shapes() -> None:
    from pipedsl.runtime.writes import Writes

    store = torch.distributed.HashStore()
    giver, writer = (Writes(store, ("0", "1"), 4, torch.device("cpu")) for _ in range(2))
    giver.tell(True, 1, (), {0})
    with pytest.raises(ValueError, match="shares memory with another one, in this microbatch or another, as stage 0 "):
        writer._ask(True, 1, {0})
    giver.begin(1)
    for _ in range(2):
        writer.begin(1)
    writer._ask(True, 1, {0})
    giver.tell(True, 1, (), {0})
    with pytest.raises(ValueError, match="shares memory"):
        writer._ask(True, 1, {0})


def test_what_is_told_is_heard_though_one_rank_has_renewed_shapes_more_often(tmp_path: Path) -> None:
    """It makes no difference to the rest, so the step goes on."""

    class Twice(nn.Module):
        """Returns one tensor twice in the last microbatch of the second step."""

        calls = 0

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            return (x, x) if self.calls == 4 else (x, x + 1)

    class Writer(nn.Module):
        def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return x[0].add_(1) * x[1]

    def body(pipe: Any, rank: int) -> None:
        for step in range(2):
            if step:
                pipe.renew_shapes()
                if rank == 0:
                    pipe.renew_shapes()
            pipe.step(torch.randn(4, 3), torch.randn(4, 3), train=False)

    ranks = train(
        compiled.ONE_F_ONE_B, [Twice(), Writer()], None, None, nn.functional.mse_loss, tmp_path, p=2, m=2, body=body
    )
    assert "writes to an input that shares memory with another one" in str(ranks[1].error)


def test_a_wrapped_stage_is_asked_for_what_it_takes() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from pipedsl.runtime.extras import asked_for

    class Stage(nn.Module):
        def forward(self, x: object, mask: object) -> None: ...

    assert asked_for(Stage()) == asked_for(checkpoint_wrapper(Stage())) == {"mask"}
