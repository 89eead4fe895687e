"""Which inputs share memory, as ranks tell each other, and for how long that holds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_what_was_told_is_forgotten_with_the_shapes() -> None:
    from pipedsl.runtime.writes import Writes

    store = torch.distributed.HashStore()
    giver, writer = (Writes(store, ("0", "1"), 4, torch.device("cpu")) for _ in range(2))
    giver.tell(True, 1, (), {0})
    with pytest.raises(ValueError, match="shares memory"):
        writer._ask(True, 1, {0})
    for each in (giver, writer):
        each.forget()
    writer._ask(True, 1, {0})
    giver.tell(True, 1, (), {0})
    with pytest.raises(ValueError, match="shares memory"):
        writer._ask(True, 1, {0})


def test_a_wrapped_stage_is_asked_for_what_it_takes() -> None:
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from pipedsl.runtime.extras import asked_for

    class Stage(nn.Module):
        def forward(self, x: object, mask: object) -> None: ...

    assert asked_for(Stage()) == asked_for(checkpoint_wrapper(Stage())) == {"mask"}
